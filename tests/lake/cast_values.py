"""Texts worth casting: extremes, halves, odd spellings, and what is no value at all; the same ones every time."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator

UUID = "b975e418-7a6d-4afd-b1a4-1f7174ce1805"


def _words(text: str) -> list[str]:
    return text.split()


_CLOCKS = _words(
    "00:00:00 23:59:59.999999 23:59:59.9999995 23:59:59.999999499 23:59:59.4999995 23:59:59.9995 10:20:30.123456789"
    " 10:20:30.1234565 10:20:30.0004999996 10:20:30.5 10:20:30.12 23:59:59.9999999 10:20 1:2:3 24:00:00 24:00:01"
    " 23:59:60 10 10:20:30. 00:12:43.145224193 23:47:16.854775807"
)
_DAYS = _words(
    "2024-02-29 2024-2-9 2024-02-30 2023-02-29 0001-01-01 0000-01-01 9999-12-31 1582-10-10 10000-01-01 infinity"
    " -infinity epoch 5881580-07-10 294247-01-10 2024/02/29 20240229 2024-02 2024 24-02-29 2024-02-29x 2024-02/29"
)
_ZONES = ("Z", "z", "+00", "+00:00", "+02", "-0230", "-02:30", " UTC", "+15:59", "+16", "+5", "+02:60", "-00:30")


def texts() -> list[str | None]:
    source = random.Random(7)  # noqa: S311 - the same values every time
    parts = (_wholes, _fractions, _floats, _odd_numbers, _moments)
    return [None, *dict.fromkeys([*(text for part in parts for text in part(source)), *_others()])]


def _digits(source: random.Random, most: int) -> str:
    return "".join(source.choice("0123456789459") for _ in range(source.randint(0, most)))


def _wholes(source: random.Random) -> Iterator[str]:
    for bits in (7, 8, 15, 16, 31, 32, 53, 63, 64, 127, 128):
        yield from (str(sign * 2**bits + more) for sign in (1, -1) for more in (-1, 0, 1))
    yield from ("0", "-0", "1", "-1", "007", "+5", str(10**38), str(10**38 - 1), str(-(10**38)))
    yield from (str(source.randint(-(10**size), 10**size)) for size in range(1, 39))


def _fractions(source: random.Random) -> Iterator[str]:
    yield from _words("0.5 1.5 2.5 -0.5 -1.5 -2.5 127.5 127.49 -128.5 -128.4 255.5 -0.4 1.005 -1.005 2.675 -0.0")
    yield from _words("9999.99 9999.994 9999.995 1.4999999999999999999999999")
    for _ in range(60):
        whole = source.randint(0, 10 ** source.randint(0, 20))
        yield f"{source.choice(['', '-', '+'])}{whole}.{_digits(source, 22)}"


def _floats(source: random.Random) -> Iterator[str]:
    yield from _words("inf -inf nan -nan Infinity 1.7976931348623157e308 5e-324 1e-308 1e400 1e15 1e16 0.0001 1e-5")
    yield from _words("1.5e-5 1e7 12345678.9 1e22 3.4028236e38 1e39 1e-45 0.1 0.30000000000000004 9007199254740993")
    yield from (" INF ", "18446744073709549568", "1.5e38", "9.5e37", "0.0009999")
    for _ in range(40):
        yield repr(struct.unpack("<d", source.randbytes(8))[0])
        yield f"{source.uniform(-1000, 1000):.3f}"
        yield f"{source.randint(1, 99999)}e{source.randint(-20, 20)}"
        yield repr(source.randint(-1000, 1000) / 2 ** source.randint(0, 4))


def _odd_numbers(source: random.Random) -> Iterator[str]:
    yield from ("", " 12 ", "\t12\n", "\v1", "\u00a01", "- 1", "1 2", "1\n\n", "\uff11")
    yield from _words("1e3 1E+3 1e-1 15e-1 14e-1 1.45e1 .5 5. . - ++1 1_000 1__0 _1 0x1f 0b11 1e 1d 1f 1.5.5 1,5 1e37")
    yield from _words("1e38 0e400 1e-400 1e1_0 12345e-4 1.2345678901234567890123e5 1.23455e4")
    for _ in range(60):
        mantissa = f"{source.choice(['', '-'])}{source.randint(0, 10 ** source.randint(0, 18))}.{_digits(source, 18)}"
        yield f"{mantissa}{source.choice('eE')}{source.choice(['', '+', '-'])}{source.randint(0, 40)}"


def _moments(source: random.Random) -> Iterator[str]:
    yield from (*_DAYS, *_CLOCKS, "010:20:30", "T10:20:30", "10:20 ", "0044-03-15 (BC)", " 2024-02-29 ")
    yield from ("2024-02-29 10:20 ", "2024-02-29  10:20:30", "2024-02-29t10:20:30")
    for day in ("2024-02-29", "1969-12-31", "0001-01-01", "9999-12-31", "2262-04-11", "1677-09-21"):
        yield from (f"{day}{source.choice([' ', 'T'])}{clock}" for clock in _CLOCKS)
    for zone in _ZONES:
        yield from (f"2024-02-29 10:20:30{zone}", f"2024-02-29T10:20:30.25{zone}", f"10:20:30{zone}")


def _others() -> Iterator[str]:
    yield from (
        UUID,
        UUID.upper(),
        UUID.replace("-", ""),
        f"{{{UUID}}}",
        f" {UUID}",
        f"{UUID}\n",
        f"{{{UUID}",
        UUID[:-1],
    )
    yield from ("\\x41" * 20_000, "1_" * 20_000 + "1", "a" * 100_000, "[" * 20_000, "1" * 100_000)
    yield from ("a\nb", "\x7f", "\\xff" * 50, "".join(chr(code) for code in range(1, 128) if code != ord("\\")))
    yield from _words(r"""a \xab \xAb\x00 \xZZ \ \\ é ' " \x1 😀""")
    yield from ('{"a": 1 }', " 1 ", "[1] x", "//x\n1", '1}, {"a":2', '"\x01"', "[1\n]", "\ufeff1")
    yield from _words(r"""null [1,] NaN "a "\ud800" "\ud83d\ude00" {'a':1} [] 01 {"a":1,"a":2} 1,2 1],[2 1,"b":2 1]""")
    yield from ("true", "T", "tRuE", "yes", "y", "no", "N", "on", "off", "f", "false", " true ", "2")
