"""Casts between numbers and truths, in Spark SQL.

Spark and DuckDB round in different ways, so every step that rounds is spelled out as
DuckDB does it. An expression is NULL where a value does not fit, or where it is not
sure that both would give the same.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_WIDE = 1 << 64
_EXACT_IN_DOUBLE = 1 << 53
_DIGITS_OF_LONG = 18
_TOO_LARGE_FOR_FLOAT = "3.4028235677973366e38D"  # rounds to infinity from here
_SIGN_BIT = "(-9223372036854775807L - 1L)"


@dataclass(frozen=True, slots=True)
class Whole:
    """A type of whole numbers: its range and what Spark stores it as."""

    low: int
    high: int
    stored: str


WHOLES: dict[str, Whole] = {
    "byte": Whole(-(1 << 7), (1 << 7) - 1, "TINYINT"),
    "short": Whole(-(1 << 15), (1 << 15) - 1, "SMALLINT"),
    "integer": Whole(-(1 << 31), (1 << 31) - 1, "INT"),
    "long": Whole(-(1 << 63), (1 << 63) - 1, "BIGINT"),
    "utinyint": Whole(0, (1 << 8) - 1, "SMALLINT"),
    "usmallint": Whole(0, (1 << 16) - 1, "INT"),
    "uinteger": Whole(0, (1 << 32) - 1, "BIGINT"),
    "ubigint": Whole(0, (1 << 64) - 1, "DECIMAL(20,0)"),
    "hugeint": Whole(-(1 << 127), (1 << 127) - 1, "BINARY"),
    "uhugeint": Whole(0, (1 << 128) - 1, "BINARY"),
}
_BYTES = ("hugeint", "uhugeint")
_FLOATS = ("float", "double")


def decimal_of(kind: str) -> tuple[int, int] | None:
    """Precision and scale, of a decimal."""
    found = re.fullmatch(r"decimal\((\d+),(\d+)\)", kind)
    return None if found is None else (int(found[1]), int(found[2]))


def number_to_number(value: str, old: str, new: str) -> str | None:
    """None where there is no cast between the two."""
    if not (_is_number(old) and _is_number(new)):
        return None
    if new == "boolean":
        zero = {"hugeint": f"X'80{'00' * 15}'", "uhugeint": f"X'{'00' * 16}'"}.get(old, "0")
        return f"({value} <> {zero})"
    if old == "boolean":
        return from_whole(f"CAST({value} AS INT)", new)
    if old in _FLOATS:
        return _from_float(value, new)
    if new in _FLOATS:
        return _to_float(value, old, new)
    if {old, new} <= WHOLES.keys() - set(_BYTES):
        return _between_wholes(value, WHOLES[old], WHOLES[new])
    exact, target = decimal_of(old), decimal_of(new)
    if exact is not None and target is not None:
        return f"try_cast({value} AS {new})"
    if exact is not None:
        return from_whole(f"round({value})" if exact[1] else value, new)
    return from_whole(as_whole(value, old), new)


def _between_wholes(value: str, old: Whole, new: Whole) -> str:
    made = f"CAST({value} AS {new.stored})"
    if new.low <= old.low and old.high <= new.high:
        return made
    return f"IF({value} BETWEEN {new.low} AND {new.high}, {made}, NULL)"


def as_whole(value: str, old: str) -> str:
    """A whole number as a decimal; NULL beyond 38 digits, which Spark cannot compute with."""
    if old not in _BYTES:
        return f"CAST({value} AS DECIMAL(38,0))"
    high, low = (f"hex(substr({value}, {start}, 8))" for start in (1, 9))
    if old == "hugeint":
        upper = f"CAST(CAST(conv({high}, 16, -10) AS BIGINT) ^ {_SIGN_BIT} AS DECIMAL(20,0))"
    else:
        upper = f"CAST(conv({high}, 16, 10) AS DECIMAL(20,0))"
    return _joined(upper, f"CAST(conv({low}, 16, 10) AS DECIMAL(20,0))")


def from_whole(whole: str, new: str) -> str:
    """An exact number without a fraction as any number."""
    number = f"CAST({whole} AS DECIMAL(38,0))"
    if new not in WHOLES:
        return f"try_cast({number} AS {new})"
    kind = WHOLES[new]
    if new in _BYTES:
        low = f"pmod({number}, {_WIDE}BD)"
        signed = f"IF({low} >= {_WIDE // 2}BD, {low} - {_WIDE}BD, {low})"
        high = f"(try_subtract({number}, {low}) DIV {_WIDE}BD)"
        if new == "hugeint":
            high = f"({high} ^ {_SIGN_BIT})"
        made = f"unhex(concat({_hex(high)}, {_hex(f'CAST({signed} AS BIGINT)')}))"
        return made if new == "hugeint" else f"IF({number} >= 0, {made}, NULL)"
    return f"IF({number} BETWEEN {kind.low} AND {kind.high}, CAST({number} AS {kind.stored}), NULL)"


def _is_number(kind: str) -> bool:
    return kind in WHOLES or kind in _FLOATS or kind == "boolean" or decimal_of(kind) is not None


def _hex(number: str) -> str:
    return f"lpad(hex({number}), 16, '0')"


def _joined(high: str, low: str) -> str:
    return f"try_add(try_multiply({high}, {_WIDE}BD), {low})"


# Floating point


def _from_float(value: str, new: str) -> str:
    if new == "double":
        return f"CAST({value} AS DOUBLE)"
    if new == "float":
        is_too_large = f"abs({value}) >= {_TOO_LARGE_FOR_FLOAT} AND abs({value}) < double('Infinity')"
        return f"IF({is_too_large}, NULL, CAST({value} AS FLOAT))"
    target = decimal_of(new)
    if target is None:
        return _whole_from_float(f"rint(CAST({value} AS DOUBLE))", new)
    precision, scale = target
    # DuckDB scales in floating point and rounds then, halves away from zero.
    scaled = f"(CAST({value} AS DOUBLE) * 1e{scale}D)"
    rounded = _round_away(scaled)
    whole = f"try_cast({_whole_of_double(rounded)} AS DECIMAL({precision},0))"
    return shifted(whole, precision, scale)


def _whole_from_float(rounded: str, new: str) -> str:
    kind = WHOLES[new]
    if new in (*_BYTES, "ubigint"):
        return from_whole(_whole_of_double(rounded), new)
    is_within = f"{rounded} >= {kind.low}D AND {rounded} < {kind.high + 1}D"
    return f"IF({is_within}, CAST({rounded} AS {kind.stored}), NULL)"


def _round_away(number: str) -> str:
    whole = f"rint({number})"
    is_half = f"abs({number} - {whole}) = 0.5D"
    away = f"({number} + IF({number} < 0D, -0.5D, 0.5D))"
    return f"IF({is_half}, {away}, {whole})"


def _whole_of_double(number: str) -> str:
    """A double without a fraction as a decimal, exactly: Spark's own cast takes only the digits that it prints."""
    upper = f"rint({number} / 4294967296e0D)"
    lower = f"({number} - {upper} * 4294967296e0D)"
    top = f"rint({upper} / 4294967296e0D)"
    middle = f"({upper} - {top} * 4294967296e0D)"
    fits = f"abs({number}) < 1e38D"
    parts = [f"CAST(CAST({part} AS BIGINT) AS DECIMAL(20,0))" for part in (top, middle, lower)]
    whole = _joined(parts[0], f"(CAST({parts[1]} * 4294967296BD AS DECIMAL(30,0)) + {parts[2]})")
    return f"IF({fits}, {whole}, NULL)"


def shifted(whole: str, precision: int, scale: int) -> str:
    """A whole number divided by a power of ten, in digits, since Spark's division would round."""
    if scale == 0:
        return f"CAST({whole} AS DECIMAL({precision},0))"
    # In texts, since Spark's `abs` rounds to 34 digits.
    digits = f"lpad(replace(CAST({whole} AS STRING), '-', ''), {precision + 1}, '0')"
    point = precision + 1 - scale
    text = f"concat(IF({whole} < 0, '-', ''), left({digits}, {point}), '.', right({digits}, {scale}))"
    return f"try_cast({text} AS DECIMAL({precision},{scale}))"


def _to_float(value: str, old: str, new: str) -> str | None:
    name = new.upper()
    exact = decimal_of(old)
    if exact is None:
        if old not in _BYTES:
            return f"CAST({value} AS {name})"
        number = as_whole(value, old)
        return f"IF({_is_exact(number)}, CAST({number} AS {name}), NULL)"
    scale = exact[1]
    # One division of two exact numbers; of larger ones DuckDB divides the part before the point and that after it.
    unscaled = f"CAST(replace(CAST({value} AS STRING), '.', '') AS DECIMAL(38,0))" if scale else value
    divided = f"CAST({unscaled} AS DOUBLE) / 1e{scale}D"
    before = f"try_cast({value} AS BIGINT)"
    after = f"CAST(right(CAST({value} AS STRING), {scale}) AS BIGINT)"
    split = f"CAST({before} AS DOUBLE) + IF({value} < 0, -1D, 1D) * CAST({after} AS DOUBLE) / 1e{scale}D"
    larger = f"IF({_is_exact(before)}, {split}, NULL)" if 0 < scale <= _DIGITS_OF_LONG else "NULL"
    return f"CAST(IF({_is_exact(unscaled)}, {divided}, {larger}) AS {name})"


def _is_exact(whole: str) -> str:
    return f"{whole} BETWEEN -{_EXACT_IN_DOUBLE} AND {_EXACT_IN_DOUBLE}"
