"""How large the batches of a stream are, as their readers see them."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from gateway.lake.reading.projection import decoded_bytes, pieces_of

TEXTS = st.lists(st.none() | st.text(max_size=30) | st.text(min_size=200, max_size=300), min_size=1, max_size=40)


@given(texts=TEXTS, skipped=st.integers(0, 5))
def test_a_batch_has_the_bytes_that_its_values_have(texts: list[str | None], skipped: int) -> None:
    blobs = [None if text is None else text.encode() for text in texts]
    array = pa.array(blobs, pa.binary_view()).slice(skipped)
    assume(len(array))
    seen = sum(len(blob) for blob in blobs[skipped:] if blob is not None)
    assert decoded_bytes(pa.record_batch([array], ["x"])) == 16 * len(array) + seen


@pytest.mark.parametrize("kind", [pa.string_view(), pa.string()])
def test_the_pieces_of_a_batch_are_its_rows_in_order(kind: pa.DataType) -> None:
    batch = pa.record_batch([pa.array([f"{number}" * 50 for number in range(1000)], kind)], ["x"])
    pieces = pieces_of(batch, 10_000)
    assert len(pieces) > 1
    assert pa.Table.from_batches(pieces).column("x").to_pylist() == batch.column("x").to_pylist()
    assert all(piece.nbytes < 40_000 for piece in pieces)


def test_a_row_out_of_a_large_batch_does_not_take_the_others_along() -> None:
    whole = pa.record_batch([pa.array(["x" * 1000] * 10_000, pa.string_view())], ["x"])
    (piece,) = pieces_of(whole.slice(5, 1), 1 << 20)
    assert piece.column("x").to_pylist() == ["x" * 1000]
    assert piece.nbytes < 100_000
