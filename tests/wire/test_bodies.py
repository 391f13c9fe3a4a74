from __future__ import annotations

import pyarrow as pa
import pytest

from gateway.wire.bodies import Compression, write_options

WIDE = pa.schema([(f"c{number}", pa.int64()) for number in range(20)] + [("text", pa.string_view())])


def sent_bytes(columns: frozenset[str], compression: Compression) -> int:
    """What a batch takes on the wire whose other columns are null."""
    rows = 10_000
    arrays = [
        pa.array([(row * 2_654_435_761) % 2**40 for row in range(rows)], field.type)
        if field.name in columns and pa.types.is_integer(field.type)
        else pa.nulls(rows, field.type)
        for field in WIDE
    ]
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, WIDE, options=write_options(WIDE, columns, compression)) as writer:
        writer.write_batch(pa.RecordBatch.from_arrays(arrays, schema=WIDE))
    return len(sink.getvalue())


def test_columns_that_nobody_asked_for_take_few_bytes() -> None:
    assert 5 * sent_bytes(frozenset({"c1"}), "auto") < sent_bytes(frozenset({"c1"}), "none")


def test_a_scan_of_most_columns_is_not_compressed() -> None:
    everything = frozenset(WIDE.names)
    assert sent_bytes(everything, "auto") == sent_bytes(everything, "none")


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
def test_a_codec_that_is_asked_for_is_used_whatever_the_columns(codec: Compression) -> None:
    assert sent_bytes(frozenset(WIDE.names), codec) < sent_bytes(frozenset(WIDE.names), "none")
