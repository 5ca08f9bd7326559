"""Output of commands: text for people, JSON for programs."""

from __future__ import annotations

import base64
import json
import re
import sys
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any, TextIO

from pyreplog._native.log.batch import RecordBatch
from pyreplog._native.log.record import NO_EVENT_TIME
from pyreplog.plurals import counted as counted
from pyreplog.plurals import plural as plural

_CONTROLS = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
_LINE_CONTROLS = re.compile("(?![\t\n])" + _CONTROLS.pattern)


def shown(text: str, *, lines: bool = False) -> str:
    """Return text for a terminal: control characters, and those that change the direction of text, are escaped.

    lines: keep tabs and line feeds.
    """
    return (_LINE_CONTROLS if lines else _CONTROLS).sub(_escaped, text)


def _escaped(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"


def say(*values: object, sep: str = " ", file: TextIO | None = None) -> None:
    """Print values on one line, each as `shown` returns it."""
    print(*(shown(str(value)) for value in values), sep=sep, file=file)


def json_text(value: Any, *, ascii_only: bool = False) -> str:
    """Return a JSON value on one line, without characters that move a cursor or change the direction of text."""
    text = json.dumps(value, ensure_ascii=ascii_only)
    return _CONTROLS.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def print_json(value: Any) -> None:
    """Print one JSON value on a line of its own.

    Characters that UTF-8 cannot represent are escaped, since the name of a file may be no text; all non-ASCII
    characters are if standard output has another encoding.
    """
    text = json_text(value)
    try:
        text.encode("utf-8" if sys.stdout.encoding.lower() in ("utf-8", "utf8") else "ascii")
    except UnicodeEncodeError:
        text = json_text(value, ascii_only=True)
    print(text, flush=True)


def raw_lines(lines: Iterable[bytes]) -> bytes:
    """Return values with a line feed after each; for a terminal, with their control characters escaped."""
    text = b"\n".join([*lines, b""])
    if sys.stdout.isatty():
        return shown(text.decode("utf-8", "backslashreplace"), lines=True).encode()
    return text


def print_fields(fields: Iterable[tuple[str, object]]) -> None:
    """Print names and values, aligned."""
    rows = [(name, str(value)) for name, value in fields]
    width = max((len(name) for name, _ in rows), default=0)
    for name, value in rows:
        say(f"{name:<{width}}  {value}".rstrip())


def amount(count: float) -> str:
    """Format a number of bytes."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def duration(seconds: float) -> str:
    """Format a duration."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, remainder = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{remainder:02}" if hours else f"{minutes}:{remainder:02}"


def moment(time_us: int) -> str:
    """Format a time in microseconds since 1970 as ISO 8601; as a number if datetime does not have it."""
    try:
        return datetime.fromtimestamp(time_us // 1_000_000, UTC).strftime("%Y-%m-%dT%H:%M:%S") + (
            f".{time_us % 1_000_000:06}Z"
        )
    except (OverflowError, ValueError, OSError):
        return f"{time_us} us"


def json_bytes(data: bytes) -> str | dict[str, str]:
    """Return bytes for JSON: as text if they are UTF-8, otherwise as {"base64": ...}."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


class RecordPrinter:
    """Prints records: raw (the value, or key TAB value, and a line feed), or as one JSON object on each line."""

    def __init__(self, *, as_json: bool, keys: bool) -> None:
        self._json, self._keys = as_json, keys
        self._out = sys.stdout.buffer

    def print(self, batch: RecordBatch) -> None:
        self._out.write(b"".join(self._json_lines(batch)) if self._json else self._raw_lines(batch))

    def flush(self) -> None:
        self._out.flush()

    def _raw_lines(self, batch: RecordBatch) -> bytes:
        lines = batch.values()
        if self._keys:
            lines = [(key or b"") + b"\t" + value for key, value in zip(batch.keys(), lines, strict=True)]
        return raw_lines(lines)

    def _json_lines(self, batch: RecordBatch) -> list[bytes]:
        columns = zip(
            batch.entry.tolist(), batch.position.tolist(), batch.timestamp.tolist(), batch.event_time.tolist(),
            batch.keys(), batch.values(), strict=True,
        )  # fmt: skip
        lines = []
        for entry, position, timestamp, event_time, key, value in columns:
            fields = {
                "entry": entry, "position": position, "timestamp": timestamp,
                "event_time": None if event_time == NO_EVENT_TIME else event_time,
                "key": None if key is None else json_bytes(key), "value": json_bytes(value),
            }  # fmt: skip
            lines.append(json_text(fields).encode() + b"\n")
        return lines
