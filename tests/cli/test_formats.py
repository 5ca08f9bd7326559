"""Bytes into rows, keys and event times, however the bytes are cut into blocks."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyreplog.cli.input import formats, source
from pyreplog.cli.input.formats import ColumnMapping
from pyreplog.cli.input.row_reader import RowReader, place_of
from pyreplog.cli.input.rows import Rows
from pyreplog.cli.input.source import InputSource, MalformedRowError, SourcePosition
from pyreplog.errors import InvalidArgumentError

KEY = ColumnMapping(key="id")
TIMED = ColumnMapping(key="id", event_time=("when",))


def read(name: str, data: bytes, columns: ColumnMapping = KEY, *, at_end: bool = True) -> tuple[bytes, Rows]:
    """What lies before the first row, and the rows."""
    form = formats.of(name, columns)
    length = form.begin(data, at_end)
    assert length is not None
    return data[:length], form.parse(data[length:], at_end)


def faults(rows: Rows) -> list[tuple[int, str, str]]:
    return [(i, fault.expected, fault.found) for i, fault in rows.faults]


# ---- lines -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", []),
        (b"\n", [b""]),
        (b"a\nb\n", [b"a", b"b"]),
        (b"a\nb", [b"a", b"b"]),
        (b"a\r\n\r\nb\r\n", [b"a\r", b"\r", b"b\r"]),
        (b"\xef\xbb\xbfa\n\xff\x00\n", [b"\xef\xbb\xbfa", b"\xff\x00"]),
    ],
)
def test_lines_are_rows(data: bytes, expected: list[bytes]) -> None:
    before, rows = read("lines", data, ColumnMapping())
    assert (before, rows.rows, rows.keys, rows.times, rows.dropped) == (b"", expected, None, None, {})


def test_columns_of_lines_are_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="columns, which lines do not have"):
        formats.of("lines", KEY)


def test_an_unfinished_line_waits() -> None:
    assert read("lines", b"a\nb", ColumnMapping(), at_end=False)[1].rows == [b"a"]


# ---- csv -------------------------------------------------------------------------------------------------------


def test_csv_rows_have_keys() -> None:
    before, rows = read("csv", b"id,n\nx,1\n,2\ny,3")
    assert before == b"id,n\n"
    assert (rows.rows, rows.keys) == ([b"x,1", b",2", b"y,3"], [b"x", None, b"y"])


def test_csv_with_mark_and_carriage_returns() -> None:
    before, rows = read("csv", b"\xef\xbb\xbfn,id\r\n1,x\r\n2,y\r\n")
    assert before == b"\xef\xbb\xbfn,id\r\n"
    assert (rows.rows, rows.keys, rows.dropped) == ([b"1,x\r", b"2,y\r"], [b"x", b"y"], {})


def test_quoted_csv_fields_may_hold_commas_and_line_ends() -> None:
    data = b'"the ""id""",n\n"a\nb",1\n"c,d\r\n\r\ne",2\nplain 5" pipe,3\n"",4\n'
    rows = read("csv", data, ColumnMapping(key='the "id"'))[1]
    assert rows.rows == [b'"a\nb",1', b'"c,d\r\n\r\ne",2', b'plain 5" pipe,3', b'"",4']
    assert rows.keys == [b"a\nb", b"c,d\r\n\r\ne", b'plain 5" pipe', None]
    assert not rows.dropped


def test_csv_keeps_bytes_that_are_not_utf8() -> None:
    rows = read("csv", b'id\n\xff\xfe\n"\xe9"\n')[1]
    assert rows.keys == [b"\xff\xfe", b"\xe9"]


def test_csv_blank_lines_are_no_rows_and_no_faults() -> None:
    before, rows = read("csv", b"\n\nid,n\n\nx,1\n\r\n\n")
    assert before == b"\n\nid,n\n"
    assert rows.kept().rows == [b"x,1"]
    assert not rows.faults


def test_malformed_csv_rows_are_faults() -> None:
    data = b'id,n\nx,1\nx\nx,1,2\n"open,3\ny,"4"5\ny,6\rz,7\nz,8\n'
    rows = read("csv", data)[1]
    assert rows.kept().rows == [b"x,1", b"z,8"]
    assert [(i, expected) for i, expected, _ in faults(rows)] == [
        (1, "2 columns"), (2, "2 columns"), (3, "a CSV row"), (4, "a CSV row"), (5, "a CSV row"),
    ]  # fmt: skip


def test_csv_rows_behind_an_unclosed_quote_are_kept() -> None:
    rows = read("csv", b'id,n\na,"1\nb,2\nc,3\n')[1]
    assert rows.kept().rows == [b"b,2", b"c,3"]
    assert faults(rows) == [(0, "a CSV row", "unexpected end of data")]


def test_csv_a_quoted_field_waits_for_its_end() -> None:
    form = formats.of("csv", KEY)
    head = form.begin(b"id,n\n", False)
    assert head == 5
    assert form.parse(b'a,1\nb,"2\n3\n4\n', False).rows == [b"a,1"]
    assert form.parse(b'b,"2\n3\n4\n5"\n', False).rows == [b'b,"2\n3\n4\n5"']


@pytest.mark.parametrize("data", [b"n\n1\n", b"id,id\n1,2\n"])
def test_csv_needs_one_column_of_the_name(data: bytes) -> None:
    with pytest.raises(InvalidArgumentError, match="column 'id': expected one of that name"):
        read("csv", data)


def test_csv_header_waits_and_an_empty_file_has_none() -> None:
    assert formats.of("csv", KEY).begin(b"id", False) is None
    assert formats.of("csv", KEY).begin(b"id", True) == 3
    assert formats.of("csv", KEY).begin(b"", True) == 0
    with pytest.raises(InvalidArgumentError, match="header"):
        formats.of("csv", KEY).begin(b'"id\n', True)


def test_csv_key_over_its_limit() -> None:
    data = b"id\n" + b"k" * 65535 + b"\n" + b"k" * 65536 + b"\n"
    assert faults(read("csv", data)[1]) == [(1, "a key of at most 65535 bytes", "65536 bytes")]


# ---- JSON lines ------------------------------------------------------------------------------------------------


def test_json_lines_have_keys_of_any_scalar_type() -> None:
    data = b'\xef\xbb\xbf{"id": "x\\u00e9"}\n\n {"id": 1.50}\r\n{"id": null}\n{}\n{"id": true}\n'
    data += b'{"id": 123456789012345678901}'
    before, rows = read("jsonl", data)
    assert before == b"\xef\xbb\xbf"
    kept = rows.kept()
    assert kept.rows[1] == b' {"id": 1.50}\r'
    assert kept.keys == ["xé".encode(), b"1.50", None, None, b"true", b"123456789012345678901"]
    assert not rows.faults


def test_malformed_json_lines_are_faults() -> None:
    data = b'{"id": 1}\n{"id": \n[1]\n{"id": [1]}\n{"id": {}}\n\xff\n{"id": "\\ud800"}\n' + b"[" * 100_000 + b"\n2\n"
    rows = read("jsonl", data)[1]
    assert rows.kept().rows == [b'{"id": 1}']
    assert [i for i, _, _ in faults(rows)] == [1, 2, 3, 4, 5, 6, 7, 8]


def test_jsonl_without_columns_takes_any_value() -> None:
    assert read("jsonl", b"1\n[2]\n{}\nx\n", ColumnMapping())[1].kept().rows == [b"1", b"[2]", b"{}"]


def test_jsonl_mark_waits_for_three_bytes() -> None:
    assert formats.of("jsonl", KEY).begin(b"\xef\xbb", False) is None
    assert formats.of("jsonl", KEY).begin(b"", True) == 0


# ---- event times -----------------------------------------------------------------------------------------------

SECOND = 1_000_000


@pytest.mark.parametrize(
    ("form", "text", "expected"),
    [
        ("iso", "1970-01-01", 0),
        ("iso", "1970-01-01T00:00:01.000002Z", SECOND + 2),
        ("iso", "1970-01-01T01:00:00+02:00", -3600 * SECOND),
        ("iso", "0001-01-01", -62135596800 * SECOND),
        ("s", "1.0000015", SECOND + 1),
        ("s", "-2", -2 * SECOND),
        ("ms", "1500", 1_500_000),
        ("us", "7", 7),
        ("%d.%m.%Y %H:%M", "02.01.1970 00:01", 86460 * SECOND),
        ("%d.%m.%Y %z", "02.01.1970 +0100", 82800 * SECOND),
        ("iso", "", None),
        ("us", "  ", None),
    ],
)
def test_event_times_are_parsed_in_each_format(form: str, text: str, expected: int | None) -> None:
    columns = ColumnMapping(event_time=("when",), event_time_format=form)
    assert read("csv", f"id,when\nx,{text}\n".encode(), columns)[1].times == [expected]


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ("iso", "yesterday"),
        ("s", "NaN"),
        ("s", "inf"),
        ("ms", "1e400"),
        ("us", str(1 << 63)),
        ("us", "x"),
        ("%H", "25"),
    ],
)
def test_malformed_event_times_are_faults(form: str, text: str) -> None:
    columns = ColumnMapping(event_time=("when",), event_time_format=form)
    rows = read("csv", f"id,when\na,\nx,{text}\n".encode(), columns)[1]
    assert faults(rows) == [(1, f"an event time of format {form}", repr(text))]
    assert rows.kept().times == [None]


@pytest.mark.parametrize("name", ["csv", "jsonl"])
def test_event_time_of_several_columns(name: str) -> None:
    data = {"csv": b"d,h,m\n1970-01-02,0,5\n,,\n", "jsonl": b'{"d":"1970-01-02","h":0,"m":5}\n{"d":null}\n'}[name]
    columns = ColumnMapping(event_time=("d", "h", "m"), event_time_format="%Y-%m-%d %H %M")
    assert read(name, data, columns)[1].times == [(86400 + 300) * SECOND, None]


@pytest.mark.parametrize("form", ["%Q", "%", "%Y%", "%Y %Y", "%Y-%m-%d %-H", "%G"])
def test_event_time_formats_that_no_time_has(form: str) -> None:
    """Else each row would be skipped for it, one after the other."""
    with pytest.raises(InvalidArgumentError, match=re.escape(f"found {form!r}")):
        formats.of("csv", ColumnMapping(event_time_format=form))


@pytest.mark.parametrize(
    "form", ["%Y", "%c", "%d.%m.%y %I:%M %p", "%Y-%jT%H%z", "%Y-%m-%d %H:%M:%S.%f %Z", "%%%Y", "(%Y", "%G %V %u"]
)
def test_event_time_formats_that_a_time_may_have(form: str) -> None:
    formats.of("csv", ColumnMapping(event_time_format=form))


def test_event_time_format_must_be_one() -> None:
    with pytest.raises(InvalidArgumentError, match="event time format"):
        formats.of("csv", ColumnMapping(event_time_format="epoch"))


# ---- blocks ----------------------------------------------------------------------------------------------------

PIECES = st.lists(
    st.sampled_from([b"id,when", b"a,1", b'"b', b'c",2', b"", b"\r", b'x"y,3', b'"q""r",4', b"no", b"\xff,5", b"d,x"]),
    max_size=12,
)


def all_rows(data: bytes, name: str, limit: int) -> tuple[list[tuple[int, int, int]], list[object]]:
    """Places, and rows with keys, times and faults, of a source."""
    read_end, write_end = os.pipe()
    os.write(write_end, data)
    os.close(write_end)
    reading = InputSource(f"/dev/fd/{read_end}", "name")
    os.close(read_end)
    places, items = [], []
    with reading:
        reader = RowReader(
            reading, formats.of(name, ColumnMapping("id", ("when",), "us") if name == "csv" else ColumnMapping())
        )
        while True:
            place, rows = reader.take(limit)
            if not len(rows):
                places.append((reading.place.offset, reading.place.line, reading.place.crc))
                return places, items
            for i, row in enumerate(rows.rows):
                each = place_of(place, rows, i)
                places.append((each.offset, each.line, each.crc))
                columns = (rows.keys and rows.keys[i], rows.times and rows.times[i])
                items.append((row, columns, i in rows.dropped, rows.dropped.get(i)))


@given(
    pieces=PIECES,
    end=st.booleans(),
    block=st.integers(1, 40),
    limit=st.integers(1, 5),
    name=st.sampled_from(["csv", "lines"]),
)
def test_rows_do_not_depend_on_blocks(pieces: list[bytes], end: bool, block: int, limit: int, name: str) -> None:
    data = b"id,when\n" + b"\n".join(pieces) + b"\n" * end
    with pytest.MonkeyPatch.context() as patch:
        whole = all_rows(data, name, 1 << 20)
        patch.setattr(source, "_BLOCK_BYTES", block)
        assert all_rows(data, name, limit) == whole
    places = whole[0]
    assert places[-1] == (len(data), *places[-1][1:])
    assert SourcePosition(*places[-1]) == SourcePosition().after(data)


def test_a_line_without_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyreplog.cli.input.row_reader.LINE_MAX", 1000)
    monkeypatch.setattr(source, "_BLOCK_BYTES", 100)
    for tail in (b"", b"\nmore\n"):
        path = tmp_path / "file"
        path.write_bytes(b"short\n" + b"x" * 1001 + tail)
        with InputSource(str(path), None) as reading:
            reader = RowReader(reading, formats.of("lines", ColumnMapping()))
            assert reader.take(10)[1].rows == [b"short"]
            with pytest.raises(
                MalformedRowError, match=r"line 2 \(byte 6\): expected a line of at most 1000 bytes"
            ) as caught:
                reader.take(10)
            assert (caught.value.line, caught.value.offset) == (2, 6)
