"""Casts of texts to numbers, truths, UUIDs, bytes and JSON, and back, in Spark SQL.

A spelling is accepted by its own pattern, not by what Spark happens to read. An
expression is NULL where a value does not fit, or where it is not sure that DuckDB
would give the same.
"""

from __future__ import annotations

from gateway.lake.casts.numbers import WHOLES, as_whole, decimal_of, from_whole
from gateway.lake.sql.quoting import text_literal

_LONGEST_NUMBER = 1_000
_SPACE = r"[ \t\n\x0B\f\r]*"
_DIGITS = r"\d+(?:_\d+)*"
_PLAIN = rf"[+-]?(?:{_DIGITS}(?:\.(?:{_DIGITS})?)?|\.{_DIGITS})"
_SHORT = r"[+-]?(?:\d{1,18}(?:\.\d{0,18})?|\.\d{1,18})[eE][+-]?\d{1,3}"
_ROUND = r"[+-]?\d{1,9}[eE]\+?\d{1,2}"
_FLOAT = rf"{_PLAIN}(?:[eE][+-]?\d{{1,4}})?"
_HEX = "[0-9a-fA-F]"
_UUID = rf"{_HEX}{{8}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{12}}|{_HEX}{{32}}"
# Digits that Java and DuckDB are bound to agree on, since no other so short number is the same value.
_SURE_DIGITS = {"double": 15, "float": 6}
_SMALLEST_NORMAL = {"double": "2.2250738585072014E-308D", "float": "1.17549435E-38D"}


_FILLING = text_literal(r"[_ \t\n\x0B\f\r]")
_BYTE_ESCAPE, _NO_BYTE = text_literal(rf"\\x{_HEX}{{2}}"), text_literal(r"[^\x00-\x5B\x5D-\x7F]")
_BYTE_TEXT, _BYTE_MARK = text_literal(r"(?s)\\x..|."), text_literal(r"\x")
_END_ZEROS, _POINT_ZERO, _ZERO_POINT = text_literal(r"(\.\d+?)0+$"), text_literal(r"\.0$"), text_literal(r"^(-?)0\.")
_ODD_JSON = text_literal(r"\\u[dD][89a-fA-F]|\x00|\uFEFF")


def text_to_number(value: str, new: str) -> str | None:
    if new == "boolean":
        folded = f"lower({value})"
        no = f"IF({folded} IN ('false', 'f', 'no', 'n', '0'), false, NULL)"
        return f"IF({folded} IN ('true', 't', 'yes', 'y', '1'), true, {no})"
    if new in ("float", "double"):
        return _text_to_float(value, new)
    target = decimal_of(new)
    if target is not None:
        made = f"try_cast({_bare(value)} AS {new})"
        return f"IF({_is_like(value, f'{_PLAIN}|{_ROUND}')}, {made}, NULL)"
    if new in WHOLES:
        made = from_whole(f"try_cast({_bare(value)} AS DECIMAL(38,0))", new)
        spelling = f"{_PLAIN}|{_SHORT}"
        if WHOLES[new].low == 0:
            spelling = f"(?!-)(?:{spelling})|-0+"  # not even what rounds to zero
        return f"IF({_is_like(value, spelling)}, {made}, NULL)"
    return None


def number_to_text(value: str, old: str) -> str | None:
    if old == "boolean":
        return f"CAST({value} AS STRING)"
    if old in WHOLES:
        return f"CAST({as_whole(value, old)} AS STRING)"
    exact = decimal_of(old)
    if exact is not None:
        text = f"CAST({value} AS STRING)"
        # Where no digit can stand before the point, DuckDB writes none.
        return f"regexp_replace({text}, {_ZERO_POINT}, '$1.')" if exact[0] == exact[1] else text
    return _float_to_text(value, old) if old in _SURE_DIGITS else None


def text_to_other(value: str, new: str) -> str | None:
    match new:
        case "json":
            return _checked_json(value)
        case "uuid":
            digits = f"lower(regexp_replace({value}, '[-{{}}]', ''))"
            parts = ", ".join(
                f"substr({digits}, {start}, {size})" for start, size in ((1, 8), (9, 4), (13, 4), (17, 4), (21, 12))
            )
            pattern = text_literal(rf"^(?:{_UUID}|\{{(?:{_UUID})\}})\z")
            return f"IF(regexp({value}, {pattern}), concat_ws('-', {parts}), NULL)"
        case "binary":
            pieces = f"regexp_extract_all({value}, {_BYTE_TEXT}, 0)"
            encoded = f"array_join(transform({pieces}, p -> IF(length(p) = 4, substr(p, 3), hex(p))), '')"
            # What is left without the escapes must stand for itself.
            left = f"regexp_replace({value}, {_BYTE_ESCAPE}, '')"
            return f"IF(regexp({left}, {_NO_BYTE}), NULL, unhex({encoded}))"
    return None


def other_to_text(value: str, old: str) -> str | None:
    match old:
        case "json" | "uuid":
            return value
        case "binary":
            pieces = f"regexp_extract_all(hex({value}), '..', 0)"
            # Printable ones stand for themselves, but for quotes and the backslash.
            is_plain = "p >= '20' AND p <= '7E' AND p NOT IN ('22', '27', '5C')"
            shown = f"IF({is_plain}, CAST(unhex(p) AS STRING), concat({_BYTE_MARK}, p))"
            return f"array_join(transform({pieces}, p -> {shown}), '')"
    return None


def _is_like(value: str, pattern: str) -> str:
    whole = text_literal(rf"^{_SPACE}(?:{pattern}){_SPACE}\z")
    # Java takes a stack frame for each repetition of a group, and long for numbers of a million digits.
    return f"length({value}) <= {_LONGEST_NUMBER} AND regexp({value}, {whole})"


def _bare(value: str) -> str:
    return f"regexp_replace({value}, {_FILLING}, '')"


def _text_to_float(value: str, new: str) -> str:
    name, bare = new.upper(), f"lower({_bare(value)})"
    words = (("infinity", "Infinity"), ("inf", "Infinity"), ("nan", "NaN"))
    special = " ".join(f"WHEN {word!r} THEN CAST({java!r} AS {name})" for word, java in _signed(words))
    number = f"CAST({_bare(value)} AS {name})"
    # A number beyond all floats is not surely an infinite one.
    finite = f"IF(abs({number}) < CAST('Infinity' AS {name}), {number}, NULL)"
    is_word = _is_like(value, "[+-]?(?i:inf|infinity)|[+]?(?i:nan)")
    return f"IF({_is_like(value, _FLOAT)}, {finite}, IF({is_word}, CASE {bare} {special} END, NULL))"


def _signed(words: tuple[tuple[str, str], ...]) -> list[tuple[str, str]]:
    return [
        (sign + word, ("-" if sign == "-" else "") + java)
        for word, java in words
        for sign in ("", "+", "-")
        if (sign, word) != ("-", "nan")
    ]


def _float_to_text(value: str, old: str) -> str:
    java = f"CAST({value} AS STRING)"
    mantissa = f"regexp_replace({java}, 'E.*', '')"
    digits = f"trim(BOTH '0' FROM regexp_replace({mantissa}, '[-.]', ''))"
    size = f"abs(CAST({java} AS DOUBLE))"
    is_sure = (
        f"{size} >= {_SMALLEST_NORMAL[old]} AND {size} < double('Infinity') AND length({digits}) <= {_SURE_DIGITS[old]}"
    )
    fixed = f"regexp_replace(CAST(CAST({java} AS DECIMAL(38,21)) AS STRING), {_END_ZEROS}, '$1')"
    exponent = f"CAST(regexp_extract({java}, 'E(.*)', 1) AS INT)"
    size_of_power = f"CAST(abs({exponent}) AS STRING)"
    two_digits = f"IF(length({size_of_power}) = 1, concat('0', {size_of_power}), {size_of_power})"
    power = f"concat(IF({exponent} < 0, '-', '+'), {two_digits})"
    scientific = f"concat(regexp_replace({mantissa}, {_POINT_ZERO}, ''), 'e', {power})"
    shown = f"IF({size} >= 1e-4D AND {size} < 1e16D, {fixed}, {scientific})"
    endless = f"IF({size} = double('Infinity'), IF({value} < 0, '-inf', 'inf'), IF({size} = 0D, {java}, NULL))"
    return f"IF({is_sure}, {shown}, {endless})"


def _checked_json(value: str) -> str:
    # Spark reads one value and ignores what follows it: within brackets and within braces nothing can follow unseen.
    wrapped = f"try_parse_json(concat('[', {value}, ']'))", f"try_parse_json(concat('{{\"a\":', {value}, '}}'))"
    is_read = " AND ".join(f"{each} IS NOT NULL" for each in wrapped)
    # Surrogates and NUL are read in more than one way.
    return f"IF({is_read} AND NOT regexp({value}, {_ODD_JSON}), {value}, NULL)"
