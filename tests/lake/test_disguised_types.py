"""Columns in other Arrow types than DuckDB's: whatever they come in, the same values are stored."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal

import pyarrow as pa
import pytest

from gateway.errors import RequestError
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


CUT = {
    "a time of day": (pa.array([86_400_000_000, 1], pa.timestamp("us")), pa.date32()),
    "digits": (pa.array([1.5, 1.129]), pa.decimal128(10, 2)),
    "digits of a float": (pa.array([1.129], pa.float32()), pa.decimal128(10, 2)),
    "all digits": (pa.array([1e-9]), pa.decimal128(10, 2)),
    "a decimal's digits": (pa.array([Decimal("1.129")]), pa.decimal128(10, 2)),
    "a unit": (pa.array([1], pa.duration("us")), pa.int64()),
    "a size": (pa.array([1e300]), pa.float32()),
    "nanoseconds": (pa.array([1], pa.timestamp("ns")), pa.timestamp("us")),
    "a whole number's digits": (pa.array([2**53 + 1]), pa.float64()),
    "a fraction": (pa.array([0.5]), pa.int64()),
}


@pytest.mark.parametrize("what", CUT)
def test_nothing_is_cut_off_or_rounded_away(what: str) -> None:
    array, kind = CUT[what]
    with pytest.raises(RequestError, match=r"column 'c': a value does not fit"):
        encode(array, stored_form(pa.field("c", kind)))


def test_what_loses_nothing_is_taken() -> None:
    hundredths = [number / 100 for number in range(-20_000, 20_000)]
    for kind in (pa.decimal128(10, 2), pa.decimal128(18, 4), pa.decimal128(38, 20)):
        stored = encode(pa.array([*hundredths, None]), stored_form(pa.field("c", kind)))
        assert [round(float(value), 2) for value in stored.to_pylist()[:-1]] == hundredths
    days = encode(pa.array([86_400, None, -86_400], pa.timestamp("s")), stored_form(pa.field("c", pa.date32())))
    assert days.cast(pa.int32()).to_pylist() == [1, None, -1]
