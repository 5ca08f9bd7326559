"""`pyreplog dump`: every field of every structure, intact and damaged."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import pytest

import pyreplog
from pyreplog._native.log.segment import Segment
from pyreplog.cli.explaining import layout
from pyreplog.cli.explaining.raw_segment import RawSegment
from pyreplog.log import names
from tests.cli.support import SEGMENT_BYTES, Run
from tests.record_batches import open_log
from tests.unit.test_format import documented

DAMAGED = 4


@pytest.fixture
def filled(log: Path) -> Path:
    """Several segments; entry 0 with all there can be, behind a control record."""
    with pyreplog.open(log) as writer:
        writer.append_batch([], control=b"control")
        writer.append(b"value", b"key", event_time=1_000_000, properties={"name": "text", "more": b"\xff"})
        for i in range(300):
            writer.append(b"%d " % i * 200, b"k" if i % 2 else None)
    return log


def fields(values: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {field["name"]: field for field in values["fields"]}


def bad(values: dict[str, Any]) -> list[str]:
    return [field["name"] for field in values["fields"] if field["ok"] is False]


def overwrite(log: Path, position: int, data: bytes) -> None:
    base = max(base for base in names.segment_bases(log) if base <= position)
    with names.segment_path(log, base).open("r+b") as file:
        file.seek(position - base)
        file.write(data)


# ---- the layout ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("structure", "ours"),
    [
        ("replog_segment", layout.SEGMENT),
        ("replog_record", layout.HEAD),
        ("replog_short", layout.SHORT),
        ("replog_counted", layout.COUNTED),
        ("replog_long", layout.LONG),
    ],
)
def test_the_layout_is_the_documented_one(structure: str, ours: tuple[layout.Field, ...]) -> None:
    """And the documented one is the compiled one: tests/unit/test_format.py."""
    fields = layout.SHORT if structure == "replog_counted" else layout.HEAD
    head = [(field.offset, field.size, field.name) for field in fields]
    expected = [row for row in documented()[structure] if row[2] != "head"]
    rows = [(field.offset, field.size, field.name) for field in ours]
    assert rows == (expected if structure in ("replog_segment", "replog_record") else head + expected)


def test_constants_are_those_of_the_header_file() -> None:
    text = (Path(pyreplog.__file__).parent / "_native" / "layout.h").read_text()
    for name in (
        "SHORT_HEADER",
        "COUNTED_HEADER",
        "LONG_HEADER",
        "CRC_FROM",
        "FORMAT_VERSION",
        "FORMAT_COUNTED",
        "SEGMENT_HEADER",
        "KIND_BATCH",
        "KIND_BLANK",
    ):
        assert f"REPLOG_{name} = {getattr(layout, name)}," in text
    for name in ("FORM_VERSION_MASK", "FORM_LONG", "FORM_ATTRIBUTES", "FORM_KEY", "FORM_COUNT"):
        assert f"REPLOG_{name} = {getattr(layout, name):#04x}," in text
    kinds = {number: f"REPLOG_KIND_{kind.upper()} = {number}," in text for number, kind in layout.KINDS.items()}
    tags = {
        number: f"REPLOG_TAG_{tag.replace(' ', '_').upper()} = {number}," in text for number, tag in layout.TAGS.items()
    }
    assert all(kinds.values()) and all(tags.values())


def test_the_stamp_is_the_compiled_one(filled: Path) -> None:
    for base in names.segment_bases(filled):
        path = names.segment_path(filled, base)
        with path.open("rb") as file:
            assert RawSegment(path).stamp == Segment(os.dup(file.fileno()), str(path), writable=False).stamp


# ---- intact ----------------------------------------------------------------------------------------------------


def test_every_byte_of_an_intact_record_is_explained(run: Run, filled: Path) -> None:
    with pyreplog.open(filled, "r") as log:
        positions = {entry: log.position_of(entry) for entry in (0, 1, 2, 150, 300)}
        raw = {entry: bytes(log.get(entry).raw) for entry in positions}
    for entry, position in positions.items():
        by_entry = run("dump", filled, "--entry", entry, "--json")
        assert by_entry.code == 0
        assert by_entry.json == run("dump", filled, "--position", position, "--json").json
        assert (by_entry.json["what"], by_entry.json["position"], by_entry.json["intact"]) == ("record", position, True)
        parts = sorted(by_entry.json["fields"], key=lambda field: field["offset"])
        assert parts[0]["offset"] == position % SEGMENT_BYTES
        assert sum(field["length"] for field in parts) == len(raw[entry])
        assert all(bytes.fromhex(field["bytes"]) in raw[entry] for field in parts)


def test_dump_shows_each_field_of_a_record(run: Run, filled: Path) -> None:
    actual_fields = fields(run("dump", filled, "--entry", 0, "--json").json)
    assert actual_fields["kind"]["meaning"] == "data"
    assert actual_fields["form"]["meaning"] == "version 1, attributes, key"
    assert actual_fields["entry_delta"]["meaning"] == "entry 0"
    assert actual_fields["key"]["meaning"] == "'key'"
    assert actual_fields["value"]["meaning"] == "5 bytes: 'value'"
    text = run("dump", filled, "--entry", 0).out
    assert "event time 1970-01-01T00:00:01.000000Z" in text
    assert "property 'name' = 'text'" in text
    assert "property 'more' = '\\\\xff'" in text


def test_dump_shows_each_field_of_a_record_batch(run: Run, tmp_path: Path) -> None:
    with open_log(tmp_path / "log") as log:
        log.append_record_batches([b"a", b"b"], [4, 3])
        position = log.position_of(4)
    for entry in (4, 6):
        result = run("dump", log.path, "--entry", entry, "--json")
        assert (result.json["position"], result.json["intact"], bad(result.json)) == (position, True, [])
    actual_fields = fields(result.json)
    assert actual_fields["form"]["meaning"] == "version 1, count"
    assert actual_fields["entry_delta"]["meaning"] == "entries 4 to 6"
    assert actual_fields["count"]["meaning"] == "takes 3 entry numbers"
    assert actual_fields["value"]["meaning"] == "1 byte: 'b'"
    assert sum(field["length"] for field in result.json["fields"]) == 48
    overwrite(log.path, position + 32, b"\xff")
    assert "count" in bad(run("dump", log.path, "--position", position, "--json").json)
    header = run("dump", log.path, "--segment", 0, "--json")
    assert fields(header.json)["version"]["meaning"] == "format version 2" and bad(header.json) == []


def test_control_record_blank_and_empty_space(run: Run, filled: Path) -> None:
    control = run("dump", filled, "--position", 4096, "--json")
    assert fields(control.json)["kind"]["meaning"] == "control"
    assert fields(control.json)["entry_delta"]["meaning"] == "the next entry is 0"
    with pyreplog.open(filled, "r") as log:
        record = next(batch[-1] for batch in log.read(batch_bytes=SEGMENT_BYTES))
        blank, end = record.position + len(record.raw), log.end_position
    result = run("dump", filled, "--position", blank, "--json")
    assert (result.code, fields(result.json)["kind"]["meaning"]) == (0, "blank")
    result = run("dump", filled, "--position", end)
    assert result.code == DAMAGED
    assert "no record was written here" in result.out


def test_dump_shows_each_field_of_a_segment_header(run: Run, filled: Path) -> None:
    result = run("dump", filled, "--segment", SEGMENT_BYTES, "--json")
    assert (result.code, result.json["what"], result.json["intact"]) == (0, "segment header", True)
    assert sum(field["length"] for field in result.json["fields"]) == 4096
    assert (
        fields(result.json)["base"]["meaning"] == f"begins at position {SEGMENT_BYTES}; the name says {SEGMENT_BYTES}"
    )
    assert "first entry" in run("dump", filled, "--segment", SEGMENT_BYTES).out


# ---- damaged ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("offset", "data", "expected"),
    [
        (0, b"\xff\xff\xff\x7f", ["length"]),
        (0, bytes(4), ["length"]),
        (0, b"\x21\x00\x00\x00", ["crc", "key_length", "attributes"]),
        (4, bytes(4), ["crc"]),
        (8, bytes(4), ["stamp"]),
        (12, b"\x09", ["crc", "kind"]),
        (13, b"\xe2", ["crc", "form"]),
        (14, b"\xff\xff", ["crc", "key_length"]),
        (16, b"\xff" * 8, ["crc", "time"]),
        (32, b"\xff\xff", ["crc", "attributes"]),
        (35, b"\xff\xff", ["crc", "attribute"]),
        (74, b"!", ["crc"]),
        (77, b"!", ["crc", "padding"]),
    ],
)
def test_dump_names_the_bad_fields_of_a_damaged_record(
    run: Run, filled: Path, offset: int, data: bytes, expected: list[str]
) -> None:
    with pyreplog.open(filled, "r") as log:
        position = log.position_of(0)
    overwrite(filled, position + offset, data)
    result = run("dump", filled, "--position", position, "--json")
    assert result.code == DAMAGED
    assert not result.json["intact"]
    assert bad(result.json) == expected
    assert "BAD" in run("dump", filled, "--position", position).out


@pytest.mark.parametrize(
    ("offset", "field"),
    [
        (0, "magic"),
        (8, "crc"),
        (14, "min_reader"),
        (20, "crc"),
        (32, "base"),
        (42, "size"),
        (60, "reserved"),
        (900, "(rest)"),
    ],
)
def test_dump_names_the_bad_field_of_a_damaged_segment_header(run: Run, filled: Path, offset: int, field: str) -> None:
    was = names.segment_path(filled, SEGMENT_BYTES).read_bytes()[offset]  # of the uuid, which is random
    overwrite(filled, SEGMENT_BYTES + offset, b"\x99" if was != 0x99 else b"\x66")
    result = run("dump", filled, "--segment", SEGMENT_BYTES, "--json")
    assert result.code == DAMAGED
    assert field in bad(result.json)


def test_any_bytes_are_explained(run: Run, filled: Path) -> None:
    """Nothing that can lie in a file makes it fail otherwise than by saying so."""
    draw = random.Random(7)
    for _ in range(60):
        position = 4096 + 8 * draw.randrange((SEGMENT_BYTES - 4096) // 8 - 4)
        overwrite(filled, position, draw.choice([draw.randbytes(64), b"\x40\0\0\0" + draw.randbytes(60)]))
        assert run("dump", filled, "--position", position, "--json").code == DAMAGED
        assert run("dump", filled, "--position", position).code == DAMAGED


def test_entries_behind_a_bad_length_cannot_be_walked_to(run: Run, filled: Path) -> None:
    with pyreplog.open(filled, "r") as log:
        position = log.position_of(3)
    overwrite(filled, position, bytes(4))
    assert run("dump", filled, "--entry", 2).code == 0
    done = run("dump", filled, "--entry", 5)
    assert done.code == 1
    assert f"its records can be followed up to position {position}" in done.error


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--position", "0"), "no record begins at position 0"),
        (("--position", "4100"), "begin at multiples of 8"),
        (("--position", str(1 << 40)), "has no segment with position"),
        (("--position", "-1"), "has no segment with position -1"),
        (("--entry", "100000"), "has no entry 100000"),
        (("--entry", "-1"), "has no segment with entry -1"),
        (("--segment", "1"), "has no segment 1; there are 0, "),
    ],
)
def test_places_that_are_not_there(run: Run, filled: Path, arguments: tuple[str, str], message: str) -> None:
    done = run("dump", filled, *arguments)
    assert (done.code, done.out) == (1, "")
    assert message in done.error


def test_no_log_and_short_files(run: Run, tmp_path: Path) -> None:
    assert run("dump", tmp_path / "none", "--segment", 0).code == 2
    assert run("dump", tmp_path, "--segment", 0).code == 2
    names.segment_path(tmp_path, 0).write_bytes(b"short")
    assert run("dump", tmp_path, "--segment", 0).code == 4
