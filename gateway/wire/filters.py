"""Filters: the client's filter document, as a tree that tickets can carry.

The rooms above import from here; the tree, the parser of both DuckDB grammars
and the ticket's codec have a module each. Nothing here knows an engine.
"""

from gateway.wire.filter_codec import decode_conjuncts, encode_conjuncts
from gateway.wire.filter_parser import FilterLimits, Filters, parse_filters
from gateway.wire.filter_tree import Expression, columns_of

__all__ = [
    "Expression",
    "FilterLimits",
    "Filters",
    "columns_of",
    "decode_conjuncts",
    "encode_conjuncts",
    "parse_filters",
]
