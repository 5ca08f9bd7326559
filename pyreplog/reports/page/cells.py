"""Values of a report as people read them, with units by the names of columns; exact ones at hand; what orders them."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import pyarrow as pa

from pyreplog.reports.report import ReportColumn

NOTHING = "-"
KEY_NAMES = ("key",)
"""Columns that hold bytes of keys, as hex."""

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
    """text: what is shown. exact: the whole value. order: what it is sorted by; None: behind all others."""

    text: str
    exact: str
    order: int | float | str | None


def cells(figure: ReportColumn, values: list[Any]) -> list[Cell]:
    """A column of a report. values: as pyarrow gives them, times as microseconds since 1970."""
    make = _maker(figure)
    return [Cell(NOTHING, "none, or not known", None) if value is None else make(value) for value in values]


def python_values(column: pa.ChunkedArray) -> list[Any]:
    """As `cells` takes them: a time may be beyond what datetime has."""
    plain = column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column
    return list(plain.to_pylist())


def is_number(figure: ReportColumn) -> bool:
    """Whether it stands at the right."""
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
    shown = shown_as(name)
    unit = " bytes" if shown is amount else " s" if shown is duration else ""
    return lambda value: Cell(shown(value), f"{value:,}{unit}", value)


def shown_as(name: str) -> Callable[[float], str]:
    """How numbers of a column of this name are written."""
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
    """A key, of which bytes or hex are given: its text where it is one, else the hex. None of it is empty."""
    if value in (b"", ""):
        return "(empty)"
    try:
        data = value if isinstance(value, bytes) else bytes.fromhex(value)
        text = data.decode()
    except ValueError:
        return value.hex() if isinstance(value, bytes) else printable(value)
    return text if text.isprintable() else data.hex()


def printable(text: str) -> str:
    """Control characters, and others that no page may hold, in a form that can be seen."""
    if text.isprintable():
        return text
    return "".join(
        repr(one)[1:-1] if unicodedata.category(one) in ("Cc", "Cs", "Cn", "Cf", "Zl", "Zp") else one for one in text
    )


def shortened(text: str) -> str:
    """Its beginning, of one that is long."""
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


def number(value: float) -> str:
    """With as many decimals as say something."""
    if isinstance(value, int) or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:,.3g}"


def share(value: float) -> str:
    """Of a whole, in percent."""
    return f"{value * 100:.3g} %"


def amount(count: float) -> str:
    """A number of bytes."""
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(count) < 1024:
            return f"{count:,.0f} {unit}" if unit == "B" else f"{count:,.1f} {unit}"
        count /= 1024
    return f"{count:,.1f} PiB"


def duration(seconds: float) -> str:
    """A span of time, by its two largest units."""
    sign, seconds = ("-", -seconds) if seconds < 0 else ("", seconds)
    if seconds < 1:
        return f"{sign}{seconds * 1000:.3g} ms"
    if seconds < 60:
        return f"{sign}{seconds:.3g} s"
    whole = round(seconds)
    for large, name, small, less in ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= large:
            rest = whole % large // small
            return f"{sign}{whole // large:,} {name}" + (f" {rest} {less}" if rest else "")
    return f"{sign}{whole} s"


def moment(time_us: int) -> str:
    """A time, to the second, UTC; the number itself where no calendar has it."""
    try:
        return (_EPOCH + timedelta(microseconds=time_us)).strftime("%Y-%m-%d %H:%M:%S")
    except OverflowError:
        return f"{time_us} µs"
