"""Casts between days, times and moments, and to and from their texts, in Spark SQL.

What depends on the zone of somebody's session is not here: of moments with a zone
only texts that name their offset can be read. An expression is NULL where a value
does not fit, or where it is not sure that DuckDB would give the same.
"""

from __future__ import annotations

from gateway.lake.sql.quoting import text_literal

_SPACE = r"[ \t\n\x0B\f\r]"
_DAY_TEXT = r"\d{4}([-/])\d{1,2}\1\d{1,2}"
_CLOCK_TEXT = r"(?:[01]?\d|2[0-3]):[0-5]?\d(?::[0-5]?\d(?:\.\d{1,18})?)?"
_OFFSET = r"(?:Z|[+-]\d{2}(?::?\d{2})?)"
_NO_OFFSET = r"(?:Z|\+00(?::?00)?)"
_DAY_MICROS = 86_400_000_000
_FIRST_DAY, _LAST_DAY = -719_162, 2_932_896  # 0001-01-01 and 9999-12-31
_ENDLESS = (1 << 63) - 1  # DuckDB's infinite moments, in every unit
_ENDLESS_DAY = (1 << 31) - 1

# Patterns as Spark SQL reads them.
_DAY, _CLOCK = text_literal(_DAY_TEXT), text_literal(_CLOCK_TEXT)
_CLOCK_AFTER_DAY = text_literal(f"[ T]({_CLOCK_TEXT})")
_OFFSET_AT_END = text_literal(rf"({_OFFSET}){_SPACE}*\z")
_POINT_AND_REST, _AFTER_POINT = text_literal(r"\..*"), text_literal(r"\.(\d+)")

# How many microseconds a type's unit is; none for nanoseconds.
_MOMENTS = {"timestamp_s": 10**6, "timestamp_ms": 10**3, "timestamp_ntz": 1, "timestamp_ns": 0}
_CLOCKS = ("time", "time_ns")


def moment_to_moment(value: str, old: str, new: str) -> str | None:
    """None where there is no cast between the two, or the zone of a session would decide."""
    if old == "date" and new in _MOMENTS:
        return _from_day(value, new)
    if (old, new) == ("timestamp_ns", "timestamp_s"):
        return None  # as in DuckDB
    if old in _MOMENTS and new in _MOMENTS:
        return _between(value, old, new)
    if old in _MOMENTS and new == "date":
        return _day_of(value, old)
    if old in _MOMENTS and new == "time":
        counts = _micros(value, old)
        return f"IF({_is_finite(counts)}, pmod({counts}, {_DAY_MICROS}L), NULL)"
    if (old, new) == ("timestamp_ns", "time_ns"):
        return f"IF({_is_finite(value)}, pmod({value}, {_DAY_MICROS}000L), NULL)"
    if (old, new) == ("time", "time_ns"):
        return f"{value} * 1000L"
    if (old, new) == ("time_ns", "time"):
        return f"(({value} + 500L) DIV 1000L)"
    return None


def text_to_moment(value: str, new: str) -> str | None:
    if new == "date":
        day = f"try_cast({_day_part(value)} AS DATE)"
        # A time of day may follow; it has to be one.
        return f"IF({_is_like(value, f'{_DAY_TEXT}(?:[ T]{_CLOCK_TEXT})?')}, {day}, NULL)"
    if new in _MOMENTS:
        pattern = f"{_DAY_TEXT}(?:[ T]{_CLOCK_TEXT}{_NO_OFFSET}?{_SPACE}*)?"
        if new == "timestamp_ns":
            made = _nanos_of_text(value)
        else:
            made = _between(_moment_of_text(value), "timestamp_ntz", new)
        return f"IF({_is_like(value, pattern, after='')}, {made}, NULL)"
    if new == "timestamp":
        pattern = f"{_DAY_TEXT}[ T]{_CLOCK_TEXT}{_OFFSET}"
        offset = f"regexp_extract({value}, {_OFFSET_AT_END}, 1)"
        return f"IF({_is_like(value, pattern)}, {_instant(_moment_of_text(value), offset)}, NULL)"
    return _text_to_clock(value, new) if new in _CLOCKS else None


def _text_to_clock(value: str, new: str) -> str:
    clock = f"regexp_extract({value}, {_CLOCK}, 0)"
    pattern = r"(?:[01]?\d|2[0-3]):[0-5]?\d:[0-5]?\d(?:\.\d{1,18})?"
    seconds = f"unix_seconds(try_cast(concat('1970-01-01 ', {_without_fraction(clock)}) AS TIMESTAMP))"
    digits = 6 if new == "time" else 9
    made = f"({seconds} * {10**digits}L + {_fraction(clock, digits)})"
    last = f"IF({_is_like(value, '24:00:00')}, {86_400 * 10**digits}L, NULL)"
    return f"IF({_is_like(value, pattern)}, {made}, {last})"


def moment_to_text(value: str, old: str) -> str | None:
    if old == "date":
        return f"IF(unix_date({value}) BETWEEN {_FIRST_DAY} AND {_LAST_DAY}, CAST({value} AS STRING), NULL)"
    if old == "timestamp_ns":
        base = f"CAST({_moment(_floored(value, 10**9) + ' * 1000000L')} AS STRING)"
        text = _with_fraction(base, f"pmod({value}, 1000000000L)", 9)
        return f"IF({_is_finite(value)}, {text}, NULL)"
    if old in _MOMENTS:
        micros = _stored_micros(value)
        low, high = _FIRST_DAY * _DAY_MICROS, (_LAST_DAY + 1) * _DAY_MICROS
        return f"IF({micros} >= {low}L AND {micros} < {high}L, CAST({value} AS STRING), NULL)"
    if old in _CLOCKS:
        digits = 6 if old == "time" else 9
        second = f"{10**digits}L"
        base = f"substr(CAST({_moment(f'({value} DIV {second}) * 1000000L')} AS STRING), 12)"
        text = _with_fraction(base, f"({value} % {second})", digits)
        return f"IF({value} = {86_400 * 10**digits}L, '24:00:00', {text})"
    return None


# Counts


def _stored_micros(value: str) -> str:
    return f"unix_micros(CAST({value} AS TIMESTAMP))"


def _micros(value: str, old: str) -> str:
    return _rounded(value, 1_000) if old == "timestamp_ns" else _stored_micros(value)


def _moment(micros: str) -> str:
    return f"CAST(timestamp_micros({micros}) AS TIMESTAMP_NTZ)"


def _is_finite(counts: str) -> str:
    return f"{counts} NOT IN ({_ENDLESS}L, -{_ENDLESS}L)"


def _rounded(counts: str, unit: int) -> str:
    """In a coarser unit, halves away from zero; the infinite ones stay."""
    half = unit // 2
    divided = f"(({counts} + IF({counts} < 0, -{half}L, {half}L)) DIV {unit}L)"
    return f"IF({_is_finite(counts)}, {divided}, {counts})"


def _floored(counts: str, unit: int) -> str:
    return f"(({counts} DIV {unit}L) - IF({counts} % {unit}L < 0, 1L, 0L))"


def _from_day(value: str, new: str) -> str:
    days = f"unix_date({value})"
    endless = f"IF({days} = {_ENDLESS_DAY}, {_ENDLESS}L, IF({days} = -{_ENDLESS_DAY}, -{_ENDLESS}L, NULL))"
    per_day = _DAY_MICROS * (1_000 if new == "timestamp_ns" else 1)
    counts = f"coalesce({endless}, try_multiply(CAST({days} AS BIGINT), {per_day}L))"
    return counts if new == "timestamp_ns" else _moment(counts)


def _day_of(value: str, old: str) -> str:
    counts = _micros(value, old)
    endless = f"WHEN {_ENDLESS}L THEN {_ENDLESS_DAY} WHEN -{_ENDLESS}L THEN -{_ENDLESS_DAY}"
    return f"date_from_unix_date(CASE {counts} {endless} ELSE CAST({_floored(counts, _DAY_MICROS)} AS INT) END)"


def _between(value: str, old: str, new: str) -> str:
    if new == "timestamp_ns":
        counts = _stored_micros(value)
        return f"IF({_is_finite(counts)}, try_multiply({counts}, 1000L), {counts})"
    if old == "timestamp_ns":
        counts = _rounded(value, 1_000 * _MOMENTS[new])
        return _moment(_scaled(counts, _MOMENTS[new]))
    if _MOMENTS[new] <= _MOMENTS[old]:
        return value
    return _moment(_scaled(_rounded(_stored_micros(value), _MOMENTS[new]), _MOMENTS[new]))


def _scaled(counts: str, unit: int) -> str:
    return counts if unit == 1 else f"IF({_is_finite(counts)}, {counts} * {unit}L, {counts})"


# Texts


def _is_like(value: str, pattern: str, after: str = f"{_SPACE}*") -> str:
    whole = text_literal(rf"^{_SPACE}*(?:{pattern}){after}\z")
    return f"regexp({value}, {whole})"


def _day_part(value: str) -> str:
    return f"replace(regexp_extract({value}, {_DAY}, 0), '/', '-')"


def _clock_part(value: str) -> str:
    return f"regexp_extract({value}, {_CLOCK_AFTER_DAY}, 1)"


def _without_fraction(clock: str) -> str:
    return f"regexp_replace({clock}, {_POINT_AND_REST}, '')"


def _fraction(clock: str, digits: int) -> str:
    """The digits after the point as a count; those beyond are cut, as in DuckDB."""
    found = f"regexp_extract({clock}, {_AFTER_POINT}, 1)"
    return f"CAST(rpad({found}, {digits}, '0') AS BIGINT)"


def _seconds_of_text(value: str) -> str:
    clock = _without_fraction(_clock_part(value))
    return f"unix_seconds(try_cast(trim(concat({_day_part(value)}, ' ', {clock})) AS TIMESTAMP))"


def _moment_of_text(value: str) -> str:
    return _moment(f"({_seconds_of_text(value)} * 1000000L + {_fraction(_clock_part(value), 6)})")


def _nanos_of_text(value: str) -> str:
    counts = f"try_add(try_multiply({_seconds_of_text(value)}, 1000000000L), {_fraction(_clock_part(value), 9)})"
    return f"IF({_is_finite(counts)}, {counts}, NULL)"


def _instant(moment: str, offset: str) -> str:
    patterns = text_literal(r"^[+-](\d{2})"), text_literal(r"^[+-]\d{2}:?(\d{2})")
    parts = [f"try_cast(regexp_extract({offset}, {pattern}, 1) AS INT)" for pattern in patterns]
    hours, minutes = (f"coalesce({part}, 0)" for part in parts)
    seconds = f"IF({offset} LIKE '-%', -1, 1) * ({hours} * 3600 + {minutes} * 60)"
    fits = f"{hours} < 16 AND {minutes} < 60"
    return f"IF({fits}, timestamp_micros({_stored_micros(moment)} - {seconds} * 1000000L), NULL)"


def _with_fraction(base: str, count: str, digits: int) -> str:
    shown = f"rtrim('0', lpad(CAST({count} AS STRING), {digits}, '0'))"
    return f"concat({base}, IF({count} = 0, '', concat('.', {shown})))"
