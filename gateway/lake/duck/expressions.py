"""Expressions over a row, as clients write them: checked once by DuckDB, then evaluated by it batch by batch.

What may be written is decided on DuckDB's own parse tree: the statement that will be
run must be the same with the expression as with NULL in its place, so nothing can
break out of it; the expression holds no sub-query, parameter, star or window, and calls
nothing that gives other values when it is run again, since Spark may run a task twice.
What is left is bound on no rows, and must be computed row by row.

Values are of the types that are declared to clients. An evaluator may run in another process,
on a machine without this package: it is pickled by value, and needs duckdb and pyarrow.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa

from gateway.catalog.names import fold
from gateway.errors import RequestError
from gateway.lake.duck.sealed import MEMORY_BYTES, sealed_connection, version
from gateway.lake.sql.checks import MAX_TEXT

if TYPE_CHECKING:
    import duckdb

SECONDS = 60.0  # for one batch
_ROWS = "rows of the batch"
_CLASSES = {
    "BETWEEN", "CASE", "CAST", "COLLATE", "COLUMN_REF", "COMPARISON", "CONJUNCTION", "CONSTANT", "FUNCTION", "LAMBDA",
    "OPERATOR", "TYPE",
}  # fmt: skip
_OPERATORS = {"PROJECTION", "PYTHON_ARROW_SCAN"}
# What the catalog of functions does not have, or takes for constant.
_CLOCKS = {
    "current_time", "current_timestamp", "current_localtime", "current_localtimestamp", "localtime", "localtimestamp",
}  # fmt: skip
_HARMLESS = {"error"}  # the catalog has it as volatile, lest it be computed too early
_FUNCTIONS = """
    SELECT lower(function_name), bool_and(coalesce(stability, 'CONSISTENT') = 'CONSISTENT'), list(macro_definition)
    FROM duckdb_functions() WHERE list_contains($1, lower(function_name)) GROUP BY ALL"""

_Node = dict[str, Any]


class EvaluationError(Exception):
    """Why an expression has no value for a batch; names no value."""


@dataclass(frozen=True, slots=True)
class RowExpression:
    """An expression that may be run: `statement` computes it for the rows of a batch.

    `columns` are those that it names. `copied` is the column of which it is a mere copy, at most cast to the type of
    the result; None where it computes something. `refusal` says why DuckDB cannot compute it, None where it can.
    Only the DuckDB that checked it, by its `version`, is sure to find the same.
    """

    statement: str
    version: str
    columns: tuple[str, ...]
    copied: str | None
    refusal: str | None


def check_expression(text: str, columns: Sequence[pa.Field], result: pa.Field) -> RowExpression:
    """An expression over these columns whose value is cast to the result's type; RequestError where none may be run."""
    if len(text) > MAX_TEXT:
        raise RequestError(f"an expression is longer than {MAX_TEXT} characters")
    with closing(sealed_connection(only_binds=True)) as connection:
        statement, whole = (_statement(connection, each, result) for each in (text, "NULL"))
        tree = _expression_of(connection, statement, whole)
        known = {fold(column.name): column.name for column in columns}
        named = _check_names(connection, tree, known)
        copied = _copied(tree["child"], tree["type_expr"])
        refusal = _bind(connection, statement, columns)
    return RowExpression(statement, version(), named, known.get(fold(copied or "")), refusal)


class Evaluator:
    """Runs one expression on any number of batches; for one thread."""

    def __init__(self, expression: RowExpression, seconds: float = SECONDS) -> None:
        self._statement = expression.statement
        self._seconds = seconds
        if version() != expression.version:
            raise EvaluationError(f"was checked by DuckDB {expression.version}, and Spark's workers have {version()}")
        self._connection = sealed_connection()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._connection.close()

    def evaluate(self, batch: pa.RecordBatch) -> pa.Array:
        """The expression's value for each row; EvaluationError where one has none."""
        import duckdb

        timer = threading.Timer(self._seconds, self._connection.interrupt)
        timer.start()
        try:
            self._connection.register(_ROWS, batch)
            values = self._connection.sql(self._statement).to_arrow_table().column(0).combine_chunks()
        except duckdb.InterruptException:
            raise EvaluationError(f"cannot be computed within {self._seconds:g} s for a batch of rows") from None
        except (duckdb.OutOfMemoryException, MemoryError):
            raise EvaluationError(f"cannot be computed within {MEMORY_BYTES >> 20} MiB of memory") from None
        except (duckdb.Error, pa.ArrowException):  # whose text has the value
            raise EvaluationError("has a value that does not fit") from None
        finally:
            timer.cancel()
        assert len(values) == batch.num_rows
        return values


def _statement(connection: duckdb.DuckDBPyConnection, text: str, result: pa.Field) -> str:
    kind = connection.from_arrow(_no_rows([result])).types[0]
    return f'SELECT CAST(\n{text}\nAS {kind}) FROM "{_ROWS}"'  # noqa: S608 - what stands in it is judged by its parse tree


def _no_rows(fields: Iterable[pa.Field]) -> pa.RecordBatchReader:
    return pa.RecordBatchReader.from_batches(pa.schema(list(fields)), iter(()))


# What may be written


def _expression_of(connection: duckdb.DuckDBPyConnection, statement: str, template: str) -> _Node:
    """The cast around the expression; all else of the statement is as in the template."""
    try:
        found, wanted = (_parse(connection, each) for each in (statement, template))
        tree: _Node = found[0]["node"]["select_list"][0]
        wanted[0]["node"]["select_list"][0]["child"] = tree["child"]
    except (LookupError, TypeError, RecursionError) as error:
        raise RequestError("the expression must be one expression") from error
    if found != wanted:
        raise RequestError("the expression must be one expression")
    return tree


def _parse(connection: duckdb.DuckDBPyConnection, statement: str) -> list[_Node]:
    ((text,),) = connection.sql("SELECT json_serialize_sql($1)", params=[statement]).fetchall()
    found = json.loads(text, object_pairs_hook=_without_places)
    if found["error"]:
        raise RequestError(f"the expression cannot be read as SQL: {_first_line(found['error_message'])}")
    statements: list[_Node] = found["statements"]
    return statements


def _without_places(pairs: Iterable[tuple[str, Any]]) -> _Node:
    return {key: value for key, value in pairs if not key.startswith("query_location")}


def _check_names(connection: duckdb.DuckDBPyConnection, tree: _Node, known: dict[str, str]) -> tuple[str, ...]:
    """The columns that the expression names, in the table's spelling."""
    nodes = list(_nodes(tree))
    if any(node["class"] not in _CLASSES for node in nodes):
        raise RequestError(
            "the expression must be computed from one row's columns, without sub-queries, windows, parameters or stars"
        )
    names = _column_names(nodes)
    parameters = {name for node in nodes if node["class"] == "LAMBDA" for name in _column_names(_nodes(node["lhs"]))}
    functions = _called(connection, nodes, set(known))
    for name in names:
        if name not in known and name not in parameters | functions:
            raise RequestError(f"the expression names the column '{name[:60]}', which the table does not have")
    return tuple(known[name] for name in names if name in known)


def _called(connection: duckdb.DuckDBPyConnection, nodes: Sequence[_Node], columns: set[str]) -> set[str]:
    """The functions that are called, also by definitions of others; each gives the same at every run."""
    seen: set[str] = set()
    found: set[str] = set()
    left = list(nodes)
    while left:
        # DuckDB takes a few words for calls, `current_date` for one, where there is no such column.
        words = {*_column_names(left)} - columns
        new = ({fold(node["function_name"]) for node in left if node["class"] == "FUNCTION"} | words) - seen
        if clocks := new & _CLOCKS or {"age" for node in left if _is_age_of_today(node)}:
            raise _unstable(min(clocks))
        seen |= new
        left = []
        for name, is_stable, definitions in connection.sql(_FUNCTIONS, params=[sorted(new)]).fetchall():
            if not is_stable and name not in _HARMLESS:
                raise _unstable(name)
            found.add(name)
            for definition in filter(None, definitions):
                left += _nodes(_parse(connection, f"SELECT {definition}")[0]["node"]["select_list"])
    return found


def _is_age_of_today(node: _Node) -> bool:
    return node["class"] == "FUNCTION" and fold(node["function_name"]) == "age" and len(node["arguments"]) == 1


def _unstable(name: str) -> RequestError:
    return RequestError(f"the expression must give the same values whenever it is run, which {name} does not")


def _column_names(nodes: Iterable[_Node]) -> list[str]:
    """What stands where a column's name may stand: `s` of `s.a`."""
    return list(dict.fromkeys(fold(node["column_names"][0]) for node in nodes if node["class"] == "COLUMN_REF"))


def _nodes(tree: Any) -> Iterator[_Node]:
    left = [tree]
    while left:
        part = left.pop()
        if isinstance(part, dict):
            if "class" in part:
                yield part
            left += part.values()
        elif isinstance(part, list):
            left += part


def _copied(tree: _Node, kind: _Node) -> str | None:
    while tree["class"] == "CAST" and tree["type_expr"] == kind and not tree["try_cast"]:
        tree = tree["child"]
    is_column = tree["class"] == "COLUMN_REF" and len(tree["column_names"]) == 1
    return str(tree["column_names"][0]) if is_column else None


# What can be computed


def _bind(connection: duckdb.DuckDBPyConnection, statement: str, columns: Sequence[pa.Field]) -> str | None:
    """Why DuckDB cannot compute it; a RequestError where it is not computed row by row."""
    import duckdb

    connection.register(_ROWS, _no_rows(columns))
    try:
        ((_, plan),) = connection.sql(f"EXPLAIN (FORMAT json) {statement}").fetchall()
    except duckdb.Error as error:
        return _first_line(str(error))
    if not _operators(json.loads(plan)) <= _OPERATORS:
        raise RequestError("the expression must be computed row by row, without aggregates, sub-queries or unnest")
    return None


def _operators(plan: list[_Node]) -> set[str]:
    return {node["name"] for node in plan} | {name for node in plan for name in _operators(node["children"])}


def _first_line(text: str) -> str:
    line = text.partition("\n")[0]
    return line if len(line) <= 200 else f"{line[:200]}…"
