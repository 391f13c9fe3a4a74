"""Links and anchors lead somewhere, every block has a language, and the page of settings is up to date."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from deploy.docs import configuration
from gateway.ops.cli import app
from gateway.settings import load_settings
from tests.docs.pages import PAGES, ROOT, Block, all_blocks, blocks_of, read_page

LANGUAGES = {"sh", "sql", "python", "go", "yaml", "text"}


def prose_of(page: str) -> str:
    """A page without its fenced blocks."""
    return re.sub(r"^```.*?^```$", "", read_page(page), flags=re.MULTILINE | re.DOTALL)


def anchors_of(page: str) -> set[str]:
    """As GitHub makes them of headings."""
    headings = re.findall(r"^#+ (.+)$", prose_of(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_to_files_and_headings_that_exist(page: str) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`\n]*`", "", prose_of(page))):
        if target.startswith("https://"):
            continue
        path, _, anchor = target.partition("#")
        file = (ROOT / page).parent / path if path else ROOT / page
        assert file.is_file(), f"{page}: {target}"
        if anchor:
            assert anchor in anchors_of(file.resolve().relative_to(ROOT).as_posix()), f"{page}: {target}"


def test_every_page_can_be_reached_from_the_readme_and_from_the_site() -> None:
    menu = read_page("mkdocs.yml")
    for page in (page for page in PAGES if page.startswith("docs/")):
        assert f": {page.removeprefix('docs/')}\n" in menu
        assert page == "docs/index.md" or f"({page})" in read_page("README.md")


def test_every_block_says_its_language() -> None:
    assert [str(block) for block in all_blocks() if block.language not in LANGUAGES] == []


def build_site(folder: Path) -> subprocess.CompletedProcess[str]:
    """What `make docs` does, in a folder that holds mkdocs.yml and docs/. With --quiet, warnings would not count."""
    command = [sys.executable, "-m", "mkdocs", "build"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=False)


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    shutil.copy(ROOT / "mkdocs.yml", tmp_path)
    return tmp_path


def test_the_site_is_built(sources: Path) -> None:
    built = build_site(sources)
    assert built.returncode == 0, built.stderr
    assert (sources / "site" / "transactions.html").is_file()


@pytest.mark.parametrize("dead", ["nowhere.md", "writing.md#nowhere"])
def test_the_site_is_not_built_with_a_dead_link_or_anchor(sources: Path, dead: str) -> None:
    with (sources / "docs" / "index.md").open("a", encoding="utf-8") as index:
        index.write(f"\n[dead]({dead})\n")
    built = build_site(sources)
    assert built.returncode != 0
    assert "nowhere" in built.stderr


def test_the_page_of_settings_is_up_to_date() -> None:
    assert configuration.PAGE.read_text(encoding="utf-8") == configuration.page(), "run make docs"


def test_every_setting_is_named_on_a_page_as_it_is_called() -> None:
    known = set(re.findall(r"^\| `([a-z_.<>]+)`", read_page("docs/configuration.md"), re.MULTILINE))
    sections = {key.split(".")[0] for key in known}
    for page in PAGES:
        spans = re.findall(r"`([a-z]+\.[a-z_]+)(?:: [^`]*)?`", read_page(page))
        files = ("py", "md", "yml", "yaml", "toml", "lock")
        named = {span for span in spans if span.split(".")[0] in sections and span.split(".")[1] not in files}
        assert named <= known | {"spark.conf"}, page


@pytest.mark.parametrize("block", all_blocks("yaml"), ids=str)
def test_examples_of_settings_are_valid(block: Block, tmp_path: Path) -> None:
    file = tmp_path / "gateway.yaml"
    file.write_text(block.text, encoding="utf-8")
    assert load_settings(file, {}) != load_settings(None, {})


def test_the_readme_is_a_front_page() -> None:
    assert len(read_page("README.md").splitlines()) <= 140
    assert [block.text.strip() for block in blocks_of("README.md", "sh")] == ["make serve", "make test"]


def test_every_command_is_listed() -> None:
    listed = set(re.findall(r"^\| `deltaport ([a-z-]+)", read_page("docs/operating.md"), re.MULTILINE))
    commands = {one.name or one.callback.__name__ for one in app.registered_commands if one.callback}
    assert listed == commands | {group.name for group in app.registered_groups}


def test_modules_that_pages_name_exist() -> None:
    rooms = tuple(path.name for path in (ROOT / "gateway").iterdir() if path.is_dir())
    for page in PAGES:
        named = re.findall(rf"`((?:gateway/)?(?:{'|'.join(rooms)})/[\w/]*(?:\.py)?)`", prose_of(page))
        missing = [name for name in named if not (ROOT / "gateway" / name.removeprefix("gateway/")).exists()]
        assert missing == [], page
