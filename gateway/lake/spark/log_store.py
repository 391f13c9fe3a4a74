"""Delta's log store for local and mounted disks, compiled into Spark's JVM when it starts.

Delta's own store looks whether a version is free and renames then, and nothing
is synced to the disk. Ours, `DurableLogStore.java` beside this module, mends
both. It is compiled by Janino, which Spark ships for its generated code, so
neither a Java compiler nor a further jar is needed; it takes about half a second.
"""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import structlog

log = structlog.get_logger(__name__)

CLASS = "deltaport.DurableLogStore"
FSYNC = "deltaport.fsync"  # of the session that commits: whether it syncs
_SCHEME = "delta.logStore.file.impl"
_OTHERS = ("delta.logStore.class", _SCHEME)
_SOURCE = Path(__file__).with_name("java") / "DurableLogStore.java"


def log_store_settings(conf: Mapping[str, str], *, fsync: bool) -> dict[str, str]:
    """What Spark is started with; nothing where its settings name a log store of their own."""
    own = [key for key in conf if key.removeprefix("spark.") in _OTHERS]
    if own:
        log.warning("log_store_not_used", setting=own[0], effect="write.fsync has no effect")
        return {}
    return {f"spark.{_SCHEME}": CLASS, f"spark.hadoop.{FSYNC}": str(fsync).lower()}


def install_log_store(session: Any) -> None:
    """Make the class known to the driver, which commits, and to executors, which read logs; where it is used."""
    if session.conf.get(f"spark.{_SCHEME}", None) == CLASS:
        session.sparkContext._jsc.addJar(str(load_log_store(session._jvm)))


def load_log_store(jvm: Any) -> Path:
    """Compile the class and load it into a JVM; the jar that it is in."""
    loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    # A folder that Spark removes when its JVM ends.
    folder = jvm.org.apache.spark.util.Utils.createTempDir(jvm.java.lang.System.getProperty("java.io.tmpdir"), "jars")
    jar = Path(folder.getPath()) / "deltaport-log-store.jar"
    with zipfile.ZipFile(jar, "w") as archive:
        for name, code in _compile(jvm, loader).items():
            archive.writestr(f"{name.replace('.', '/')}.class", code)
    loader.addURL(jvm.java.io.File(str(jar)).toURI().toURL())
    jvm.java.lang.Class.forName(CLASS, True, loader)
    return jar


def _compile(jvm: Any, loader: Any) -> dict[str, bytes]:
    compiler = jvm.org.codehaus.janino.SimpleCompiler()
    compiler.setParentClassLoader(loader)
    compiler.cook(_SOURCE.name, jvm.java.io.StringReader(_SOURCE.read_text(encoding="utf-8")))
    compiled = compiler.getBytecodes()
    return {name: bytes(compiled[name]) for name in compiled}
