"""Folders of a file system, local or remote, seen only as far as a catalog needs.

One small class over Arrow's file systems, so that a local path, a mounted one
and an `hdfs://` URI take the same way. Whole folders are made, moved and removed
here, and nothing follows a link out of the folder it was asked to remove. A folder
that was opened with `fsync` has every change on the disk when the call returns,
where it is local; only a tree that is removed may come back after a power failure.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from pyarrow import fs

from gateway.errors import RequestError, UnavailableError


class Stamp(NamedTuple):
    """A file as a listing shows it: equal stamps, same file."""

    modified_ns: int
    size: int


class ClosedFolderError(UnavailableError):
    """A folder that this process may not read: not a passing trouble, and no reason to hide the others."""


class Folder:
    """A directory that may or may not exist. Immutable, thread-safe."""

    def __init__(self, filesystem: fs.FileSystem, path: str, uri: str, *, fsync: bool = False) -> None:
        self._filesystem = filesystem
        self._path = path
        self._fsync = fsync and isinstance(filesystem, fs.LocalFileSystem)
        self.uri = uri

    @classmethod
    def open(cls, location: str, *, fsync: bool = False) -> Folder:
        """A path or URI from the settings; relative paths start where the process runs."""
        if "://" not in location:
            path = str(Path(location).expanduser().resolve())
            return cls(fs.LocalFileSystem(), path, path, fsync=fsync)
        if location.startswith("file://"):
            return cls.open(fs.FileSystem.from_uri(location)[1], fsync=fsync)
        try:
            filesystem, path = fs.FileSystem.from_uri(location)
        except Exception as error:  # Arrow raises several classes for what it cannot reach
            raise RequestError(f"cannot open the location {location.split('://', 1)[0]}://…") from error
        return cls(filesystem, path.rstrip("/"), location.rstrip("/"))

    @property
    def is_local(self) -> bool:
        """On a local disk or a mount of this machine."""
        return isinstance(self._filesystem, fs.LocalFileSystem)

    def child(self, name: str) -> Folder:
        """A folder below this one; the name was checked by `catalog.names` or is one of Delta's own."""
        return Folder(self._filesystem, f"{self._path}/{name}", f"{self.uri}/{name}", fsync=self._fsync)

    def exists(self) -> bool:
        return bool(self._info([self._path])[0].type == fs.FileType.Directory)

    def folders(self) -> list[str]:
        """Names of the folders directly below, sorted; none where this folder does not exist."""
        return sorted(name for name, info in self._list() if info.type == fs.FileType.Directory)

    def folders_with(self, marker: str) -> list[str]:
        """Names of the folders directly below that have a folder `marker` in them, as far as we may look."""
        return [name for name in self.folders() if self.child(name)._may_have(marker)]

    def files(self) -> dict[str, Stamp]:
        """The files directly below, by name."""
        return {name: _stamp(info) for name, info in self._list() if info.is_file}

    def stamps(self, names: Sequence[str]) -> list[Stamp | None]:
        """The stamp of each file, None where it is missing."""
        infos = self._info([f"{self._path}/{name}" for name in names])
        return [_stamp(info) if info.is_file else None for info in infos]

    def open_file(self, name: str) -> fs.NativeFile:
        return self._filesystem.open_input_file(f"{self._path}/{name}")

    def create(self) -> None:
        with _changes("made"):
            missing = self._missing() if self._fsync else []
            self._filesystem.create_dir(self._path, recursive=True)
            for folder in missing:  # a folder is there for good when the one above it knows it
                _sync(folder.parent)

    def write_file(self, name: str, data: bytes) -> None:
        with _changes("written"):
            if self._fsync:
                _write_through(Path(self._path, name), data)
                return
            with self._filesystem.open_output_stream(f"{self._path}/{name}") as file:
                file.write(data)

    def read_file(self, name: str) -> bytes:
        with self.open_file(name) as file:
            data: bytes = file.read()
            return data

    def rename_file(self, name: str, new_name: str) -> None:
        with _changes("written"):
            self._filesystem.move(f"{self._path}/{name}", f"{self._path}/{new_name}")
            self._sync_parents(f"{self._path}/{name}")

    def remove_file(self, name: str) -> None:
        with _changes("removed"):
            self._filesystem.delete_file(f"{self._path}/{name}")
            self._sync_parents(f"{self._path}/{name}")

    def move_to(self, place: Folder) -> None:
        """Become another folder, in one stroke; the place must be free."""
        with _changes("moved"):
            self._filesystem.move(self._path, place._path)
            self._sync_parents(place._path, self._path)

    def remove_empty(self) -> bool:
        """Remove the folder unless something is in it; whether it is gone."""
        if not isinstance(self._filesystem, fs.LocalFileSystem):
            if any(True for _ in self._list()):
                return False
            with _changes("removed"):
                self._filesystem.delete_dir(self._path)
            return True
        with _changes("removed"):
            try:
                Path(self._path).rmdir()
                self._sync_parents(self._path)
            except FileNotFoundError:
                return True
            except OSError as error:
                if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                    return False
                raise
        return True

    def remove_tree(self) -> None:
        """Remove the folder and all in it; of a link, the link alone."""
        with _changes("removed"):
            if not isinstance(self._filesystem, fs.LocalFileSystem):
                self._filesystem.delete_dir(self._path)
            elif Path(self._path).is_symlink():
                Path(self._path).unlink()
            else:
                shutil.rmtree(self._path)  # removes links inside, not what they lead to

    def _missing(self) -> list[Path]:
        """The folders that making this one makes."""
        folder, missing = Path(self._path), []
        while not folder.exists():
            missing.append(folder)
            folder = folder.parent
        return missing

    def _sync_parents(self, *paths: str) -> None:
        if self._fsync:
            for folder in dict.fromkeys(Path(path).parent for path in paths):
                _sync(folder)

    def _may_have(self, marker: str) -> bool:
        try:
            return self.child(marker).exists()
        except ClosedFolderError:
            return False

    def _list(self) -> Iterator[tuple[str, fs.FileInfo]]:
        try:
            infos: list[fs.FileInfo] = self._filesystem.get_file_info(fs.FileSelector(self._path, allow_not_found=True))
        except OSError as error:
            raise _failure(error, "listed") from error
        for info in infos:
            # A name that is no UTF-8 cannot be a name of ours; Arrow cannot even say it.
            with contextlib.suppress(UnicodeDecodeError):
                yield info.base_name, info

    def _info(self, paths: list[str]) -> list[fs.FileInfo]:
        try:
            infos: list[fs.FileInfo] = self._filesystem.get_file_info(paths) if paths else []
        except OSError as error:
            raise _failure(error, "looked at") from error
        return infos


def _sync(path: Path) -> None:
    """Wait until a file's content, or the names in a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some mounts do not sync folders; Spark's log store says so in the log.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.ENOSYS) or not path.is_dir():
            raise
    finally:
        os.close(descriptor)


def _write_through(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    _sync(path.parent)


@contextlib.contextmanager
def _changes(what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise _failure(error, what) from error


def _stamp(info: fs.FileInfo) -> Stamp:
    return Stamp(info.mtime_ns or 0, info.size)


def _failure(error: OSError, what: str) -> UnavailableError:
    kind = ClosedFolderError if isinstance(error, PermissionError) else UnavailableError
    return kind(f"a folder of the warehouse cannot be {what}")
