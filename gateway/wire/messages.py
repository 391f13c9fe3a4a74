"""One model per request: the fields of each action's body, typed and checked."""

from __future__ import annotations

from dataclasses import dataclass

from pyarrow import flight

from gateway.errors import RequestError
from gateway.wire.packing import Fields
from gateway.wire.tickets import ROWID_COLUMN_ID


@dataclass(frozen=True, slots=True)
class CatalogRequest:
    """`list_schemas`, `catalog_version`, `create_transaction`."""

    catalog: str

    @classmethod
    def decode(cls, action: str, body: bytes) -> CatalogRequest:
        return cls(Fields.unpack(action, body).text("catalog_name", ""))


@dataclass(frozen=True, slots=True)
class EndpointsRequest:
    descriptor: flight.FlightDescriptor
    filters: bytes
    column_ids: tuple[int, ...]
    at_unit: str
    at_value: str

    @classmethod
    def decode(cls, action: str, body: bytes) -> EndpointsRequest:
        fields = Fields.unpack(action, body)
        parameters = fields.map("parameters")
        return cls(
            descriptor=decode_descriptor(action, fields.binary("descriptor")),
            filters=parameters.binary("json_filters"),
            column_ids=parameters.whole_numbers("column_ids"),
            at_unit=parameters.text("at_unit", ""),
            at_value=parameters.text("at_value", ""),
        )

    @property
    def wants_rowid(self) -> bool:
        return ROWID_COLUMN_ID in self.column_ids

    @property
    def positions(self) -> frozenset[int]:
        """Positions among the columns other than the rowid; the client's list may repeat them."""
        return frozenset(self.column_ids) - {ROWID_COLUMN_ID}


@dataclass(frozen=True, slots=True)
class FlightInfoRequest:
    descriptor: flight.FlightDescriptor
    at_unit: str
    at_value: str

    @classmethod
    def decode(cls, action: str, body: bytes) -> FlightInfoRequest:
        fields = Fields.unpack(action, body)
        return cls(
            decode_descriptor(action, fields.binary("descriptor")),
            fields.text("at_unit", ""),
            fields.text("at_value", ""),
        )


@dataclass(frozen=True, slots=True)
class StatisticsRequest:
    descriptor: flight.FlightDescriptor
    column: str

    @classmethod
    def decode(cls, action: str, body: bytes) -> StatisticsRequest:
        fields = Fields.unpack(action, body)
        return cls(decode_descriptor(action, fields.binary("flight_descriptor")), fields.text("column_name"))


def decode_descriptor(action: str, raw: bytes) -> flight.FlightDescriptor:
    try:
        return flight.FlightDescriptor.deserialize(raw)
    except Exception as error:  # Arrow raises several classes on bad bytes
        raise RequestError(f"{action}: the descriptor cannot be read") from error
