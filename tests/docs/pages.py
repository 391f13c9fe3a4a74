"""The pages, and the fenced blocks in them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    *sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").glob("*.md")),
]


@dataclass(frozen=True)
class Block:
    """One fenced block. `output` is the block of text right behind it: what running it prints."""

    page: str
    line: int
    language: str
    text: str
    output: str | None = None

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def read_page(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def blocks_of(page: str, *languages: str) -> list[Block]:
    """The blocks of a page in these languages, or all of them."""
    found = list(_blocks(page))
    printed = {first: second.text for first, second in pairwise(found) if _is_output(page, first, second)}
    wanted = [block for block in found if not languages or block.language in languages]
    return [replace(block, output=printed.get(block)) for block in wanted]


def all_blocks(*languages: str) -> list[Block]:
    return [block for page in PAGES for block in blocks_of(page, *languages)]


def _blocks(page: str) -> Iterator[Block]:
    opened, inside = 0, list[str]()
    language = ""
    for number, line in enumerate(read_page(page).splitlines(), start=1):
        fence = re.fullmatch(r"```(\w*)", line)
        if opened and line == "```":
            yield Block(page, opened, language, "".join(f"{one}\n" for one in inside))
            opened = 0
        elif opened:
            inside.append(line)
        elif fence is not None:
            opened, inside, language = number, [], fence[1]
    assert not opened, f"{page}: the block of line {opened} is never closed"


def _is_output(page: str, first: Block, second: Block) -> bool:
    """Whether the second is a block of text, with nothing but blank lines before it."""
    end = first.line + first.text.count("\n") + 1
    between = read_page(page).splitlines()[end : second.line - 1]
    return second.language == "text" and not any(line.strip() for line in between)
