"""The same rows in other clothes: other batches, other Arrow types, other columns and fields.

A disguise takes the schema and the batches of an upload and gives others that
mean the same. Disguises that look at one batch at a time stay lazy, so that the
scan below an UPDATE still runs while its exchange is open. The row ids keep a
type that the contract allows for them.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Iterator

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as kinds

Batches = Iterable[pa.RecordBatch]
Disguise = Callable[[pa.Schema, Batches], tuple[pa.Schema, Batches]]

_PRIMES = (1, 2, 3, 5, 7, 11, 13)
_PAUSES = 10  # an upload of thousands of batches need not take minutes
_PAUSE_SECONDS = 0.02


def then(*disguises: Disguise) -> Disguise:
    """One over the other."""

    def disguise(schema: pa.Schema, batches: Batches) -> tuple[pa.Schema, Batches]:
        for each in disguises:
            schema, batches = each(schema, batches)
        return schema, batches

    return disguise


# Other batches.


def _rebatched(rebatch: Callable[[pa.Schema, Batches], Batches]) -> Disguise:
    return lambda schema, batches: (schema, rebatch(schema, batches))


def _among_empty_ones(schema: pa.Schema, batches: Batches) -> Iterator[pa.RecordBatch]:
    empty = empty_batch(schema)
    yield empty
    for batch in batches:
        yield batch
        yield empty
        yield empty


def _behind_empty_ones(schema: pa.Schema, batches: Batches) -> Iterator[pa.RecordBatch]:
    yield from [empty_batch(schema)] * 3
    yield from batches


def _one_row_each(_schema: pa.Schema, batches: Batches) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield from (batch.slice(place, 1) for place in range(batch.num_rows))


def _prime_sizes(schema: pa.Schema, batches: Batches) -> Iterator[pa.RecordBatch]:
    whole = _joined(schema, batches)
    start = 0
    for size in itertools.cycle(_PRIMES):
        if start >= whole.num_rows:
            return
        yield whole.slice(start, size)
        start += size


def _one_batch(schema: pa.Schema, batches: Batches) -> Iterator[pa.RecordBatch]:
    yield _joined(schema, batches)


def _with_pauses(_schema: pa.Schema, batches: Batches) -> Iterator[pa.RecordBatch]:
    for number, batch in enumerate(batches):
        if number < _PAUSES:
            time.sleep(_PAUSE_SECONDS)
        yield batch
    time.sleep(_PAUSE_SECONDS)


def _cut_out_of_larger_ones(schema: pa.Schema, batches: Batches) -> Iterator[pa.RecordBatch]:
    """Slices with an offset that is no multiple of eight, as bits are counted."""
    for batch in batches:
        if batch.num_rows == 0:
            yield batch
            continue
        around = batch.slice(0, 1)
        yield _joined(schema, [around, around, around, batch, around]).slice(3, batch.num_rows)


def empty_batch(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in schema], schema=schema)


def _joined(schema: pa.Schema, batches: Batches) -> pa.RecordBatch:
    whole = pa.Table.from_batches(batches, schema).combine_chunks().to_batches()
    return whole[0] if whole else empty_batch(schema)


# Other types.


def _retyped(convert: Callable[[pa.Array], pa.Array]) -> Disguise:
    """Every column but the row ids, converted one batch at a time."""

    def disguise(schema: pa.Schema, batches: Batches) -> tuple[pa.Schema, Batches]:
        def kind_of(field: pa.Field) -> pa.DataType:
            return field.type if _is_rowid(field) else convert(pa.nulls(0, field.type)).type

        other = pa.schema([pa.field(field.name, kind_of(field)) for field in schema])

        def converted(batch: pa.RecordBatch) -> pa.RecordBatch:
            arrays = [
                array if _is_rowid(field) else convert(array)
                for field, array in zip(schema, batch.columns, strict=True)
            ]
            return pa.RecordBatch.from_arrays(arrays, schema=other)

        return other, (converted(batch) for batch in batches)

    return disguise


def _is_rowid(field: pa.Field) -> bool:
    return field.name.lower() == "rowid"


def dictionary(array: pa.Array) -> pa.Array:
    """Each batch has a dictionary of its own, with values that nobody uses and a null among them."""
    if kinds.is_nested(array.type) or kinds.is_dictionary(array.type):
        return array
    encoded = array.dictionary_encode()
    values = pa.concat_arrays([pa.nulls(1, array.type), encoded.dictionary])
    places = pc.fill_null(pc.add(encoded.indices.cast(pa.int16()), pa.scalar(1, pa.int16())), 0)
    return pa.DictionaryArray.from_arrays(places, values)


def large(array: pa.Array) -> pa.Array:
    return array.cast(_large(array.type))


def _large(kind: pa.DataType) -> pa.DataType:
    if kinds.is_string(kind):
        return pa.large_string()
    if kinds.is_binary(kind):
        return pa.large_binary()
    if kinds.is_list(kind):
        return pa.large_list(_large(kind.value_type))
    if kinds.is_struct(kind):
        return pa.struct([field.with_type(_large(field.type)) for field in kind])
    return kind


def view(array: pa.Array) -> pa.Array:
    kind = array.type
    if kinds.is_string(kind):
        return array.cast(pa.string_view())
    if kinds.is_binary(kind):
        return array.cast(pa.binary_view())
    return _list_view(array) if kinds.is_list(kind) else array


def _list_view(array: pa.Array) -> pa.Array:
    """Backwards: the last list's values come first, which only views can do."""
    lists = array.to_pylist()
    lengths = [len(each or ()) for each in lists]
    offsets = [sum(lengths[place + 1 :]) for place in range(len(lists))]
    values = pa.array([value for each in reversed(lists) for value in each or ()], array.type.value_type)
    return pa.ListViewArray.from_arrays(
        pa.array(offsets, pa.int32()), pa.array(lengths, pa.int32()), view(values), mask=array.is_null()
    )


def run_ends(array: pa.Array) -> pa.Array:
    kind = array.type
    if kinds.is_nested(kind):
        return array
    # Arrow itself encodes few types; here each value is a run of its own.
    ends = pa.arange(1, len(array) + 1).cast(pa.int32())
    return pa.RunEndEncodedArray.from_arrays(ends, array)


def narrow(array: pa.Array) -> pa.Array:
    """Whole numbers of other widths; the values must be small enough for them."""
    kind = array.type
    if kinds.is_integer(kind) and kind != pa.int8():
        return array.cast(pa.int16())
    if kinds.is_decimal(kind):
        return array.cast(pa.decimal128(38, kind.scale))  # wider, for a change
    return array


def _row_ids_as(kind: pa.DataType) -> Disguise:
    def disguise(schema: pa.Schema, batches: Batches) -> tuple[pa.Schema, Batches]:
        other = pa.schema([field.with_type(kind) if _is_rowid(field) else field for field in schema])
        return other, (batch.cast(other) for batch in batches)

    return disguise


def nothing_but_nulls_as_null_type(schema: pa.Schema, batches: Batches) -> tuple[pa.Schema, Batches]:
    """Columns without a single value have no type either."""
    whole = _joined(schema, batches)
    blank = {name for name in schema.names if whole.num_rows and whole.column(name).null_count == whole.num_rows}
    fields = [pa.field(field.name, pa.null()) if field.name in blank else field for field in schema]
    arrays = [pa.nulls(whole.num_rows, field.type) if field.name in blank else whole.column(field.name)
              for field in fields]  # fmt: skip
    return pa.schema(fields), [pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))]


# Other columns and fields.


def _backwards(schema: pa.Schema, batches: Batches) -> tuple[pa.Schema, Batches]:
    """Columns in another order."""
    other = pa.schema(list(schema)[::-1])
    return other, (pa.RecordBatch.from_arrays(batch.columns[::-1], schema=other) for batch in batches)


def _in_capitals(schema: pa.Schema, batches: Batches) -> tuple[pa.Schema, Batches]:
    other = pa.schema([field if _is_rowid(field) else field.with_name(field.name.upper()) for field in schema])
    return other, (pa.RecordBatch.from_arrays(batch.columns, schema=other) for batch in batches)


def _with_metadata(schema: pa.Schema, batches: Batches) -> tuple[pa.Schema, Batches]:
    """Metadata that means nothing here, with bytes that are no text; a default that is nobody's."""
    told = {b"PARQUET:field_id": b"-1", b"\xff": b"\x00", b"default": b"1", b"comment": "é".encode()}
    other = pa.schema([field.with_metadata(told) for field in schema], metadata={b"pandas": b"{", b"\xfe": b"\xff"})
    return other, (batch.replace_schema_metadata(None).cast(other) for batch in batches)


def _never_null(schema: pa.Schema, batches: Batches) -> tuple[pa.Schema, Batches]:
    """Fields that say they hold no nulls, where that is true of these rows."""
    whole = _joined(schema, batches)
    fields = [field.with_nullable(whole.column(field.name).null_count > 0) for field in schema]
    other = pa.schema(fields)
    return other, [pa.RecordBatch.from_arrays(whole.columns, schema=other)]


_EMPTY = _rebatched(_among_empty_ones)
_PRIME = _rebatched(_prime_sizes)

DISGUISES: dict[str, Disguise] = {
    "empty batches": _EMPTY,
    "empty batches first": _rebatched(_behind_empty_ones),
    "one row each": _rebatched(_one_row_each),
    "prime sizes": _PRIME,
    "one batch": _rebatched(_one_batch),
    "pauses": _rebatched(_with_pauses),
    "slices": _rebatched(_cut_out_of_larger_ones),
    "dictionaries": _retyped(dictionary),
    "large types": _retyped(large),
    "views": _retyped(view),
    "run ends": _retyped(run_ends),
    "narrow numbers": then(_retyped(narrow), _row_ids_as(pa.int32())),
    "unsigned row ids": _row_ids_as(pa.uint64()),
    "null type": nothing_but_nulls_as_null_type,
    "other order": then(_backwards, _in_capitals),
    "metadata": _with_metadata,
    "never null": _never_null,
}
# Once more what is likely to meet, in one.
EVERYTHING = then(_PRIME, _retyped(dictionary), _backwards, _with_metadata, _EMPTY, _rebatched(_with_pauses))
DISGUISES["everything"] = EVERYTHING
