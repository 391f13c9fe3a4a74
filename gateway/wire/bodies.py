"""How the bodies of a scan's batches are written: plain, or compressed where that pays.

A stream has every declared column, and those that nobody asked for are nulls, which
take as many bytes on the wire as values do. Compressed they take nearly none, and
the time for the real columns is less than that for moving the nulls.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from typing import Literal

import pyarrow as pa

Compression = Literal["auto", "none", "lz4", "zstd"]

# With fewer nulls than this, packing costs more than it saves: real values are looked at, too.
_NULLS_THAT_PAY = 0.65
# The quickest level: nulls shrink to a tenth, real values hardly, in two thirds of LZ4's time and half of it at the
# client's end. DuckDB's extension unpacks its catalog by the same codec of Arrow's, so every build of it has this one.
_QUICKLY = pa.Codec("zstd", compression_level=-1000)


def write_options(shape: pa.Schema, columns: AbstractSet[str], compression: Compression) -> pa.ipc.IpcWriteOptions:
    """For a stream of this shape in which only some columns have values."""
    if compression == "auto":
        pays = _share_of_nulls(shape, columns) >= _NULLS_THAT_PAY
        return pa.ipc.IpcWriteOptions(compression=_QUICKLY if pays else None)
    return pa.ipc.IpcWriteOptions(compression=None if compression == "none" else compression)


def value_bytes(kind: pa.DataType) -> int:
    """What a value takes on the wire; nulls take their width too."""
    if pa.types.is_fixed_size_list(kind):
        return int(kind.list_size) * value_bytes(kind.value_type)
    if kind.num_fields:
        return 8 + 4 * sum(value_bytes(kind.field(index).type) for index in range(kind.num_fields))
    try:
        return max(1, int(kind.bit_width) // 8)
    except ValueError:
        return 40  # texts and blobs: a view and a guess at the content


def _share_of_nulls(shape: pa.Schema, columns: AbstractSet[str]) -> float:
    real = sum(value_bytes(field.type) for field in shape if field.name in columns)
    nulls = sum(_null_bytes(field.type) for field in shape if field.name not in columns)
    return nulls / (real + nulls) if nulls else 0.0


def _null_bytes(kind: pa.DataType) -> int:
    if pa.types.is_string_view(kind) or pa.types.is_binary_view(kind):
        return 16
    if pa.types.is_list(kind) or pa.types.is_map(kind) or pa.types.is_string(kind) or pa.types.is_binary(kind):
        return 4
    if pa.types.is_struct(kind):
        return sum(_null_bytes(field.type) for field in kind)
    return value_bytes(kind)
