"""What FORMAT.md says outside of its tables of structures: kinds, flags, tags, limits, magics, places in the code."""

from __future__ import annotations

import re
import struct
from pathlib import Path

import pytest

import pyreplog
from pyreplog._native.net import frame
from pyreplog.log import checkpoint

NATIVE = Path(pyreplog.__file__).parent / "_native"
FORMAT = (NATIVE / "FORMAT.md").read_text()
HEADER = (NATIVE / "layout.h").read_text()
NAMES = re.compile(r"REPLOG_(\w+) = ([\w *<]+),")
CONSTANTS: dict[str, int] = {name: eval(value, {}) for name, value in NAMES.findall(HEADER)}
"""Those of the header file."""


def section(title: str) -> str:
    actual = FORMAT.partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    assert actual, title
    return actual


def words(text: str) -> set[tuple[int, str]]:
    """Of "1 data, 2 batch": the numbers and what they mean."""
    return {(int(number, 0), word) for number, word in re.findall(r"\b(0x[0-9a-f]+|\d+) ([a-z][a-z -]*\w)", text)}


def meaning(title: str, field: str) -> str:
    """The last cell of a field's row."""
    (matches,) = re.findall(rf"^\| \d+ \| \d+ \| {field} \| (.*) \|$", section(title), re.MULTILINE)
    return matches


def test_the_header_file_is_read() -> None:
    assert CONSTANTS["SEGMENT_MAX"] == 1 << 30 and CONSTANTS["FORM_KEY"] == 0x40 and len(CONSTANTS) > 35


def test_documented_kinds_of_records_are_those_of_the_code() -> None:
    kinds = {(value, name.removeprefix("KIND_").lower()) for name, value in CONSTANTS.items() if name[:5] == "KIND_"}
    assert words(meaning("Record", "kind").partition(";")[0]) == kinds


def test_the_form_of_a_record() -> None:
    text = meaning("Record", "form")
    assert words(text) >= {
        (CONSTANTS["FORM_LONG"], "long form"),
        (CONSTANTS["FORM_ATTRIBUTES"], "has attributes"),
        (CONSTANTS["FORM_KEY"], "has a key"),
        (CONSTANTS["FORM_COUNT"], "has a count"),
    }
    assert CONSTANTS["FORM_VERSION_MASK"] == 0x0F and "low four bits" in text
    assert f"version ({CONSTANTS['FORMAT_VERSION']})" in text


def test_documented_tags_of_attributes_are_those_of_the_code() -> None:
    rows = re.findall(r"^\| (\d) \| ([a-z ]+) \| [^|]*\|$", section("Record"), re.MULTILINE)
    tags = {(value, name[4:].lower().replace("_", " ")) for name, value in CONSTANTS.items() if name[:4] == "TAG_"}
    assert {(int(tag), name) for tag, name in rows} == tags


def test_columns_and_codecs_of_messages() -> None:
    columns = {
        (CONSTANTS["MESSAGES_KEYS"], "keys"),
        (CONSTANTS["MESSAGES_EVENT_TIMES"], "event times"),
        (CONSTANTS["MESSAGES_SEQUENCES"], "sequences"),
        (CONSTANTS["MESSAGES_DELIVER_AT"], "deliver-at times"),
        (CONSTANTS["MESSAGES_PROPERTIES"], "properties"),
    }
    assert words(meaning("Messages", "flags")) == columns
    assert sum(flag for flag, _ in columns) == CONSTANTS["MESSAGES_FLAGS"]
    rows = re.findall(r"^\| (\d+) \| [a-z -]+ \| `[ui]\d+` \|", section("Messages"), re.MULTILINE)
    assert {int(flag) for flag in rows} == {flag for flag, _ in columns}
    codecs = re.findall(r"\b(\d) (?=not|zstd|lz4)", meaning("Messages", "codec"))
    assert [int(codec) for codec in codecs] == list(range(CONSTANTS["MESSAGES_CODEC_MAX"] + 1))
    assert meaning("Messages", "version") == str(CONSTANTS["MESSAGES_VERSION"])


def spaced(number: int) -> str:
    return f"{number:,}".replace(",", " ")


def test_documented_limits_of_segments_are_those_of_the_code() -> None:
    low, high = CONSTANTS["SEGMENT_MIN"], CONSTANTS["SEGMENT_MAX"]
    assert f"{spaced(low)} to {spaced(high)}, a multiple of 4096" in meaning("Segment header", "size")
    assert f"Records begin at offset {CONSTANTS['SEGMENT_HEADER']}" in section("Segment header")
    assert f"at most {spaced(CONSTANTS['MESSAGES_RAW_MAX'])}" in meaning("Messages", "raw_size")
    index = section("Sparse index")
    assert f"crosses a {CONSTANTS['INDEX_BLOCK']}-byte boundary" in index
    assert f"bytes `{CONSTANTS['TIME_BLOCK']} i`" in index
    assert f"rounded up to {CONSTANTS['ALIGN']}" in section("Record")
    assert f"({CONSTANTS['SHORT_HEADER']} bytes" in section("Record")
    assert f"({CONSTANTS['LONG_HEADER']} bytes)" in section("Record")
    assert (
        f"of {CONSTANTS['SHORT_HEADER']}, {CONSTANTS['COUNTED_HEADER']} or {CONSTANTS['LONG_HEADER']} bytes"
        in section("Record")
    )


def test_documented_limits_of_frames_are_those_of_the_code() -> None:
    limits = re.findall(
        r"^\| [a-z ]+ \| ([\d ]+) \| .*`frame\.(\w+)`", section("Frame (version 1; on the wire only)"), re.M
    )
    assert {name: int(value.replace(" ", "")) for value, name in limits} == {
        name: getattr(frame, name) for name in ("HEADER_SIZE", "MAX_BODY", "DEFAULT_MAX_BODY")
    }
    assert CONSTANTS["FRAME_HEADER"] == frame.HEADER_SIZE


@pytest.mark.parametrize(
    ("name", "title"), [("SEGMENT", "Segment header"), ("INDEX", "Sparse index"), ("TAIL", "Tail page")]
)
def test_documented_magics_are_those_of_the_code(name: str, title: str) -> None:
    (number,) = re.findall(rf"REPLOG_{name}_MAGIC +0x(\w+?)ull", HEADER)
    assert meaning(title, "magic") == f"`{int(number, 16).to_bytes(8, 'little').decode()}`"


def test_the_documented_checkpoint_is_that_of_the_code(tmp_path: Path) -> None:
    text, packed = section("Checkpoint"), checkpoint._SLOT
    assert f"`{packed.format}`" in text and f"`{checkpoint.MAGIC.decode()}`" in text
    assert f"two slots of {checkpoint.SLOT_BYTES} bytes" in text
    rows = re.findall(r"^\| (\d+) \| (\d+) \| ([a-z_, ]+) \|", text, re.MULTILINE)
    ends = [int(at) + int(size) for at, size, _ in rows]
    assert ends == [*[int(at) for at, _, _ in rows[1:]], packed.size]
    new_checkpoint = checkpoint.Checkpoint(
        uuid=bytes(range(16)), segment_bytes=1 << 20, start=2, position=3, entry=4, epoch=5, clean=True, sequence=6
    )
    data = new_checkpoint.encode()
    for at, size, name in rows:
        if hasattr(new_checkpoint, name):
            actual_data = data[int(at) : int(at) + int(size)]
            value = getattr(new_checkpoint, name)
            assert (
                actual_data == value if isinstance(value, bytes) else int.from_bytes(actual_data, "little") == value
            ), name
    assert struct.unpack_from("<HH", data, 12) == (checkpoint.VERSION, checkpoint.VERSION)


def test_code_that_is_named_is_there() -> None:
    named = re.findall(r"`((?:[a-z_]+/)*[a-z_]+\.(?:pyx|pxd|py|h))`", FORMAT)
    last = ""
    missing = []
    for path in named:
        places = [NATIVE.parent / path, NATIVE.parents[1] / path, NATIVE / path, NATIVE.parent / last / path]
        if "/" in path:
            last = path.rpartition("/")[0]
        if not any(place.exists() for place in places):
            missing.append(path)
    assert len(named) > 20 and not missing
