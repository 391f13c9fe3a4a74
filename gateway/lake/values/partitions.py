"""Values of partition columns: what survives the way through a folder's name and a text in the Delta log.

Delta keeps a partition's value as text, where an empty text means NULL and a date
beyond four digits of a year is read back by nobody. Such a row would be stored as
another one, or make its whole table unreadable, so it is refused before it is staged.
"""

from __future__ import annotations

from datetime import UTC, date, datetime

import pyarrow as pa
import pyarrow.compute as pc

from gateway.errors import RequestError

_NULL_FOLDER = "__HIVE_DEFAULT_PARTITION__"  # what Spark calls the folder of NULLs
_LONGEST_NAME = 255  # bytes of a folder's name on every usual file system
# What Spark writes as three characters in a folder's name.
_ESCAPED = frozenset([*map(chr, range(1, 32)), *"\"#%'*/:=?\\{[]^", "\x7f"])
_FIRST_DAY, _LAST_DAY = date(1, 1, 1), date(9999, 12, 31)
_FIRST_MOMENT, _LAST_MOMENT = datetime(1, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)


def check_partition_values(column: str, stored: pa.Array, *, in_folders: bool) -> None:
    """RequestError for a value that would not come back; `in_folders` where a folder is named after it."""
    kind = stored.type
    if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        _check_moments(column, stored)
    elif pa.types.is_string(kind) or pa.types.is_binary(kind):
        _check_texts(column, pc.unique(stored), in_folders=in_folders)


def _check_moments(column: str, stored: pa.Array) -> None:
    kind = stored.type
    first, last = (_FIRST_DAY, _LAST_DAY) if pa.types.is_date(kind) else (_FIRST_MOMENT, _LAST_MOMENT)
    width = pa.int32() if pa.types.is_date(kind) else pa.int64()
    if pa.types.is_timestamp(kind) and kind.tz is None:
        first, last = first.replace(tzinfo=None), last.replace(tzinfo=None)  # type: ignore[call-arg]
    bounds = pc.min_max(stored.cast(width))
    low, high = (pa.scalar(bound, kind).cast(width).as_py() for bound in (first, last))
    if bounds["min"].is_valid and (bounds["min"].as_py() < low or bounds["max"].as_py() > high):
        raise _refusal(column, "takes dates and times of the years 1 to 9999")


def _check_texts(column: str, values: pa.Array, *, in_folders: bool) -> None:
    for value in values.to_pylist():
        if value is None:
            continue
        try:
            text = value.decode() if isinstance(value, bytes) else value
        except UnicodeDecodeError as error:
            raise _refusal(column, "takes no bytes that are not UTF-8 text") from error
        if not text or text == _NULL_FOLDER:
            raise _refusal(column, f"cannot tell {text or 'an empty value'} from NULL")
        if in_folders and ("\0" in text or _name_bytes(column) + 1 + _name_bytes(text) > _LONGEST_NAME):
            raise _refusal(column, f"takes values that fit a folder's name of {_LONGEST_NAME} bytes, without NUL")


def _name_bytes(text: str) -> int:
    return sum(3 if character in _ESCAPED else len(character.encode()) for character in text)


def _refusal(column: str, rule: str) -> RequestError:
    return RequestError(f"column '{column}' is a partition column: it {rule}")
