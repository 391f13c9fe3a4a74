"""The jars of Delta: found whole and unchanged, or fetched whole, or told how to. No network here."""

import os
import shlex
import signal
import subprocess
import sys
import time
import tomllib
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path

import pytest

from gateway.errors import UnavailableError
from gateway.lake.spark import jars

ROOT = Path(__file__).parents[2]
JARS = {"delta-one-1.0.jar": b"one", "delta-two-2.0.jar": b"two"}
SUMS = (
    "7692c3ad3540bb803c020b3aee66cd8887123234ea0c6e7143c0add73ff431ed  delta-one-1.0.jar\n"
    "3fc4ccfe745870e2c0d99f71f30ff0656c8dedd41cc1d7d3d376b0dbe685e2f3  delta-two-2.0.jar\n"
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the jars shall be: not there yet, and two tiny jars are all that is expected."""
    data = tmp_path / "data"
    data.mkdir()
    (data / "SHA256SUMS").write_text(SUMS)
    (data / "ivy.xml").write_text("<ivy-module/>")
    monkeypatch.setattr(jars, "_DATA", data)
    monkeypatch.delenv("DELTAPORT_IVY_SETTINGS", raising=False)
    target = tmp_path / "env" / "share" / "jars"
    monkeypatch.setenv("DELTAPORT_JARS_DIR", str(target))
    return target


@pytest.fixture
def fake_java(tmp_path: Path) -> Callable[[str], str]:
    """Make a `java` that runs a line of shell with $INTO, the folder Ivy was asked to fill."""

    def make(line: str) -> str:
        java = tmp_path / "java"
        java.write_text(f'#!/bin/sh\nfor INTO; do :; done\nINTO=$(dirname "$INTO")\nmkdir -p "$INTO"\n{line}\n')
        java.chmod(0o755)
        return str(java)

    return make


def write_jars(folder: Path, contents: dict[str, bytes]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        (folder / name).write_bytes(content)


def visible(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if not path.name.endswith(".lock"))


GOOD_FETCH = 'printf one > "$INTO/delta-one-1.0.jar"; printf two > "$INTO/delta-two-2.0.jar"'
BAD_FETCH = 'printf one > "$INTO/delta-one-1.0.jar"; printf evil > "$INTO/delta-two-2.0.jar"'


def test_a_missing_folder_tells_the_command(folder: Path) -> None:
    with pytest.raises(UnavailableError, match=r"run: deltaport fetch-jars$"):
        jars.jar_paths()


def test_a_missing_jar_is_named_with_the_command(folder: Path) -> None:
    write_jars(folder, {"delta-one-1.0.jar": b"one"})
    with pytest.raises(UnavailableError, match=r"^delta-two-2\.0\.jar is missing; run: deltaport fetch-jars$"):
        jars.jar_paths()


@pytest.mark.parametrize("content", [b"tw", b"twO", b"two\n", b""])
def test_a_changed_jar_is_detected(folder: Path, content: bytes) -> None:
    write_jars(folder, JARS | {"delta-two-2.0.jar": content})
    with pytest.raises(UnavailableError, match=r"^delta-two-2\.0\.jar has the wrong checksum; run"):
        jars.jar_paths()


def test_only_known_jars_are_loaded(folder: Path) -> None:
    write_jars(folder, JARS | {"stranger.jar": b"?"})
    assert [path.name for path in jars.jar_paths()] == list(JARS)


def test_errors_carry_no_paths(folder: Path) -> None:
    with pytest.raises(UnavailableError) as caught:
        jars.jar_paths()
    assert str(folder) not in str(caught.value)


def test_fetched_jars_are_found(folder: Path, fake_java: Callable[[str], str]) -> None:
    jars.fetch_jars(fake_java(GOOD_FETCH), lambda _: None)
    assert [path.read_bytes() for path in jars.jar_paths()] == [b"one", b"two"]
    assert visible(folder.parent) == ["jars"]


def test_a_second_fetch_runs_no_java(folder: Path, fake_java: Callable[[str], str]) -> None:
    jars.fetch_jars(fake_java(GOOD_FETCH), lambda _: None)
    jars.fetch_jars("/nonexistent/java", lambda _: None)
    assert len(jars.jar_paths()) == 2


def test_a_fetch_replaces_a_defective_folder(folder: Path, fake_java: Callable[[str], str]) -> None:
    write_jars(folder, JARS | {"delta-one-1.0.jar": b"broken", "older.jar": b"old"})
    jars.fetch_jars(fake_java(GOOD_FETCH), lambda _: None)
    assert visible(folder) == sorted(JARS)
    assert visible(folder.parent) == ["jars"]


def test_a_wrong_download_is_not_installed(folder: Path, fake_java: Callable[[str], str]) -> None:
    with pytest.raises(UnavailableError, match=r"delta-two-2\.0\.jar has the wrong checksum"):
        jars.fetch_jars(fake_java(BAD_FETCH), lambda _: None)
    assert visible(folder.parent) == []


def test_a_wrong_download_leaves_the_folder_as_it_was(folder: Path, fake_java: Callable[[str], str]) -> None:
    write_jars(folder, {"delta-one-1.0.jar": b"one"})
    with pytest.raises(UnavailableError):
        jars.fetch_jars(fake_java(BAD_FETCH), lambda _: None)
    assert visible(folder) == ["delta-one-1.0.jar"]
    assert visible(folder.parent) == ["jars"]


def test_a_failing_ivy_is_a_short_error_and_a_few_reported_lines(folder: Path, fake_java: Callable[[str], str]) -> None:
    said: list[str] = []
    noise = "seq 500; echo 'unresolved dependency: delta-one'; seq 500; exit 1"
    with pytest.raises(UnavailableError, match=r"^the jars could not be fetched") as caught:
        jars.fetch_jars(fake_java(noise), said.append)
    assert len(str(caught.value)) < 200
    assert said[-1] == "unresolved dependency: delta-one"
    assert visible(folder.parent) == []


def test_a_java_that_cannot_run_is_a_clear_error(folder: Path) -> None:
    with pytest.raises(UnavailableError, match="No such file"):
        jars.fetch_jars("/nonexistent/java", lambda _: None)
    assert visible(folder.parent) == []


def test_a_mirror_is_handed_to_ivy(
    folder: Path, fake_java: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DELTAPORT_IVY_SETTINGS", "/etc/mirror.xml")
    jars.fetch_jars(fake_java(f'case "$*" in *"-settings /etc/mirror.xml"*) {GOOD_FETCH};; esac'), lambda _: None)
    assert len(jars.jar_paths()) == 2


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_fetch_leaves_no_half_folder(
    folder: Path, fake_java: Callable[[str], str], signum: signal.Signals
) -> None:
    started = folder.parents[2] / "started"
    # One jar has arrived, the other never will; `exec` so that the child ends with its parent's group.
    java = fake_java(f'printf one > "$INTO/delta-one-1.0.jar"; touch {shlex.quote(str(started))}; exec sleep 600')
    program = (
        "import sys; from pathlib import Path; from gateway.lake.spark import jars\n"
        "jars._DATA = Path(sys.argv[2]); jars.fetch_jars(sys.argv[1], print)"
    )
    fetch = subprocess.Popen(
        [sys.executable, "-c", program, java, str(jars._DATA)],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        deadline = time.monotonic() + 60
        while not started.exists():
            assert fetch.poll() is None
            assert time.monotonic() < deadline, "the fetch did not start"
            time.sleep(0.01)
    finally:
        os.killpg(fetch.pid, signum)
        fetch.wait(60)
    assert not folder.exists()
    jars.fetch_jars(fake_java(GOOD_FETCH), lambda _: None)
    assert visible(folder.parent) == ["jars"]
    assert len(jars.jar_paths()) == 2


# ---- which Java


def install_java(home: Path, banner: str, *, status: int = 0) -> Path:
    java = home / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\ncat >&2 <<'END'\n{banner}\nEND\nexit {status}\n")
    java.chmod(0o755)
    return java


OPENJDK = 'openjdk version "{}" 2024-01-01\nOpenJDK Runtime Environment (build {})'


def version_banner(version: str) -> str:
    return OPENJDK.format(version, version)


# The fake is a shell script that calls `cat`, so a PATH that is searched for java alone will do.
@pytest.mark.parametrize(
    "banner",
    [
        version_banner("17.0.15"),
        version_banner("21"),
        version_banner("21.0.4-ea"),
        'java version "17.0.9" 2023-10-17 LTS',
        'Picked up JAVA_TOOL_OPTIONS: -Xmx1g -Dversion=11\nopenjdk version "21.0.1" 2023-10-17',
    ],
)
def test_a_java_17_or_21_on_the_path_is_taken(tmp_path: Path, banner: str) -> None:
    java = install_java(tmp_path / "a", banner)
    assert jars.find_java({"PATH": str(java.parent)}, tmp_path / "none") == str(java)


@pytest.mark.parametrize(
    ("version", "named"),
    [("1.8.0_402", "Java 8"), ("11.0.22", "Java 11"), ("18", "Java 18"), ("25.0.1", "Java 25")],
)
def test_another_java_is_refused_by_its_version(tmp_path: Path, version: str, named: str) -> None:
    java = install_java(tmp_path / "a", version_banner(version))
    with pytest.raises(UnavailableError, match=rf"^Java 17 or 21 is needed; PATH has {named}$"):
        jars.find_java({"PATH": str(java.parent)}, tmp_path / "none")


def test_java_home_comes_before_the_path(tmp_path: Path) -> None:
    home = install_java(tmp_path / "home", version_banner("21.0.1"))
    other = install_java(tmp_path / "other", version_banner("17.0.1"))
    assert jars.find_java({"JAVA_HOME": str(tmp_path / "home"), "PATH": str(other.parent)}, tmp_path) == str(home)


def test_an_unfit_java_home_gives_way_to_the_path(tmp_path: Path) -> None:
    install_java(tmp_path / "home", version_banner("11.0.1"))
    other = install_java(tmp_path / "other", version_banner("17.0.1"))
    env = {"JAVA_HOME": str(tmp_path / "home"), "PATH": str(other.parent)}
    assert jars.find_java(env, tmp_path / "none") == str(other)


def test_a_fit_java_beside_the_preferred_one_is_found(tmp_path: Path) -> None:
    preferred = install_java(tmp_path / "jvm" / "java-25", version_banner("25"))
    fit = install_java(tmp_path / "jvm" / "java-17", version_banner("17.0.1"))
    assert jars.find_java({"PATH": str(preferred.parent)}, tmp_path / "jvm") == str(fit)


def test_no_java_at_all_says_so(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match=r"^Java 17 or 21 is needed; no Java was found$"):
        jars.find_java({"PATH": str(tmp_path)}, tmp_path / "none")


def test_everything_that_was_found_is_named(tmp_path: Path) -> None:
    broken = install_java(tmp_path / "other", "Error: could not find libjava.so", status=1)
    env = {"JAVA_HOME": str(tmp_path / "gone"), "PATH": str(broken.parent)}
    with pytest.raises(UnavailableError, match=r"JAVA_HOME has no working Java, PATH has no working Java$"):
        jars.find_java(env, tmp_path / "none")


# ---- the lists that ship with the package


def ivy_dependencies() -> list[dict[str, str]]:
    root = ET.parse(jars._DATA / "ivy.xml").getroot()  # noqa: S314  our own file
    return [entry.attrib for entry in root.iter("dependency")]


def listed_jars() -> set[str]:
    return {f"{entry['name']}-{entry['rev']}.jar" for entry in ivy_dependencies()}


def test_every_jar_has_an_exact_version_and_a_checksum() -> None:
    assert listed_jars() == set(jars._checksums())
    assert all(len(digest) == 64 for digest in jars._checksums().values())


def test_nothing_is_resolved_transitively() -> None:
    assert all(entry["transitive"] == "false" for entry in ivy_dependencies())


def test_the_jars_fit_the_python_packages() -> None:
    pins = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    delta = next(pin.partition("==")[2] for pin in pins if pin.startswith("delta-spark=="))
    spark = next(pin.partition("==")[2] for pin in pins if pin.startswith("pyspark=="))
    assert f"delta-spark_{spark.rpartition('.')[0]}_2.13-{delta}.jar" in listed_jars()
