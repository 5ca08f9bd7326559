"""FORMAT.md's tables of topics, on the wire and in ledgers, match the code."""

from __future__ import annotations

import re
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pyreplog
from pyreplog.cursors import cursor_pages as pages
from pyreplog.cursors import cursor_record as record
from pyreplog.geo.position_pages import TOPIC_BYTES_MAX
from pyreplog.metadata import snapshot_header
from pyreplog.origins import position_page, snapshot
from pyreplog.origins.origin import Gap, GapCause, OriginEntry
from pyreplog.topic.model import producer_snapshot as producersnapshot
from pyreplog.topic.model import system_cursor_record
from pyreplog.topic.model.wire import batches, fields, origins, protocol
from pyreplog.topic.model.wire.protocol import encode_request
from tests.topic.test_remote_protocol import REQUESTS

FORMAT = (Path(pyreplog.__file__).parent / "_native" / "FORMAT.md").read_text()
WIRE = "Topics over TCP (version 4; on the wire only)"
TYPES = {
    "u32": (fields.U32, fields.COUNT, origins.PARTITIONS),
    "i32": (fields.I32,),
    "i64": (fields.I64,),
    "flag": (fields.FLAG,),
    "offset": (fields.OFFSET,),
    "offset?": (fields.OFFSET_OR_NONE,),
    "name": (fields.NAME,),
    "text": (fields.TEXT,),
    "start": (fields.START,),
    "offsets": (fields.OFFSETS,),
    "ranges": (fields.RANGES,),
    "entries": (fields.ENTRIES,),
    "cluster": (origins.CLUSTER,),
    "gaps": (origins.GAPS,),
    "lists": (origins.LISTS,),
    "origin entries": (origins.ORIGIN_ENTRIES,),
    "messages": (origins.MESSAGES,),
}


def section(title: str) -> str:
    actual = FORMAT.partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    assert actual, title
    return actual


def types(cell: str) -> list[str]:
    return re.findall(r"`([a-z0-9 ]+\??)`", cell)


def documented() -> dict[int, tuple[str, list[str]]]:
    """Return for each kind its name and the types of its fields."""
    rows = re.findall(
        r"^\| (\d+)(?: \((?:[234]|feature `[a-z-]+`)\))? \| ([A-Z_]+) \| (.*?) \| .* \|$", section(WIRE), re.MULTILINE
    )
    return {int(kind): (name, types(cell)) for kind, name, cell in rows}


def shouted(kind: type[Any]) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", kind.__name__).upper()


def test_documented_requests_have_the_fields_of_the_code() -> None:
    documents = documented()
    assert {kind: (shouted(request), len(of.fields)) for kind, (request, of) in protocol._REQUESTS.items()} == {
        kind: (name, len(of)) for kind, (name, of) in documents.items()
    }
    for kind, (_, of) in protocol._REQUESTS.items():
        assert all(field in TYPES[name] for field, name in zip(of.fields, documents[kind][1], strict=True)), documents[
            kind
        ]


def test_documented_replies_have_the_fields_of_the_code() -> None:
    rows = dict(re.findall(r"^\| ([A-Z][A-Za-z]+)(?: \(2\))? \| (.*?) ?\|$", section(WIRE), re.MULTILINE))
    for kind, of in protocol._REPLIES.items():
        documents = types(rows["Moved" if kind is protocol.MovedTo else kind.__name__])
        if kind is protocol.Moved:
            documents = documents[:-1]  # only a MovedTo has the era
        assert all(field in TYPES[name] for field, name in zip(of.fields, documents, strict=True)), kind


class Twin:
    """A decoder of requests that was written from FORMAT.md alone."""

    def __init__(self, body: bytes) -> None:
        self.body, self.at = body, 0

    def take(self, layout: str) -> Any:
        fields = struct.unpack_from(">" + layout, self.body, self.at)
        self.at += struct.calcsize(">" + layout)
        return fields[0] if len(fields) == 1 else list(fields)

    def read(self, kind: str) -> Any:
        plain = {"u32": "I", "i32": "i", "flag": "B", "offset": "q", "offset?": "q", "i64": "q", "start": "Bq"}
        if kind in plain:
            return self.take(plain[kind])
        if kind in ("name", "text"):
            return self.take(f"{self.take('B' if kind == 'name' else 'I')}s").decode()
        if kind == "cluster":
            return self.take("16s")
        if kind == "gaps":
            return self.gaps(self.take("B"))
        if kind == "origin entries":
            return self.origin_entries()
        if kind == "lists":
            return self.lists(self.take("I"))
        if kind == "messages":
            return [self.take(f"{self.take('I')}s") for _ in range(self.take("B"))]
        count = self.take("I")
        if kind == "offsets":
            return [self.take("q") for _ in range(count)]
        if kind == "ranges":
            return [self.take("qq") for _ in range(count)]
        sizes = [self.take("I") for _ in range(count)]
        return [self.take(f"{size}s") for size in sizes]

    def gaps(self, count: int) -> tuple[Gap, ...]:
        rows = [self.take("qqB") for _ in range(count)]
        return tuple(Gap(start, end, GapCause(cause)) for start, end, cause in rows)

    def lists(self, runs: int) -> list[bytes | None]:
        lists: list[bytes | None] = []
        for _ in range(runs):
            count, size = self.take("IH")
            value = None if size == 65535 else self.take(f"{size}s")
            lists += [None if value is None else struct.pack("<BH", 6, size) + value] * count
        return lists

    def origin_entries(self) -> list[OriginEntry]:
        rows = [self.take("IIqqB") for _ in range(self.take("I"))]
        gaps = [self.gaps(row[4]) for row in rows]
        return [
            OriginEntry(self.take(f"{size}s"), messages, first, time_us, before)
            for (size, messages, first, time_us, _), before in zip(rows, gaps, strict=True)
        ]


def plain(value: Any) -> Any:
    """Return a value as the decoder of this test returns it."""
    return value.tolist() if isinstance(value, np.ndarray) else value


@pytest.mark.parametrize("request_", REQUESTS, ids=lambda request: type(request).__name__)
def test_requests_and_replies_have_their_documented_bytes(request_: Any) -> None:
    twin = Twin(b"".join(bytes(part) for part in encode_request(request_)))
    name, of = documented()[twin.take("B")]
    reads = [twin.read(kind) for kind in of]
    assert (name, twin.at) == (shouted(type(request_)), len(twin.body))
    for value, read, kind in zip(request_, reads, of, strict=True):
        if kind != "start":
            assert plain(value) == read
        elif isinstance(value, str):
            assert read == [["earliest", "latest"].index(value), 0]
        else:
            assert read == ([2, value] if isinstance(value, int) else [3, round(value.timestamp() * 1e6)])


def test_codes_and_limits_of_the_wire() -> None:
    text = section(WIRE)
    assert f"{protocol.OK} OK, {protocol.ERROR} ERROR, {protocol.STALE} STALE" in text
    assert f"`{batches._HEAD.format}`" in text
    for name, most in (
        ("text", fields.TEXT_BYTES_MAX),
        ("offsets", fields.OFFSETS_MAX),
        ("entries", fields.ENTRIES_MAX),
    ):
        (row,) = re.findall(rf"^\| `{name}` \| (.*) \|$", text, re.MULTILINE)
        assert f"{most:,}".replace(",", " ") in row


@pytest.mark.parametrize(
    ("title", "layout", "fixed"),
    [
        ("Producer snapshot", snapshot_header._HEADER, "offset"),
        ("Producer snapshot", producersnapshot._PRODUCER, "offset"),
        ("Origins snapshot", snapshot_header._HEADER, "offset"),
        ("Origins snapshot", snapshot._ORIGIN, "offset"),
        ("Position page", position_page._HEADER, "offset"),
        ("Position page", position_page._ORIGIN, "offset"),
        ("Cursor ledgers", pages._HEADER, "offset"),
        ("Cursor ledgers", pages._PART, "offset"),
        ("Cursor record", record._HEAD, "offset"),
        ("System cursor record", system_cursor_record._HEAD, "offset"),
    ],
)
def test_offsets_and_sizes_in_format_tables_add_up(title: str, layout: struct.Struct, fixed: str) -> None:
    text = section(title).partition(f"`{layout.format}`")[2]
    if layout is pages._PART:  # the first table is preceded by the names of both layouts
        text = section(title).partition("\nPart, ")[2]
    table = text.partition(f"| {fixed} |")[2].partition("\n\n")[0]
    rows = [(int(at), int(size)) for at, size in re.findall(r"^\| (\d+) \| (\d+) \|", table, re.MULTILINE)]
    ends = [at + size for at, size in rows]
    assert ends == [*[at for at, _ in rows[1:]], layout.size]


def test_constants_of_what_lies_in_ledgers() -> None:
    text = section("Cursor ledgers")
    assert f"at most {pages.PAGE_BYTES:,} bytes".replace(",", " ") in text and f"`{pages.MAGIC.decode()}`" in text
    assert f"at most {pages.RECORD_BYTES_MAX:,} bytes".replace(",", " ") in text
    assert "1: the record begins here; 2: it ends here; 4: it is a snapshot" in text
    assert (pages._FIRST, pages._LAST, pages._WHOLE) == (1, 2, 4)
    text = section("Cursor record")
    assert "1 snapshot, 2 delta" in text and (record._SNAPSHOT, record._DELTA) == (1, 2)
    assert f"at most {record.PROPERTIES_MAX:,}".replace(",", " ") in text


def test_documented_limits_of_position_pages_are_those_of_the_code() -> None:
    text = section("Position page")
    assert f"at most {position_page.PAGE_BYTES_MAX:,} bytes".replace(",", " ") in text
    assert f"and {TOPIC_BYTES_MAX >> 20} MiB for all" in text
    assert f"at most {position_page.BODY_BYTES_MAX >> 20} MiB" in text and f"`{position_page._MAGIC.decode()}`" in text
