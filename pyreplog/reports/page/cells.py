"""Formats values of a report for people, with units by the names of columns; and the exact values."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import pyarrow as pa

from pyreplog.reports.report import ReportColumn

NOTHING = "-"
KEY_NAMES = ("key",)
"""Columns that hold the bytes of keys, in hex."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_BYTES = {
    "avg_size",
    "max_size",
    "lo",
    "hi",
    "p50",
    "p90",
    "p99",
    "max",
    "size",
    "bytes",
    "bytes_freed",
    "bytes_checked",
}
_SHARES = {"share", "top1_share"}
_RATES = {"in_rate", "out_rate"}
_LONGEST = 120


class Cell(NamedTuple):
    """A cell of a table.

    Attributes:
        text: the displayed text.
        exact: the whole value.
        order: sort key; None: behind all others.
    """

    text: str
    exact: str
    order: int | float | str | None


def cells(figure: ReportColumn, values: list[Any]) -> list[Cell]:
    """Return the cells of a column. values: from `python_values`."""
    make = _maker(figure)
    return [Cell(NOTHING, "no value, or not known", None) if value is None else make(value) for value in values]


def python_values(column: pa.ChunkedArray) -> list[Any]:
    """Return the values of a column. Times are microseconds since 1970, since datetime does not have all of them."""
    plain = column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column
    return list(plain.to_pylist())


def is_number(figure: ReportColumn) -> bool:
    """Return whether a column is aligned to the right."""
    kind = figure.type
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_timestamp(kind))


def _maker(figure: ReportColumn) -> Callable[[Any], Cell]:
    kind, name = figure.type, figure.name
    if pa.types.is_timestamp(kind):
        return lambda value: Cell(moment(value), f"{value:,} µs since 1970", value)
    if pa.types.is_boolean(kind):
        return lambda value: Cell("yes" if value else "no", str(value).lower(), int(value))
    if pa.types.is_binary(kind) or name in KEY_NAMES:
        return _key
    if name == "partition":
        return lambda value: Cell(str(value) if value >= 0 else NOTHING, f"{value}", value)
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        return _number(name)
    return _text


def _number(name: str) -> Callable[[Any], Cell]:
    show = shown_as(name)
    unit = " bytes" if show is amount else " s" if show is duration else ""
    return lambda value: Cell(show(value), f"{value:,}{unit}", value)


def shown_as(name: str) -> Callable[[float], str]:
    """Return the function that formats the numbers of a column with this name."""
    if name in _BYTES or name.endswith("_bytes"):
        return amount
    if name in _RATES:
        return lambda value: f"{number(value)}/s"
    if name in _SHARES:
        return share
    if name.endswith("_s"):
        return duration
    if name.endswith("_ms"):
        return lambda value: duration(value / 1000)
    return number


def _text(value: Any) -> Cell:
    text = printable(str(value))
    return Cell(shortened(text), text, text)


def _key(value: bytes | str) -> Cell:
    text = key_text(value)
    return Cell(shortened(text), f"hex {value.hex() if isinstance(value, bytes) else printable(value)}", text)


# ---- one value -------------------------------------------------------------------------------------------------


def key_text(value: bytes | str) -> str:
    """Return a key, given as bytes or hex, as text; in hex if it is no printable text."""
    if value in (b"", ""):
        return "(empty)"
    try:
        data = value if isinstance(value, bytes) else bytes.fromhex(value)
        text = data.decode()
    except ValueError:
        return value.hex() if isinstance(value, bytes) else printable(value)
    return text if text.isprintable() else data.hex()


def printable(text: str) -> str:
    """Return a text whose control characters, and others that HTML forbids, are escaped."""
    if text.isprintable():
        return text
    return "".join(
        repr(letter)[1:-1] if unicodedata.category(letter) in ("Cc", "Cs", "Cn", "Cf", "Zl", "Zp") else letter
        for letter in text
    )


def shortened(text: str) -> str:
    """Return the beginning of a long text."""
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


def number(value: float) -> str:
    """Format a number with three significant digits, or all digits before the point."""
    if isinstance(value, int) or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:,.3g}"


def share(value: float) -> str:
    """Format a fraction in percent."""
    return f"{value * 100:.3g} %"


def amount(count: float) -> str:
    """Format a number of bytes."""
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(count) < 1024:
            return f"{count:,.0f} {unit}" if unit == "B" else f"{count:,.1f} {unit}"
        count /= 1024
    return f"{count:,.1f} PiB"


def duration(seconds: float) -> str:
    """Format a duration by its two largest units."""
    sign, seconds = ("-", -seconds) if seconds < 0 else ("", seconds)
    if seconds < 1:
        return f"{sign}{seconds * 1000:.3g} ms"
    if seconds < 60:
        return f"{sign}{seconds:.3g} s"
    whole = round(seconds)
    for large, name, small, less in ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= large:
            remainder = whole % large // small
            return f"{sign}{whole // large:,} {name}" + (f" {remainder} {less}" if remainder else "")
    return f"{sign}{whole} s"


def moment(time_us: int) -> str:
    """Format a time in UTC, to the second; a time that datetime does not have as a number."""
    try:
        return (_EPOCH + timedelta(microseconds=time_us)).strftime("%Y-%m-%d %H:%M:%S")
    except OverflowError:
        return f"{time_us} µs"
