"""The actions on transactions: create, commit, rollback, status.

Two dialects share each of them: a msgpack map, or a JSON object (an empty body
counts as one). The answer comes in the encoding of the request, and so do errors.
"""

from __future__ import annotations

import json
from collections.abc import Hashable
from typing import Any

from gateway.access.policy import Action
from gateway.catalog.calls import Call
from gateway.catalog.changes import Footprint, Undoable, Undone, WriteContext
from gateway.catalog.guarding import SERVICE, seen_by
from gateway.catalog.registry import Catalogs
from gateway.errors import NotFoundError, PreconditionError, RequestError
from gateway.transactions.manager import TransactionManager
from gateway.transactions.records import TransactionStatus
from gateway.wire.json_dialect import decode_create_transaction, decode_transaction, is_json
from gateway.wire.messages import CatalogRequest
from gateway.wire.packing import Fields, pack


class TransactionActions:
    """Thread-safe: holds nothing of a call."""

    def __init__(self, catalogs: Catalogs, transactions: TransactionManager) -> None:
        self._catalogs = catalogs
        self._transactions = transactions

    def create(self, call: Call, body: bytes) -> bytes:
        if is_json(body):
            identity = self._transactions.begin(manual=not decode_create_transaction(body))
            return json.dumps({"status": "success", "transaction_id": identity}).encode()
        seen_by(call, self._catalogs).get(CatalogRequest.decode("create_transaction", body).catalog)
        # Without an id the DuckDB client goes on without transactions; an error would fail every query of it.
        return pack({"identifier": self._transactions.begin() if self._transactions.is_enabled else None})

    def commit(self, call: Call, body: bytes) -> bytes:
        identity = self._named("commit_transaction", call, body)
        state = self._transactions.commit(identity, self._whose(call))
        return _encode(body, {"status": "success", "transaction_id": identity, "state": state.value})

    def rollback(self, call: Call, body: bytes) -> bytes:
        identity = self._named("rollback_transaction", call, body, last=True)
        context = WriteContext(call)
        status = self._transactions.rollback(
            identity, lambda key, footprint: self._undo(identity, key, footprint, context), self._whose(call)
        )
        reply = {"status": "success", "transaction_id": identity, "state": status.state.value}
        return _encode(body, {**reply, "undone_by": _undone(status)})

    def status(self, call: Call, body: bytes) -> bytes:
        found = self._transactions.status(self._named("get_transaction_status", call, body), self._whose(call))
        reply: dict[str, Any] = {"status": "" if found is None else found.state.value, "exists": found is not None}
        if found is not None and found.undone:
            reply["undone_by"] = _undone(found)
        return _encode(body, reply)

    def _named(self, action: str, call: Call, body: bytes, *, last: bool = False) -> str:
        """The transaction that is meant: by the body, by a header, or as the last one in which the session wrote."""
        self._transactions.check_enabled()
        named = (
            decode_transaction(action, body) if is_json(body) else Fields.unpack(action, body).text("transaction_id")
        )
        named = named or call.transaction
        if named:
            return named
        if not last:
            raise RequestError(f"{action}: field 'transaction_id' is missing")
        written = self._transactions.last_written_by(call.owner)
        if written is None:
            raise NotFoundError(f"{action}: no transaction is remembered in which this session wrote")
        return written

    def _whose(self, call: Call) -> str | None:
        """Whose transactions a caller may look at and end: its own, an administrator everybody's."""
        return None if seen_by(call, self._catalogs).may(Action.ADMIN, SERVICE) else call.caller.name

    def _undo(self, transaction: str, key: Hashable, footprint: Footprint, context: WriteContext) -> Undone:
        assert isinstance(key, tuple)
        catalog, schema, name = key
        seen = seen_by(context.call, self._catalogs).get(catalog)
        # Taking back an INSERT deletes, taking back a DELETE inserts.
        for action in (Action.INSERT, Action.UPDATE, Action.DELETE):
            table = seen.table(schema, name, action)
        if not isinstance(table, Undoable):
            raise PreconditionError(f"table '{table.name}' cannot undo what was written into it")
        if footprint.identity is not None and footprint.identity != table.current().identity:
            raise NotFoundError(f"table '{table.name}' was replaced by another one")
        return table.undo(transaction, context, footprint)


def _undone(status: TransactionStatus) -> list[dict[str, Any]]:
    """Which commit of which table undid how many rows; tables by the names they are compared by."""
    reported = []
    for key, undone in status.undone.items():
        assert isinstance(key, tuple)
        reported.append({"table": ".".join(key[1:]), "version": undone.version, "rows": undone.rows})
    return reported


def _encode(body: bytes, reply: dict[str, Any]) -> bytes:
    return json.dumps(reply).encode() if is_json(body) else pack(reply)
