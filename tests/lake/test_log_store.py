"""Delta's log on a local disk: one winner per version, and nothing shows before it is on the disk."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from deltalake import DeltaTable
from py4j.protocol import Py4JJavaError

from gateway.lake.spark.log_store import CLASS, FSYNC, log_store_settings
from tests.builders import Lake
from tests.system.process import wait_until

ROOT = Path(__file__).parents[2]
VERSIONS = 400
needs_strace = pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
# A JVM with the store and without Spark: `write(version)` is true where it won, false where it lost.
BARE = """
import os, sys, time
from pathlib import Path
from py4j.protocol import Py4JJavaError
from pyspark import SparkConf
from pyspark.java_gateway import launch_gateway
from gateway.lake.spark.jars import find_java, jar_paths
from gateway.lake.spark.log_store import load_log_store

os.environ["JAVA_HOME"] = str(Path(find_java()).resolve().parent.parent)
jvm = launch_gateway(SparkConf().set("spark.jars", ",".join(map(str, jar_paths())))).jvm
load_log_store(jvm)
conf = jvm.org.apache.hadoop.conf.Configuration()
store = jvm.deltaport.DurableLogStore(conf)
log = sys.argv[1]

def write(version):
    lines = jvm.java.util.ArrayList()
    lines.add('{"commitInfo":{"engineInfo":"%s"}}' % os.getpid())
    try:
        store.write(jvm.org.apache.hadoop.fs.Path(f"file:{log}/{version:020}.json"), lines.iterator(), False, conf)
    except Py4JJavaError as error:
        assert "java.nio.file.FileAlreadyExistsException" in str(error), str(error)
        return False
    return True
"""
CONTEST = BARE + """
Path(log, f"ready-{os.getpid()}").touch()
while not Path(log, "go").exists():
    time.sleep(0.001)
print("won", os.getpid(), *(version for version in range(int(sys.argv[2])) if write(version)))
"""


class Store:
    """The log store that Delta uses for one table of this run's Spark."""

    def __init__(self, spark: Any, table: Path, *, fsync: bool = True) -> None:
        self._jvm = spark._jvm
        self.log = table / "_delta_log"
        self.log.mkdir(parents=True, exist_ok=True)
        self._store = self._jvm.org.apache.spark.sql.delta.DeltaLog.forTable(spark._jsparkSession, str(table)).store()
        self._conf = self._jvm.org.apache.hadoop.conf.Configuration()
        self._conf.setBoolean(FSYNC, fsync)

    @property
    def implementation(self) -> str:
        return str(self._store.getDelegate(self._path("")).logStoreImpl().getClass().getName())

    def write(self, version: int, lines: Any) -> None:
        self._write(commit(version), lines, overwrite=False)

    def replace(self, name: str, lines: Any) -> None:
        self._write(name, lines, overwrite=True)

    def _write(self, name: str, lines: Any, *, overwrite: bool) -> None:
        if isinstance(lines, list):
            held = self._jvm.java.util.ArrayList()
            for line in lines:
                held.add(line)
            lines = held.iterator()
        scala = self._jvm.scala.jdk.javaapi.CollectionConverters.asScala(lines)
        self._store.write(self._path(name), scala, overwrite, self._conf)

    def _path(self, name: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(f"file:{self.log}/{name}")

    def lines_of(self, file: Path) -> Any:
        """Read as they are asked for."""
        return self._jvm.java.nio.file.Files.lines(self._jvm.java.io.File(str(file)).toPath()).iterator()

    def names(self) -> list[str]:
        return sorted(path.name for path in self.log.iterdir())


def commit(version: int) -> str:
    return f"{version:020}.json"


@pytest.fixture
def store(spark: Any, tmp_path: Path) -> Store:
    return Store(spark, tmp_path / "t")


def test_delta_uses_it_and_the_setting_reaches_it(store: Store, spark: Any) -> None:
    assert store.implementation == CLASS
    assert spark._jsparkSession.sessionState().newHadoopConf().get(FSYNC) == "true"


def test_a_log_store_named_in_sparks_settings_is_left_in_place() -> None:
    assert log_store_settings({}, fsync=False) == {
        "spark.delta.logStore.file.impl": CLASS,
        "spark.hadoop.deltaport.fsync": "false",
    }
    for key in ("spark.delta.logStore.class", "delta.logStore.class", "spark.delta.logStore.file.impl"):
        assert log_store_settings({key: "x"}, fsync=True) == {}


def test_a_version_that_is_there_is_refused_as_delta_expects_it(store: Store) -> None:
    store.write(0, ['{"commitInfo":{}}'])
    with pytest.raises(Py4JJavaError, match=r"java\.nio\.file\.FileAlreadyExistsException"):
        store.write(0, ['{"commitInfo":{"later":1}}'])
    assert (store.log / commit(0)).read_text() == '{"commitInfo":{}}\n'
    assert store.names() == [commit(0)]


def test_a_version_that_another_program_takes_meanwhile_is_not_overwritten(store: Store, tmp_path: Path) -> None:
    """Delta's own store looked before it wrote its lines, and renamed over whatever had come since."""
    pipe = tmp_path / "lines"
    os.mkfifo(pipe)
    with ThreadPoolExecutor(1) as pool:
        lines = os.open(pipe, os.O_RDWR)  # waits for nobody
        writing = pool.submit(lambda: store.write(0, store.lines_of(pipe)))
        try:
            wait_until(lambda: writing.done() or store.names() != [], seconds=120)  # it has looked, and writes
            (store.log / commit(0)).write_text("theirs\n")
            os.write(lines, b'{"commitInfo":{}}\n')
        finally:
            os.close(lines)
        with pytest.raises(Py4JJavaError, match=r"java\.nio\.file\.FileAlreadyExistsException"):
            writing.result()
    assert (store.log / commit(0)).read_text() == "theirs\n"
    assert store.names() == [commit(0)]


def test_a_commit_whose_files_cannot_be_synced_fails_and_is_not_there(store: Store) -> None:
    added = {"path": "gone.parquet", "partitionValues": {}, "size": 1, "modificationTime": 1, "dataChange": True}
    vector = {"storageType": "p", "pathOrInlineDv": "file:/gone.bin", "sizeInBytes": 1, "cardinality": 1, "offset": 1}
    (store.log.parent / "there.parquet").write_bytes(b"x")
    for action in (
        {"add": added},
        {"add": {**added, "path": "there.parquet", "deletionVector": vector}},
        {"cdc": {"path": "_change_data/gone.parquet", "partitionValues": {}, "size": 1, "dataChange": False}},
    ):
        with pytest.raises(Py4JJavaError, match="NoSuchFileException"):
            store.write(0, [json.dumps(action, separators=(",", ":"))])
    assert store.names() == []


@pytest.fixture
def without_its_file(spark: Any, lake: Lake) -> Iterator[tuple[Path, Callable[[], object]]]:
    """A table, and the commit of a transaction of Delta's own whose new file is lost by then."""
    path = lake.path(lake.create("t", "id BIGINT"))
    lake.fill("t", "VALUES (1)")
    jvm = spark._jvm
    jvm.org.apache.spark.sql.classic.SparkSession.setActiveSession(spark._jsparkSession)
    transaction = jvm.org.apache.spark.sql.delta.DeltaLog.forTable(spark._jsparkSession, str(path)).startTransaction()
    written = list(jvm.scala.jdk.javaapi.CollectionConverters.asJava(transaction.writeFiles(spark.range(2)._jdf)))
    for file in written:
        (path / file.path()).unlink()
    manual = getattr(getattr(jvm.org.apache.spark.sql.delta, "DeltaOperations$ManualUpdate$"), "MODULE$")
    actions = jvm.org.apache.spark.api.python.PythonUtils.toSeq(written)
    yield path, lambda: transaction.commit(actions, manual)
    spark.conf.unset(FSYNC)


def test_a_commit_of_delta_whose_file_is_lost_changes_nothing(
    spark: Any, without_its_file: tuple[Path, Callable[[], object]]
) -> None:
    path, commit_it = without_its_file
    before = DeltaTable(path).version()
    with pytest.raises(Py4JJavaError, match="NoSuchFileException"):
        commit_it()
    assert DeltaTable(path).version() == before
    assert [row.id for row in spark.read.format("delta").load(str(path)).collect()] == [1]


def test_the_session_that_commits_says_whether_it_is_synced(
    spark: Any, without_its_file: tuple[Path, Callable[[], object]]
) -> None:
    path, commit_it = without_its_file
    before = DeltaTable(path).version()
    spark.conf.set(FSYNC, "false")
    commit_it()  # nobody looked at the file
    assert DeltaTable(path).version() == before + 1


def test_a_checksum_that_was_left_behind_does_not_hide_what_is_written(store: Store, spark: Any) -> None:
    """Delta's own store writes such checksums, for Hadoop to compare when it reads."""
    for name in (commit(0), "_last_checkpoint"):
        (store.log / f".{name}.crc").write_bytes(b"crc\0\0\0\x02\0wrong")
    store.write(0, ['{"commitInfo":{}}'])
    store.replace("_last_checkpoint", ['{"version":0,"size":1}'])
    assert store.names() == [commit(0), "_last_checkpoint"]
    text = spark.read.text(str(store.log / commit(0)))
    assert [row.value for row in text.collect()] == ['{"commitInfo":{}}']


def run_bare(script: str, *arguments: object, under: tuple[str, ...] = ()) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*under, sys.executable, "-c", script, *map(str, arguments)],
        cwd=ROOT,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_of_two_jvms_that_write_the_same_versions_each_version_has_one_winner(tmp_path: Path) -> None:
    both = [run_bare(CONTEST, tmp_path, VERSIONS) for _ in range(2)]
    wait_until(lambda: len(list(tmp_path.glob("ready-*"))) == 2 or any(each.poll() is not None for each in both))
    (tmp_path / "go").touch()
    won: dict[str, list[int]] = {}
    for each in both:
        said, errors = each.communicate(timeout=240)
        found = re.search(r"won (\d+)(.*)", said)
        assert found is not None, errors[-2000:]
        won[found[1]] = [int(version) for version in found[2].split()]
    assert sorted(version for versions in won.values() for version in versions) == list(range(VERSIONS))
    assert all(won.values())  # it was a contest
    for process, versions in won.items():
        for version in versions:
            assert f'"{process}"' in (tmp_path / commit(version)).read_text()
    assert not list(tmp_path.glob(".*"))


MERGE = """
import sys
from pathlib import Path
from delta.tables import DeltaTable
from gateway.lake.spark.engine import Profile, Spark
from gateway.settings import SparkSettings

path = sys.argv[1]
spark = Spark(SparkSettings(driver_memory="1g", warm_up=False))
spark.start()
spark.wait_ready(240)
with spark.session(Profile.LATENCY) as session:
    rows = session.range(9).selectExpr("id", "concat('a b', id % 2) AS part").coalesce(1)
    rows.write.format("delta").partitionBy("part").option("delta.enableDeletionVectors", "true").save(path)
    source = session.range(7, 12).selectExpr("id", "'c%d' AS part")
    merge = DeltaTable.forPath(session, path).alias("t").merge(source.alias("s"), "t.id = s.id")
    merge.whenMatchedDelete().whenNotMatchedInsertAll().execute()
    DeltaTable.forPath(session, path)._jdt.deltaLog().checkpoint()
spark.stop()
print("DONE")
"""


@needs_strace
@pytest.mark.spark
@pytest.mark.timeout(600)
def test_what_a_commit_needs_is_synced_before_it_shows_and_its_folder_before_it_is_told(tmp_path: Path) -> None:
    trace, table = tmp_path / "trace", tmp_path / "with space%" / "t"
    calls = "trace=fsync,link,linkat,rename,renameat,renameat2"
    under = ("strace", "-f", "--seccomp-bpf", "-y", "-qq", "-s", "1000", "-e", calls, "-o", str(trace))
    said, errors = run_bare(MERGE, table, under=under).communicate(timeout=590)
    assert "DONE" in said, errors[-2000:]
    seen = [event for line in trace.read_text().splitlines() if (event := _event(line, table))]
    log = table / "_delta_log"
    for version in (0, 1):
        appeared = seen.index(("named", log / commit(version)))
        before, after = seen[:appeared], seen[appeared:]
        for file in _needed_by(log / commit(version)):
            folders = [folder for folder in file.parents if folder == table or table in folder.parents]
            assert {("synced", place) for place in (file, *folders)} <= set(before), file
        draft = next(place for what, place in reversed(before) if what == "synced")
        assert re.fullmatch(rf"\.{commit(version)}\.[0-9a-f-]+\.tmp", draft.name)  # its content, last before its name
        assert after[1] == ("synced", log)
    pointed = seen.index(("named", log / "_last_checkpoint"))
    assert ("synced", log / f"{1:020}.checkpoint.parquet") in seen[:pointed]
    assert {("synced", table), ("synced", table.parent)} <= set(seen)


def _event(line: str, table: Path) -> tuple[str, Path] | None:
    """What was synced or got its name, in the order of the calls."""
    if found := re.search(r"fsync\(\d+<(.*)>\) += 0", line):
        event = "synced", Path(found[1])
    elif found := re.search(r"(?:link|rename)\w*\(.*\"(.*)\"(?:, \w+)?\) = 0", line):
        event = "named", Path(found[1])
    else:
        return None
    return event if table in (event[1], *event[1].parents) or event[1] == table.parent else None


def _needed_by(commit: Path) -> Iterator[Path]:
    table = commit.parent.parent
    added = [json.loads(line)["add"] for line in commit.read_text().splitlines() if line.startswith('{"add"')]
    assert added
    for add in added:
        yield table / unquote(add["path"])
    if any("deletionVector" in add for add in added):
        vectors = list(table.glob("deletion_vector_*.bin"))
        assert len(vectors) == 1
        yield from vectors


FAILING = BARE + """
print("wrote", [write(version) for version in range(2)])
"""


@needs_strace
@pytest.mark.spark
@pytest.mark.parametrize(
    ("injected", "said", "told"),
    [
        ("link,linkat:error=EPERM", "wrote [True, True]", "has no hard links"),
        ("fsync:error=EINVAL:when=2+2", "wrote [True, True]", "does not sync folders"),
        ("fsync:error=EIO", "", "Input/output error"),
    ],
    ids=["no hard links", "no sync of folders", "a broken disk"],
)
def test_a_disk_that_cannot_do_it_is_told_once(tmp_path: Path, injected: str, said: str, told: str) -> None:
    under = ("strace", "-f", "--seccomp-bpf", "-qq", "-e", f"inject={injected}", "-o", "/dev/null")
    output, errors = run_bare(FAILING, tmp_path, under=under).communicate(timeout=120)
    assert said in output, errors[-2000:]
    assert errors.count(told) >= 1
    if said:
        assert errors.count(told) == 1
        assert sorted(path.name for path in tmp_path.iterdir()) == [commit(0), commit(1)]
    else:
        assert list(tmp_path.iterdir()) == []
