"""The tables of FORMAT.md match the code."""

from __future__ import annotations

import re
import struct
from pathlib import Path

import pyreplog
from pyreplog.rocketmq import records, synced_position

FORMAT = (Path(pyreplog.__file__).parent / "_native" / "FORMAT.md").read_text().partition("## RocketMQ mode")[2]
FORMAT = FORMAT.partition("\n## ")[0]  # the sections of other formats follow
TABLE = re.compile(r"`struct` format[^`]*`([^`]+)`\):\n\n\|[^\n]*\n\|[-|]*\n((?:\|[^\n]*\n)+)")


def tables() -> list[tuple[str, list[tuple[int, int]]]]:
    """Return each format, with offset and bytes of the rows at fixed offsets."""
    rows = []
    for layout, body in TABLE.findall(FORMAT):
        cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in body.splitlines()]
        rows.append((layout, [(int(row[0]), int(row[1])) for row in cells if row[0].isdigit() and row[1].isdigit()]))
    return rows


def test_tables_have_no_gap_and_the_size_of_their_format() -> None:
    assert len(tables()) == 2
    for layout, rows in tables():
        at = 0
        for offset, size in rows:
            assert offset == at
            at += size
        assert at == struct.calcsize(layout)


def test_the_formats_are_those_of_the_code() -> None:
    (checkpoint, _), (record, _) = tables()
    assert checkpoint == synced_position._LAYOUT.format
    parts = (records._HEAD, records._HOST, records._I64, records._HOST, records._AFTER_HOSTS)
    assert record == ">" + "".join(part.format.lstrip(">") for part in parts)


def test_magics_of_rocketmq_are_those_of_format_md() -> None:
    for magic in (records.MAGIC_V1, records.MAGIC_V2, records.MAGIC_BLANK):
        assert f"`0x{magic:08X}`" in FORMAT
    assert synced_position.MAGIC.decode() in FORMAT
