"""Columns in other Arrow types than DuckDB's: whatever they come in, the same values are stored."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pytest

from gateway.lake.values.codec import encode
from gateway.lake.values.types import stored_form
from tests.lake.typed_values import KINDS, NESTED, Kind, array_of, exact
from tests.nasty.disguises import dictionary, large, run_ends, view

Dress = Callable[[pa.Array], pa.Array]


def cut_out(array: pa.Array) -> pa.Array:
    """The same values behind an offset that is no multiple of eight."""
    return pa.concat_arrays([array.slice(0, 1)] * 3 + [array, array.slice(0, 1)]).slice(3, len(array))


def plain_dictionary(array: pa.Array) -> pa.Array:
    return pa.DictionaryArray.from_arrays(pa.array(range(len(array)), pa.int8()), array)


DRESSES: dict[str, Dress] = {
    "dictionary": plain_dictionary,
    "dictionary with a null": dictionary,
    "slice of a dictionary": lambda array: plain_dictionary(pa.concat_arrays([array, array])).slice(len(array)),
    "run ends": run_ends,
    "slice of run ends": lambda array: run_ends(pa.concat_arrays([array, array])).slice(len(array)),
    "large": large,
    "view": view,
    "slice": cut_out,
}


def is_possible(kind: Kind, dress: str) -> bool:
    """Arrow builds no dictionaries of intervals, and no views or run ends of extension types."""
    plain = array_of(kind, []).type
    if dress in ("dictionary", "slice of a dictionary", "slice", "large"):
        return True
    if dress == "view" and pa.types.is_list(plain):
        return not isinstance(plain.value_type, pa.BaseExtensionType) and not pa.types.is_nested(plain.value_type)
    return not isinstance(plain, pa.BaseExtensionType) and plain != pa.month_day_nano_interval()


CASES = [
    pytest.param(kind, dress, id=f"{kind.text} as {dress}")
    for kind in [*KINDS, *NESTED]
    for dress in DRESSES
    if is_possible(kind, dress)
]


@pytest.mark.parametrize(("kind", "dress"), CASES)
def test_a_column_is_stored_the_same_whatever_it_comes_in(kind: Kind, dress: str) -> None:
    array = array_of(kind, [*kind.samples, None, *kind.samples])
    form = stored_form(kind.field("c"))
    dressed = DRESSES[dress](array)
    dressed.validate(full=True)
    assert len(dressed) == len(array)
    assert exact(encode(dressed, form)) == exact(encode(array, form))


@pytest.mark.parametrize("dress", ["dictionary", "run ends", "view", "slice"])
@pytest.mark.parametrize("kind", [pa.string(), pa.binary(), pa.int64(), pa.date32(), pa.decimal128(12, 2)], ids=str)
def test_so_are_the_parts_of_nested_columns(kind: pa.DataType, dress: str) -> None:
    values = pa.array([1, None, 2, 1, 3], pa.int32())
    parts = values.cast(pa.string()).cast(kind) if pa.types.is_binary(kind) else values.cast(kind)
    for build in (in_lists, in_structs, in_maps):
        plain = build(parts)
        form = stored_form(pa.field("c", plain.type))
        assert exact(encode(build(DRESSES[dress](parts)), form)) == exact(encode(plain, form)), build


def in_lists(parts: pa.Array) -> pa.Array:
    return pa.ListArray.from_arrays(pa.array([0, None, 2, 2, 5], pa.int32()), parts)


def in_structs(parts: pa.Array) -> pa.Array:
    return pa.StructArray.from_arrays([parts], ["f"], mask=pa.array([False, True, False, False, True]))


def in_maps(parts: pa.Array) -> pa.Array:
    keys = pa.array(["a", "b", "c", "d", "e"])
    return pa.MapArray.from_arrays(pa.array([0, 2, 5], pa.int32()), keys, parts)
