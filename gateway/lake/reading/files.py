"""A snapshot's data files, opened by the names that the log has for them."""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote

from gateway.lake.tables.snapshots import LogSnapshot
from gateway.lake.tables.storage import Folder


def open_data_file(snapshot: LogSnapshot, path: str) -> Any:
    """For reading; a path with a scheme or a leading slash is whole, since cloned tables use files of others."""
    if "://" in path or path.startswith("/"):
        folder, name = Folder.open(path.rsplit("/", 1)[0]), path.rsplit("/", 1)[1]
    else:
        folder, name = Folder.open(snapshot.uri), path
    return folder.open_file(unquote(name))  # paths in the log are URL-encoded
