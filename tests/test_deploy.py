"""The files around the code: set-up, container, CI and lock files agree with each other and with the project."""

import json
import re
import shlex
import subprocess
import tomllib
from fnmatch import fnmatch
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from gateway import __version__
from gateway.lake.spark import jars
from gateway.settings import load_settings

ROOT = Path(__file__).parents[1]
YAML_FILES = [
    ".github/workflows/ci.yml",
    ".pre-commit-config.yaml",
    "conf/gateway.yaml",
    "deploy/container/gateway.yaml",
    "deploy/prometheus/alerts.yml",
    "deploy/prometheus/prometheus.yml",
    "docker-compose.yml",
    "mkdocs.yml",
]


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def read_yaml(name: str) -> Any:
    return yaml.safe_load(read(name))


@pytest.mark.parametrize("name", YAML_FILES)
def test_yaml_files_hold_mappings(name: str) -> None:
    assert isinstance(read_yaml(name), dict)


# ---- make


def make_targets() -> set[str]:
    return set(re.findall(r"^([a-z]+):", read("Makefile"), re.MULTILINE))


def called_targets(text: str) -> set[str]:
    """The targets of the `make` calls in a script, variables and flags aside."""
    calls = re.findall(r"^\s*(?:-\s+)?(?:run:\s*|entry:\s*)?make\s+(.+)$", text, re.MULTILINE)
    words = (shlex.split(call) for call in calls)
    return {word for call in words for word in call if re.fullmatch(r"[a-z]+", word)}


def test_make_offers_what_the_project_promises() -> None:
    assert make_targets() >= {"help", "setup", "serve", "test", "bench", "lint", "docs", "lock", "clean"}


@pytest.mark.parametrize("name", [".github/workflows/ci.yml", ".pre-commit-config.yaml"])
def test_automation_calls_only_targets_that_exist(name: str) -> None:
    called = called_targets(read(name))
    assert "lint" in called
    assert called <= make_targets()


def test_the_ci_script_runs_lint_and_then_the_tests() -> None:
    script = read(".ci/run")
    assert "set -euo pipefail" in script
    assert re.search(r"for target in lint test;", script)
    assert (ROOT / ".ci/run").stat().st_mode & 0o111


def test_the_workflow_runs_make_on_every_supported_version() -> None:
    job = read_yaml(".github/workflows/ci.yml")["jobs"]["check"]
    assert job["strategy"]["matrix"] == {
        "python": ["3.11", "3.12", "3.13"],
        "java": [str(version) for version in jars.JAVA_VERSIONS],
    }
    assert all(step["run"].startswith("make ") for step in job["steps"] if "run" in step)


def test_make_alone_lists_every_target() -> None:
    listing = subprocess.run(["make"], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60).stdout
    assert set(re.findall(r"^  make ([a-z]+) ", listing, re.MULTILINE)) == make_targets()


@pytest.mark.parametrize("script", ["deploy/setup/java.sh", "deploy/setup/venv.sh"])
def test_set_up_scripts_are_programs_that_stop_at_errors(script: str) -> None:
    assert (ROOT / script).stat().st_mode & 0o111
    assert "set -eu" in read(script)
    subprocess.run(["sh", "-n", str(ROOT / script)], check=True, timeout=60)


# ---- lock files


def locked(name: str) -> dict[str, str]:
    pins = re.findall(r"^([A-Za-z0-9._-]+)==([^ \\]+)", read(name), re.MULTILINE)
    return {canonicalize_name(package): version for package, version in pins}


def requirements(extra: str | None = None) -> list[Requirement]:
    project = tomllib.loads(read("pyproject.toml"))["project"]
    lines = project["dependencies"] if extra is None else project["optional-dependencies"][extra]
    return [Requirement(line) for line in lines]


@pytest.mark.parametrize(("lock", "extra"), [("requirements.lock", None), ("requirements-dev.lock", "dev")])
def test_locked_versions_satisfy_the_project(lock: str, extra: str | None) -> None:
    versions = locked(lock)
    wanted = requirements() + (requirements(extra) if extra else [])
    unfit = [str(req) for req in wanted if not req.specifier.contains(versions[canonicalize_name(req.name)])]
    assert unfit == []


def test_developing_uses_the_versions_that_run() -> None:
    assert locked("requirements.lock").items() <= locked("requirements-dev.lock").items()


@pytest.mark.parametrize("lock", ["requirements.lock", "requirements-dev.lock"])
def test_every_locked_package_has_a_hash_and_no_address(lock: str) -> None:
    text = read(lock)
    blocks = re.split(r"^(?=[a-z0-9])", text, flags=re.MULTILINE)
    bare = [block.split()[0] for block in blocks if "==" in block and "--hash=sha256:" not in block]
    assert bare == []
    assert "://" not in text


def test_the_build_backend_is_locked_as_the_project_names_it() -> None:
    [backend] = tomllib.loads(read("pyproject.toml"))["build-system"]["requires"]
    assert backend == f"hatchling=={locked('requirements-dev.lock')['hatchling']}"


# ---- the image


def dockerfile() -> list[tuple[str, str]]:
    """Instructions with their arguments, continued lines joined and comments dropped."""
    lines = [line for line in read("Dockerfile").splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n", " ", "\n".join(lines))
    return [(word, rest.strip()) for word, _, rest in (line.partition(" ") for line in joined.splitlines() if line)]


def arguments(instruction: str) -> list[str]:
    return [rest for word, rest in dockerfile() if word == instruction]


def stages() -> dict[str, str]:
    return {name: image for image, name in (rest.split(" AS ") for rest in arguments("FROM"))}


def is_ignored(path: str) -> bool:
    """Docker's rule: the last pattern that matches the path or a folder above it decides."""
    parts = Path(path).parts
    ignored = False
    for line in read(".dockerignore").splitlines():
        if not line or line.startswith("#"):
            continue
        pattern = line.removeprefix("!").strip("/")
        heads = ["/".join(parts[: count + 1]) for count in range(len(parts))]
        if any(fnmatch_path(head, pattern) for head in heads):
            ignored = not line.startswith("!")
    return ignored


def fnmatch_path(path: str, pattern: str) -> bool:
    """A star stays within one name; a leading `**/` stands for any folders."""
    if pattern.startswith("**/"):
        pattern = pattern.removeprefix("**/")
        path = "/".join(Path(path).parts[-len(Path(pattern).parts) :])
    names, globs = path.split("/"), pattern.split("/")
    return len(names) == len(globs) and all(fnmatch(name, glob) for name, glob in zip(names, globs, strict=True))


def test_every_instruction_is_one_that_docker_knows() -> None:
    building = {"FROM", "ENV", "RUN", "WORKDIR", "COPY", "LABEL", "USER"}
    running = {"VOLUME", "EXPOSE", "STOPSIGNAL", "HEALTHCHECK", "ENTRYPOINT", "CMD"}
    assert {word for word, _ in dockerfile()} == building | running


def test_the_image_is_built_and_run_in_separate_stages() -> None:
    assert list(stages()) == ["base", "build", "run"]
    assert stages()["run"] == stages()["build"] == "base"


def test_no_image_floats() -> None:
    services = read_yaml("docker-compose.yml")["services"].values()
    images = [image for image in stages().values() if image not in stages()] + [one["image"] for one in services]
    for image in images:
        assert re.search(r":v?\d+\.\d+\.\d+", image), f"{image} has no exact tag"


def test_what_the_image_copies_is_there_and_not_ignored() -> None:
    copied = [shlex.split(rest)[:-1] for rest in arguments("COPY") if not rest.startswith("--from=")]
    assert copied
    for source in (source for sources in copied for source in sources):
        assert (ROOT / source).exists(), f"{source} is missing"
        files = [ROOT / source] if (ROOT / source).is_file() else list((ROOT / source).rglob("*"))
        kept = [path for path in files if path.is_file() and "__pycache__" not in path.parts]
        hidden = [path.name for path in kept if is_ignored(path.relative_to(ROOT).as_posix())]
        assert kept
        assert hidden == []


def test_copies_between_stages_name_a_stage() -> None:
    named = re.findall(r"--from=(\S+)", read("Dockerfile"))
    assert named
    assert set(named) <= set(stages())


@pytest.mark.parametrize(
    "name", [".git/config", ".venv/bin/python", "warehouse/demo/t", "tests/conftest.py", "gateway/__pycache__/a.pyc"]
)
def test_the_build_does_not_see_what_the_image_is_not_made_of(name: str) -> None:
    assert is_ignored(name)


def test_the_container_runs_as_a_fixed_user_that_is_not_root() -> None:
    user = arguments("USER")[-1]
    uid, gid = (int(part) for part in user.split(":"))
    assert uid >= 1000
    assert f"useradd --uid {uid} --gid {gid} " in read("Dockerfile")
    later = [word for word, _ in dockerfile()[dockerfile().index(("USER", user)) :]]
    assert "RUN" not in later


def test_the_container_starts_drains_and_answers_as_the_gateway_does() -> None:
    assert json.loads(arguments("ENTRYPOINT")[-1]) == ["deltaport"]
    assert json.loads(arguments("CMD")[-1]) == ["serve", "--config", "/etc/deltaport/gateway.yaml"]
    assert arguments("STOPSIGNAL") == ["SIGTERM"]
    settings = load_settings(ROOT / "deploy/container/gateway.yaml", {})
    assert arguments("EXPOSE") == [f"{settings.flight.port} {settings.http.port}"]
    assert f"http://127.0.0.1:{settings.http.port}/livez" in arguments("HEALTHCHECK")[-1]


def test_the_health_check_is_a_program() -> None:
    _, _, command = arguments("HEALTHCHECK")[-1].partition("CMD ")
    python, flag, program = json.loads(command)
    assert (python, flag) == ("python", "-c")
    compile(program, "healthcheck", "exec")
    composed = read_yaml("docker-compose.yml")["services"]["gateway"]["healthcheck"]["test"]
    assert composed == ["CMD", python, flag, program]


def test_the_packages_of_the_image_come_with_hashes() -> None:
    commands = [command for rest in arguments("RUN") for command in rest.split("&&")]
    installs = [command for command in commands if re.search(r"\bpip\b.* install ", command)]
    assert installs
    assert all("--require-hashes" in command or "--no-index" in command for command in installs)


def test_the_image_installs_the_whole_build_backend_from_the_lock() -> None:
    listed = re.search(r"keep = /\^\(([^)]+)\)==/", read("Dockerfile"))
    assert listed is not None
    needed, unseen = set[str](), ["hatchling"]
    while unseen:
        needed.add(name := unseen.pop())
        for line in metadata.requires(name) or []:
            requirement = Requirement(line)
            applies = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
            if applies and requirement.name not in needed:
                unseen.append(requirement.name)
    assert set(listed[1].split("|")) == needed
    assert needed <= locked("requirements-dev.lock").keys()


def test_the_version_is_the_same_everywhere() -> None:
    assert f'org.opencontainers.image.version="{__version__}"' in read("Dockerfile")
    assert read_yaml("docker-compose.yml")["services"]["gateway"]["image"] == f"deltaport:{__version__}"
    assert __version__ in read("CHANGELOG.md")


# ---- compose and Prometheus


@pytest.fixture
def gateway() -> dict[str, Any]:
    service: dict[str, Any] = read_yaml("docker-compose.yml")["services"]["gateway"]
    return service


def test_the_compose_service_has_what_running_it_needs(gateway: dict[str, Any]) -> None:
    assert gateway["init"] is True
    assert gateway["read_only"] is True
    assert gateway.keys() >= {"build", "command", "healthcheck", "mem_limit", "environment", "volumes", "ports"}


def test_ports_are_published_on_this_machine_alone() -> None:
    for service in read_yaml("docker-compose.yml")["services"].values():
        assert all(port.startswith("127.0.0.1:") for port in service["ports"])


def test_the_grace_period_outlasts_the_drain(gateway: dict[str, Any]) -> None:
    settings = load_settings(ROOT / "deploy/container/gateway.yaml", {})
    assert int(gateway["stop_grace_period"].removesuffix("s")) > settings.flight.drain_seconds


def test_compose_refers_to_files_and_volumes_that_exist() -> None:
    compose = read_yaml("docker-compose.yml")
    for service in compose["services"].values():
        for mount in service["volumes"]:
            source = mount.split(":")[0]
            assert (ROOT / source).is_file() if source.startswith("./") else source in compose["volumes"]


def test_the_containers_settings_are_valid_and_reachable_from_outside(gateway: dict[str, Any]) -> None:
    settings = load_settings(ROOT / "deploy/container/gateway.yaml", gateway["environment"])
    assert (settings.flight.host, settings.http.host) == ("0.0.0.0", "0.0.0.0")  # noqa: S104  a container's own network
    published = {int(port.rpartition(":")[2]) for port in gateway["ports"]}
    assert published == {settings.flight.port, settings.http.port}


def test_the_warehouse_is_on_a_volume(gateway: dict[str, Any]) -> None:
    settings = load_settings(ROOT / "deploy/container/gateway.yaml", gateway["environment"])
    volumes = [mount.split(":")[1] for mount in gateway["volumes"]]
    assert settings.catalogs["lake"].warehouse in volumes
    assert set(json.loads(arguments("VOLUME")[-1])) <= set(volumes)


def test_the_heap_leaves_room_in_the_container(gateway: dict[str, Any]) -> None:
    heap, limit = gateway["environment"]["DELTAPORT_SPARK__DRIVER_MEMORY"], gateway["mem_limit"]
    assert 2 * int(heap.removesuffix("g")) <= int(limit.removesuffix("g"))


def test_prometheus_scrapes_the_gateway_and_loads_its_rules() -> None:
    prometheus = read_yaml("deploy/prometheus/prometheus.yml")
    [scrape] = prometheus["scrape_configs"]
    assert scrape["static_configs"] == [{"targets": ["gateway:9815"]}]
    mounted = {mount.split(":")[1] for mount in read_yaml("docker-compose.yml")["services"]["prometheus"]["volumes"]}
    assert {f"/etc/prometheus/{name}" for name in prometheus["rule_files"]} <= mounted


def test_alerts_speak_of_metrics_that_exist() -> None:
    metrics = read("gateway/telemetry/metrics.py")
    rules = [rule for group in read_yaml("deploy/prometheus/alerts.yml")["groups"] for rule in group["rules"]]
    assert rules
    for rule in rules:
        assert rule.keys() == {"alert", "expr", "for", "labels", "annotations"}
        assert all(f'"{name}"' in metrics for name in re.findall(r"deltaport_\w+", rule["expr"]))
