"""What must be finished after a crash: notes of changes that take more than one step.

A note is written before the first step and removed after the last. Whether a change
was done can be seen from its folders, so finishing a note again does no harm.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from gateway.lake.tables.storage import Folder

Place = tuple[str, ...]  # names below the warehouse's root
_SUFFIX = ".json"


@dataclass(frozen=True, slots=True)
class Moves:
    """Folders to be moved one after the other; what the last one moves has a place that is used only once."""

    steps: tuple[tuple[Place, Place], ...]


@dataclass(frozen=True, slots=True)
class PendingCreation:
    """A new table whose first rows are on their way; without them it goes again."""

    schema: str
    table: str
    identity: str


class Journal:
    """The notes of one warehouse, a file each. Thread-safe: no two notes share a file."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder

    def write(self, note: Moves | PendingCreation) -> str:
        name = f"{uuid.uuid4()}{_SUFFIX}"
        self._folder.create()
        # Hidden until it is whole: a note that was cut off is no note.
        self._folder.write_file(f".{name}", json.dumps(_encode(note)).encode())
        self._folder.rename_file(f".{name}", name)
        return name

    def remove(self, name: str) -> None:
        self._folder.remove_file(name)

    def notes(self) -> Iterator[tuple[str, Moves | PendingCreation]]:
        for name in sorted(self._folder.files()):
            if name.endswith(_SUFFIX) and not name.startswith("."):
                yield name, _decode(json.loads(self._folder.read_file(name)))

    def clear_halves(self) -> None:
        """After a crash: notes that were never whole, so nothing followed them."""
        for name in self._folder.files():
            if name.startswith("."):
                self._folder.remove_file(name)


def _encode(note: Moves | PendingCreation) -> dict[str, object]:
    match note:
        case Moves(steps):
            return {"moves": steps}
        case PendingCreation(schema, table, identity):
            return {"filling": [schema, table, identity]}


def _decode(document: dict[str, Any]) -> Moves | PendingCreation:
    if "filling" in document:
        return PendingCreation(*document["filling"])
    return Moves(tuple((tuple(start), tuple(goal)) for start, goal in document["moves"]))
