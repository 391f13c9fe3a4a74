"""DuckDB's part of a SQL session: each statement becomes the calls that the Airport extension would make.

The statement is parsed by DuckDB and by sqlglot. An embedded DuckDB computes
what DuckDB computes itself (expressions, joins, the types of CREATE TABLE), the
test client does the rest. A statement that is not known here is an error.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

import duckdb
import pyarrow as pa
import sqlglot
from sqlglot import exp

from tests.airport import AirportClient, Transaction

# The extension itself cannot be had in a test; its functions are this session's own.
_NOT_RUN = ("INSTALL", "LOAD")


class SqlSession:
    """One DuckDB process. `run` gives the result as DuckDB prints it, or None."""

    def __init__(self, location: str) -> None:
        self._location = location
        self._duckdb = duckdb.connect()
        self._duckdb.execute("SET TimeZone = 'UTC'")  # texts that are compared with a TIMESTAMPTZ
        self._client = AirportClient(location, "lake")
        self._transaction: Transaction | None = None
        self._ran: dict[type[exp.Expression], Callable[[Any], str | None]] = {
            exp.Select: self._select,
            exp.Insert: self._insert,
            exp.Update: self._update,
            exp.Delete: self._delete,
            exp.Create: self._create,
            exp.Drop: self._drop,
            exp.Alter: self._alter,
            exp.Attach: self._attach,
            exp.Detach: lambda _: self._client.close(),
            exp.Describe: self._describe,
            exp.Show: lambda _: str(self._client.tables()),
            exp.Transaction: self._begin,
            exp.Commit: self._end,
            exp.Rollback: self._end,
            exp.Set: lambda tree: self._local(tree.sql("duckdb")),
        }

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client.close()
        self._duckdb.close()

    def statements(self, text: str) -> list[str]:
        """As DuckDB's own parser splits them; what it cannot parse is an error."""
        return [statement.query.strip().removesuffix(";") for statement in self._duckdb.extract_statements(text)]

    def run(self, statement: str) -> str | None:
        if statement.upper().startswith(_NOT_RUN):
            return None
        if call := re.match(r"CALL airport_action\('([^']+)', '(\w+)'\)", statement):
            assert call[1] == self._location
            return b"".join(self._client.action(call[2])).decode()
        tree = sqlglot.parse_one(statement, dialect="duckdb")
        return self._ran[type(tree)](tree)

    # Reading

    def _select(self, tree: exp.Select) -> str:
        return str(self._duckdb.sql(self._localize(tree).sql("duckdb")))

    def _localize(self, tree: exp.Expression) -> exp.Expression:
        """The statement with Arrow tables in place of those of the lake."""
        tree = tree.copy()
        for table in list(tree.find_all(exp.Table)):
            if table.catalog:
                table.replace(exp.to_table(self._register(self._scan(table, tree)), alias=table.alias_or_name))
            elif isinstance(table.this, exp.Anonymous):
                table.replace(exp.to_table(self._register(self._function(table.this))))
        return tree

    def _scan(self, table: exp.Table, tree: exp.Expression) -> pa.Table:
        assert table.catalog == "lake", table
        columns = None
        if any(column.name == "rowid" for column in tree.find_all(exp.Column)):
            columns = [*self._client.table(table.db, table.name).column_names, "rowid"]
        at = None
        if (when := table.args.get("when")) is not None:
            [(value,)] = self._duckdb.execute(f"SELECT ({when.expression.sql('duckdb')})::VARCHAR").fetchall()
            at = (when.args["kind"], value)
        return self._client.scan(table.db, table.name, columns, at=at, transaction=self._transaction).table

    def _function(self, call: exp.Anonymous) -> pa.Table:
        location, *rest = [argument.sql("duckdb") for argument in call.expressions]
        assert location == f"'{self._location}'"
        match call.name:
            case "airport_databases":
                return self._client.databases().table
            case "airport_flights":
                return pa.table({"rows": [info.total_records for info in self._client.flights()]})
            case "airport_take_flight":
                return self._client.take_flight(re.findall(r"'([^']+)'", rest[0])).table
        raise AssertionError(f"{call.name} is not known here")

    def _register(self, rows: pa.Table) -> str:
        name = f"scan_{len(self._duckdb.sql('SHOW TABLES').fetchall())}"
        self._duckdb.register(name, rows)
        return name

    def _computed(self, query: exp.Expression) -> pa.Table:
        return self._duckdb.sql(self._localize(query).sql("duckdb")).to_arrow_table()

    # Writing

    def _insert(self, tree: exp.Insert) -> str | None:
        target = tree.this
        names = [column.name for column in target.expressions] if isinstance(target, exp.Schema) else None
        table = target.this if isinstance(target, exp.Schema) else target
        source = tree.expression
        query = exp.select("*").from_(source.copy()) if isinstance(source, exp.Values) else source
        rows = self._computed(query)
        rows = rows.rename_columns(names or self._client.table(table.db, table.name).column_names)
        returning = tree.args.get("returning")
        changed = self._client.insert(
            table.db, table.name, rows, returning=returning is not None, transaction=self._transaction
        )
        assert changed.total_changed == rows.num_rows
        return self._returned(returning, changed.returned)

    def _update(self, tree: exp.Update) -> str | None:
        table, returning = tree.this, tree.args.get("returning")
        new = {each.this.name: each.expression for each in tree.expressions}
        # With RETURNING the client uploads every column.
        sets = self._client.table(table.db, table.name).column_names if returning else list(new)
        values = [exp.alias_(new.get(name, exp.column(name)).copy(), name, quoted=True) for name in sets]
        rows = self._computed(self._rows_below(tree, [*values, exp.column("rowid")]))
        changed = self._client.update(
            table.db, table.name, rows, sets=sets, returning=returning is not None, transaction=self._transaction
        )
        assert changed.total_changed == rows.num_rows > 0, "the example changes nothing"
        return self._returned(returning, changed.returned)

    def _delete(self, tree: exp.Delete) -> str | None:
        table, returning = tree.this, tree.args.get("returning")
        rowids = self._computed(self._rows_below(tree, [exp.column("rowid")])).column(0)
        changed = self._client.delete(
            table.db,
            table.name,
            rowids.combine_chunks(),
            returning=returning is not None,
            transaction=self._transaction,
        )
        assert changed.total_changed == len(rowids) > 0, "the example deletes nothing"
        return self._returned(returning, changed.returned)

    def _rows_below(self, tree: exp.Update | exp.Delete, columns: list[exp.Expression]) -> exp.Select:
        query = exp.select(*columns).from_(tree.this.copy())
        where = tree.args.get("where")
        return query if where is None else query.where(where.this.copy())

    def _returned(self, returning: exp.Returning | None, rows: pa.Table | None) -> str | None:
        if returning is None:
            return None
        assert rows is not None
        return str(self._duckdb.sql(exp.select(*returning.expressions).from_(self._register(rows)).sql("duckdb")))

    # DDL

    def _create(self, tree: exp.Create) -> None:
        if tree.kind == "SCHEMA":
            self._client.ddl.create_schema(tree.this.db)
        elif tree.expression is not None:
            self._client.ddl.create_table_as(tree.this.db, tree.this.name, self._computed(tree.expression))
        else:
            self._create_table(tree)

    def _create_table(self, tree: exp.Create) -> None:
        """The embedded DuckDB makes the table, too: its columns and constraints are what the client sends."""
        table = tree.find(exp.Table)
        assert table is not None
        local = tree.copy()
        local.find(exp.Table).replace(exp.to_table(table.name))
        self._local(local.sql("duckdb"))
        kinds: dict[str, list[Any]] = {"NOT NULL": [], "CHECK": [], "PRIMARY KEY": [], "UNIQUE": []}
        found = self._duckdb.execute(
            "SELECT constraint_type, constraint_column_names, constraint_column_indexes, expression"
            " FROM duckdb_constraints() WHERE table_name = ?",
            [table.name],
        )
        for kind, names, places, expression in found.fetchall():
            kinds[kind] += {"NOT NULL": places, "CHECK": [expression]}.get(kind, names)
        self._client.ddl.create_table(
            table.db,
            table.name,
            self._duckdb.table(table.name).to_arrow_table().schema,
            not_null=kinds["NOT NULL"],
            checks=kinds["CHECK"],
            primary_key_columns=kinds["PRIMARY KEY"],
            unique_columns=kinds["UNIQUE"],
        )

    def _drop(self, tree: exp.Drop) -> None:
        [table] = tree.find_all(exp.Table)
        assert tree.kind == "TABLE"
        self._client.ddl.drop_table(table.db, table.name)

    def _alter(self, tree: exp.Alter) -> None:
        schema, table, ddl = tree.this.db, tree.this.name, self._client.ddl
        [action] = tree.args["actions"]
        match action:
            case exp.ColumnDef():
                ddl.add_column(schema, table, self._field(action.name, action.kind))
            case exp.RenameColumn():
                ddl.rename_column(schema, table, action.this.name, action.args["to"].name)
            case exp.AlterColumn() if action.args.get("default") is not None:
                ddl.set_default(schema, table, action.name, action.args["default"].sql("duckdb"))
            case exp.AlterColumn() if action.args.get("dtype") is not None:
                using = action.args.get("using")
                field = self._field(action.name, action.args["dtype"])
                ddl.change_column_type(schema, table, field, using=using and using.sql("duckdb"))
            case _:
                raise AssertionError(f"{action.sql('duckdb')} is not known here")

    def _field(self, name: str, kind: exp.DataType) -> pa.Field:
        typed = self._duckdb.sql(f"SELECT NULL::{kind.sql('duckdb')} AS c").to_arrow_table()
        return pa.field(name, typed.schema.field(0).type)

    # The rest

    def _attach(self, tree: exp.Attach) -> None:
        assert f"LOCATION '{self._location}'" in tree.sql("duckdb")
        self._client.close()
        self._client = AirportClient(self._location, tree.this.name)

    def _describe(self, tree: exp.Describe) -> str:
        return str(self._client.describe(tree.this.db, tree.this.name))

    def _begin(self, _tree: exp.Transaction) -> None:
        self._transaction = self._client.begin()

    def _end(self, _tree: exp.Expression) -> None:
        self._transaction = None

    def _local(self, statement: str) -> None:
        self._duckdb.execute(statement)
