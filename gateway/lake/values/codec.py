"""Values between what clients send and see and what Delta stores.

`encode` takes an uploaded column, in whatever form its client writes it, to the
stored type; `decode` takes a stored column to the declared type. Both work on whole
arrays: a column that is declared as it is stored costs a look at its type. Nothing
is rounded, cut or guessed: a value that does not fit is an error that names the
column.
"""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc

from gateway.catalog.names import fold
from gateway.errors import ConstraintError, PreconditionError, RequestError
from gateway.lake.values.leaves import OffsetLostError, decode_leaf, encode_leaf, plain
from gateway.lake.values.types import StoredForm

_Convert = Callable[[pa.Array, StoredForm], pa.Array]
_MISFITS = (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError, OverflowError, ValueError)


class _MissingError(Exception):
    """A null where the table's type has room for none."""


def encode(array: pa.Array, form: StoredForm) -> pa.Array:
    """An uploaded column as it is stored."""
    try:
        return _stored_type(_encode(array, form), form)
    except _MissingError as error:
        raise ConstraintError(f"NOT NULL constraint failed: column '{form.name}'") from error
    except OffsetLostError as error:
        raise RequestError(
            f"column '{form.name}': TIMETZ arrives without its offset; SET arrow_lossless_conversion = true first"
        ) from error
    except _MISFITS as error:
        raise RequestError(f"column '{form.name}': a value does not fit {_shown(form)}") from error


def decode(array: pa.Array, form: StoredForm, declared: pa.DataType) -> pa.Array:
    """A stored column, as an engine reads it, in the declared type."""
    if form.is_plain:
        return array if array.type == declared else array.cast(declared)
    try:
        decoded = _decode(array, form)
    except _MISFITS as error:
        raise PreconditionError(f"column '{form.name}' holds a value that is no {_shown(form)}") from error
    return decoded if decoded.type == declared else decoded.cast(declared)


def _encode(array: pa.Array, form: StoredForm) -> pa.Array:
    array = plain(array)
    if form.meaning is not None or not form.parts:
        return encode_leaf(array, form)
    if pa.types.is_null(array.type):
        return pa.nulls(len(array), form.arrow)
    return _rebuild(array, form, form.arrow, _encode)


def _decode(array: pa.Array, form: StoredForm) -> pa.Array:
    if form.is_plain:
        return array if array.type == form.declared.type else array.cast(form.declared.type)
    if form.meaning is not None:
        return decode_leaf(array, form)
    return _rebuild(array, form, form.declared.type, _decode)


def _stored_type(array: pa.Array, form: StoredForm) -> pa.Array:
    return array if array.type == form.arrow else array.cast(form.arrow)


def _rebuild(array: pa.Array, form: StoredForm, kind: pa.DataType, convert: _Convert) -> pa.Array:
    """A nested array of the given type, its parts converted."""
    types = pa.types
    if types.is_struct(kind) and types.is_struct(array.type):
        return _struct(array, form, kind, convert)
    if types.is_map(kind) and types.is_map(array.type):
        return _map(array, form, kind, convert)
    if form.arrow.num_fields == 1 and _is_list(kind) and _is_list(array.type):
        return _list(array, form, kind, convert)
    raise pa.ArrowTypeError("the shapes differ")


def _is_list(kind: pa.DataType) -> bool:
    types = pa.types
    tests = (types.is_list, types.is_large_list, types.is_fixed_size_list, types.is_list_view, types.is_large_list_view)
    return any(test(kind) for test in tests)


def _list(array: pa.Array, form: StoredForm, kind: pa.DataType, convert: _Convert) -> pa.Array:
    # Arrow's own cast of list views loses values (seen in version 26), so every list is put together anew.
    lengths = pc.list_value_length(array).cast(pa.int32())
    declared = form.declared.type
    if pa.types.is_fixed_size_list(declared) and not pc.all(pc.equal(lengths, declared.list_size), min_count=0).as_py():
        raise pa.ArrowInvalid("a list of another length")
    ends = pc.cumulative_sum_checked(pc.fill_null(lengths, 0))
    offsets = pa.concat_arrays([pa.array([0], pa.int32()), ends])
    is_empty = offsets[-1].as_py() == 0  # Arrow cannot flatten to nothing where extension types are inside
    values = convert(pa.nulls(0, array.type.value_type) if is_empty else array.flatten(), form.parts[0])
    _require_values(values, form.arrow.value_field)
    if pa.types.is_fixed_size_list(kind):
        return pa.FixedSizeListArray.from_arrays(_spread(values, array, kind.list_size), type=kind, mask=_mask(array))
    return pa.ListArray.from_arrays(offsets, values, type=kind, mask=_mask(array))


def _spread(values: pa.Array, lists: pa.Array, length: int) -> pa.Array:
    """The values of the lists that are there, with nulls in the places of the others.

    Arrow's own cast leaves whatever was in memory in those places.
    """
    if lists.null_count == 0:
        return values
    places = pc.divide(pa.arange(0, len(lists) * length), length)
    is_there = lists.is_valid().take(places)
    counted = pc.subtract(pc.cumulative_sum(is_there.cast(pa.int64())), 1)
    return values.take(pc.if_else(is_there, counted, pa.scalar(None, pa.int64())))


def _map(array: pa.Array, form: StoredForm, kind: pa.DataType, convert: _Convert) -> pa.Array:
    first, last = (array.offsets[place].as_py() for place in (0, -1))
    key, value = form.parts
    keys = convert(array.keys.slice(first, last - first), key)
    values = convert(array.items.slice(first, last - first), value)
    _require_values(values, form.arrow.item_field)
    return pa.MapArray.from_arrays(pc.subtract(array.offsets, first), keys, values, type=kind, mask=_mask(array))


def _struct(array: pa.Array, form: StoredForm, kind: pa.DataType, convert: _Convert) -> pa.Array:
    given = {fold(field.name): part for field, part in zip(array.type, array.flatten(), strict=True)}
    if not given.keys() <= {fold(part.name) for part in form.parts}:
        raise pa.ArrowTypeError("a field that the table does not have")
    parts = []
    for part, field in zip(form.parts, form.arrow, strict=True):
        values = given.get(fold(part.name))
        converted = convert(pa.nulls(len(array)) if values is None else values, part)
        if not field.nullable and converted.null_count > array.null_count:
            raise _MissingError
        parts.append(converted)
    return pa.StructArray.from_arrays(parts, fields=list(kind), mask=_mask(array))


def _mask(array: pa.Array) -> pa.Array | None:
    return array.is_null() if array.null_count else None


def _require_values(values: pa.Array, field: pa.Field) -> None:
    if not field.nullable and values.null_count:
        raise _MissingError


def _shown(form: StoredForm) -> str:
    return (str(form.declared.type) if form.meaning is None else form.meaning).upper()
