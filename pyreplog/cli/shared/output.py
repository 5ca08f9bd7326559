"""What the commands print: text for people, JSON for programs."""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from pyreplog._native.log.batch import RecordBatch
from pyreplog._native.log.record import NO_EVENT_TIME


def print_json(value: Any) -> None:
    """One JSON value on a line of its own.

    Escaped is what UTF-8 cannot hold (a file's name may be no text), and all that is not ASCII where standard output
    has another encoding.
    """
    text = json.dumps(value, ensure_ascii=False)
    try:
        text.encode("utf-8" if sys.stdout.encoding.lower() in ("utf-8", "utf8") else "ascii")
    except UnicodeEncodeError:
        text = json.dumps(value)
    print(text, flush=True)


def print_fields(fields: Iterable[tuple[str, object]]) -> None:
    """Names and values, aligned."""
    rows = [(name, str(value)) for name, value in fields]
    width = max((len(name) for name, _ in rows), default=0)
    for name, value in rows:
        print(f"{name:<{width}}  {value}".rstrip())


def counted(count: int, noun: str) -> str:
    """So many things of a kind: 1 entry, 2 entries."""
    return f"{count:,} {plural(count, noun)}"


def plural(count: int, noun: str) -> str:
    """The noun, for so many of its kind."""
    if count == 1:
        return noun
    return noun.removesuffix("y") + "ies" if noun.endswith("y") else noun + "s"


def amount(count: float) -> str:
    """A number of bytes for people."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def duration(seconds: float) -> str:
    """A span of time for people."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def moment(time_us: int) -> str:
    """A time in microseconds since the epoch, as ISO 8601; the number itself when no calendar has it."""
    try:
        return datetime.fromtimestamp(time_us // 1_000_000, UTC).strftime("%Y-%m-%dT%H:%M:%S") + (
            f".{time_us % 1_000_000:06}Z"
        )
    except (OverflowError, ValueError, OSError):
        return f"{time_us} us"


def json_bytes(data: bytes) -> str | dict[str, str]:
    """Bytes in JSON: as text when they are UTF-8, else as {"base64": ...}."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


class RecordPrinter:
    """Prints records: raw (the value, or key TAB value, and a line feed) or a JSON object per line."""

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
        return b"\n".join([*lines, b""])

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
            lines.append(json.dumps(fields, ensure_ascii=False).encode() + b"\n")
        return lines
