"""New values of one column, computed by DuckDB in Spark's Python workers.

The columns that the expression names go from the JVM to the workers as Arrow, are
decoded to what clients see, computed, and encoded as the new column is stored. All
other columns stay in the JVM, whatever they are.

Executors need the packages pyarrow and duckdb, of the versions that the gateway has;
this package travels with the function. A worker is a process of its own, so it can be
held to what an expression may take: DuckDB does not count all of its memory, and
stops only between two pieces of work.
"""

from __future__ import annotations

import faulthandler
import json
import re
import resource
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql import functions
from pyspark.sql.types import DataType, StructType

import gateway
from gateway.errors import GatewayError, RequestError
from gateway.lake.ddl.alterations import Rewrite
from gateway.lake.duck.expressions import SECONDS, EvaluationError, Evaluator
from gateway.lake.duck.sealed import MEMORY_BYTES
from gateway.lake.sql.quoting import quoted
from gateway.lake.values.codec import decode, encode
from gateway.lake.values.types import StoredForm

_FAILED = re.compile(rf"{EvaluationError.__name__}: (.+)")
_WORKER_BYTES = 2 * MEMORY_BYTES  # for DuckDB and for what it does not count


def new_values(rewrite: Rewrite) -> Any:
    """The new column of Spark's; RequestError where DuckDB cannot compute it."""
    if rewrite.expression.refusal is not None:
        raise RequestError(f"column '{rewrite.column}' cannot be changed: {rewrite.expression.refusal}")
    cloudpickle.register_pickle_by_value(gateway)
    compute = functions.arrow_udf(_computation(rewrite), _spark_type(rewrite.form.delta))
    return compute(*(functions.col(quoted(form.name)) for form in rewrite.inputs))


@contextmanager
def naming(column: str) -> Iterator[None]:
    """Errors of workers as errors of the request."""
    try:
        yield
    except Exception as error:  # py4j and Spark each raise their own
        found = _FAILED.search(str(error))
        if found is None:
            raise
        raise RequestError(f"column '{column}' {found[1]}; nothing was changed") from error


def _spark_type(delta: Any) -> DataType:
    # Arrow brings no metadata of fields, and Spark takes a type with some for another one.
    bare = json.loads(
        json.dumps(delta), object_hook=lambda part: part | ({"metadata": {}} if "metadata" in part else {})
    )
    field = {"name": "value", "type": bare, "nullable": True, "metadata": {}}
    return StructType.fromJson({"type": "struct", "fields": [field]})[0].dataType


def _computation(rewrite: Rewrite) -> Callable[[Iterator[pa.Array]], Iterator[pa.Array]]:
    expression, inputs, form = rewrite.expression, rewrite.inputs, rewrite.form
    schema = pa.schema([each.declared for each in inputs])

    def compute(batches: Iterator[pa.Array]) -> Iterator[pa.Array]:  # Spark goes by these types
        with _bounded_memory(), Evaluator(expression) as evaluator:
            for batch in batches:
                arrays = batch if isinstance(batch, tuple) else (batch,)  # a single column comes by itself
                with _ended_when_stuck():
                    values = evaluator.evaluate(pa.record_batch(_decoded(arrays, inputs), schema=schema))
                    stored = _encoded(values, form)
                yield stored

    return compute


def _decoded(arrays: Iterable[pa.Array], forms: Iterable[StoredForm]) -> list[pa.Array]:
    try:
        return [decode(array, form, form.declared.type) for array, form in zip(arrays, forms, strict=True)]
    except GatewayError as error:
        raise EvaluationError(f"cannot be computed: {error.message}") from None


def _encoded(values: pa.Array, form: StoredForm) -> pa.Array:
    try:
        return encode(values, form)
    except GatewayError:
        raise EvaluationError("has a value that does not fit") from None


@contextmanager
def _ended_when_stuck() -> Iterator[None]:
    faulthandler.dump_traceback_later(2 * SECONDS, exit=True)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()


@contextmanager
def _bounded_memory() -> Iterator[None]:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    before, most = resource.getrlimit(resource.RLIMIT_AS)
    limit = pages * resource.getpagesize() + _WORKER_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit if before < 0 else min(before, limit), most))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (before, most))
