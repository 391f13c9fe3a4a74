"""Delta's jars: fetched once into the environment, checked at every start.

The wheel of delta-spark carries no jars. `fetch_jars` brings exactly those that
Spark does not ship itself, with the Ivy that does come with Spark, and compares
them with the checksums kept beside this module; `jar_paths` compares them again,
so that a running gateway needs no network and loads nothing it does not know.
Spark itself is not imported here, only its place on disk is asked for.
"""

import fcntl
import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from gateway.errors import UnavailableError

FETCH_COMMAND = "deltaport fetch-jars"
JAVA_VERSIONS = (17, 21)

_DATA = Path(__file__).parent / "jars_data"
_JVM_ROOT = Path("/usr/lib/jvm")
_IVY_SECONDS = 900
_VERSION_SECONDS = 60


def jars_dir() -> Path:
    """Where the jars are kept: a folder of the Python environment, unless DELTAPORT_JARS_DIR says otherwise."""
    override = os.environ.get("DELTAPORT_JARS_DIR")
    return Path(override).absolute() if override else Path(sys.prefix) / "share" / "deltaport" / "jars"


def jar_paths() -> list[Path]:
    """The jars to start Spark with, every one of them checked just now (12 MB, some 20 ms)."""
    folder = jars_dir()
    defect = _find_defect(folder)
    if defect is not None:
        raise UnavailableError(f"{defect}; run: {FETCH_COMMAND}")
    return [folder / name for name in _checksums()]


def fetch_jars(java: str, report: Callable[[str], None]) -> None:
    """Fill `jars_dir()` unless it is in order already.

    The folder appears whole or not at all: jars arrive in a folder beside it,
    are checked there, and take its place by a rename. Fetches that run at the
    same time wait for each other. What Ivy itself said on a failure is
    reported line by line; the error stays short.
    """
    target = jars_dir()
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with _exclusive(target):
            if _find_defect(target) is None:
                report(f"Delta's jars are in place in {target}")
                return
            _remove_leftovers(target)
            report(f"Fetching {len(_checksums())} jars into {target}")
            with tempfile.TemporaryDirectory(prefix=_leftover_prefix(target), dir=target.parent) as work:
                fetched = Path(work) / "jars"
                _run_ivy(java, Path(work), fetched, report)
                defect = _find_defect(fetched)
                if defect is not None:
                    raise UnavailableError(f"{defect} after the download; nothing was installed")
                _replace(target, fetched, Path(work) / "replaced")
    except OSError as error:
        report(str(error))
        raise UnavailableError(f"the jars could not be stored: {error.strerror or 'input/output error'}") from error
    report("Delta's jars are in place")


def find_java(environment: Mapping[str, str] | None = None, jvm_root: Path = _JVM_ROOT) -> str:
    """The first Java of a version Spark runs on: JAVA_HOME's, then PATH's, then those the system keeps in `jvm_root`.

    Spark's own launcher looks at JAVA_HOME alone before PATH, so whoever starts
    Spark has to hand it the home of the Java found here.
    """
    env = os.environ if environment is None else environment
    found: list[str] = []
    for origin, java in _java_candidates(env, jvm_root):
        version = _java_version(java)
        if version in JAVA_VERSIONS:
            return java
        found.append(f"{origin} has {'no working Java' if version is None else f'Java {version}'}")
    wanted = " or ".join(str(version) for version in JAVA_VERSIONS)
    raise UnavailableError(f"Java {wanted} is needed; {', '.join(found) if found else 'no Java was found'}")


def _java_candidates(env: Mapping[str, str], jvm_root: Path) -> Iterator[tuple[str, str]]:
    if home := env.get("JAVA_HOME"):
        yield "JAVA_HOME", str(Path(home) / "bin" / "java")
    # `or` on purpose: with an empty path `which` would fall back to this process's own.
    if on_path := shutil.which("java", path=env.get("PATH") or os.devnull):
        yield "PATH", on_path
    # The preferred Java of a system may be newer than Spark allows, with the right one installed beside it.
    for java in sorted(jvm_root.glob("*/bin/java")):
        yield java.parent.parent.name, str(java)


def _java_version(java: str) -> int | None:
    """The feature version (17 of "17.0.15", 8 of "1.8.0_402"), None when the program does not tell one."""
    try:
        # Java prints its version to stderr, after any lines about JAVA_TOOL_OPTIONS.
        answer = subprocess.run(  # noqa: S603  the operator's own Java
            [java, "-version"], capture_output=True, text=True, errors="replace", timeout=_VERSION_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(r'version "(?:1\.)?(\d+)', answer.stderr + answer.stdout)
    return int(match[1]) if match and answer.returncode == 0 else None


def _checksums() -> dict[str, str]:
    """Jar name -> SHA-256, in the order of the list."""
    lines = (_DATA / "SHA256SUMS").read_text(encoding="ascii").splitlines()
    return {name: digest for digest, name in (line.split() for line in lines)}


def _find_defect(folder: Path) -> str | None:
    if not folder.is_dir():
        return "Delta's jars are missing"
    for name, expected in _checksums().items():
        try:
            with (folder / name).open("rb") as file:
                actual = hashlib.file_digest(file, "sha256").hexdigest()
        except FileNotFoundError:
            return f"{name} is missing"
        except OSError:
            return f"{name} cannot be read"
        if actual != expected:
            return f"{name} has the wrong checksum"
    return None


def _run_ivy(java: str, work: Path, into: Path, report: Callable[[str], None]) -> None:
    # A home and a cache of its own: a half-filled cache of the user would break the resolution.
    command = [java, f"-Duser.home={work / 'home'}", "-jar", str(_ivy_jar())]
    if settings := os.environ.get("DELTAPORT_IVY_SETTINGS"):
        command += ["-settings", settings]
    command += ["-ivy", str(_DATA / "ivy.xml"), "-cache", str(work / "cache"), "-types", "jar"]
    command += ["-retrieve", f"{into}/[artifact]-[revision].[ext]"]
    try:
        answer = subprocess.run(  # noqa: S603  no shell, no input of a client
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=_IVY_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise UnavailableError(f"the jars did not arrive within {_IVY_SECONDS} s") from error
    if answer.returncode != 0:
        for line in _telling_lines(answer.stdout):
            report(line)
        raise UnavailableError(
            "the jars could not be fetched; check the network, or name a mirror's settings in DELTAPORT_IVY_SETTINGS"
        )


def _telling_lines(output: str) -> list[str]:
    """The few lines of Ivy's answer that say what went wrong."""
    lines = [line.strip() for line in output.splitlines()]
    telling = [line for line in lines if re.search(r"error|exception|not found|unresolved|failed", line, re.IGNORECASE)]
    return list(dict.fromkeys(telling or [line for line in lines if line]))[-3:]


def _ivy_jar() -> Path:
    spec = importlib.util.find_spec("pyspark")
    homes = spec.submodule_search_locations if spec is not None else None
    for home in homes or ():
        for jar in sorted(Path(home).glob("jars/ivy-*.jar")):
            return jar
    raise UnavailableError("Ivy was not found; is pyspark installed?")


@contextmanager
def _exclusive(target: Path) -> Iterator[None]:
    with (target.parent / f".{target.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _leftover_prefix(target: Path) -> str:
    return f".{target.name}-"


def _remove_leftovers(target: Path) -> None:
    """Drop what a killed fetch left behind; nobody else is fetching while the lock is held."""
    for leftover in target.parent.glob(f"{_leftover_prefix(target)}*"):
        shutil.rmtree(leftover, ignore_errors=True)


def _replace(target: Path, fetched: Path, replaced: Path) -> None:
    # A folder that is not empty cannot be renamed over, so a defective one steps aside first.
    if target.exists() or target.is_symlink():
        target.rename(replaced)
    fetched.rename(target)
