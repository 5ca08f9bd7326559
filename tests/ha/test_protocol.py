"""Bodies of control messages: they decode to what was encoded, match the tables of FORMAT.md, and any bytes are
handled."""

from __future__ import annotations

import re
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import pyreplog
from pyreplog.errors import InvalidMessageError
from pyreplog.ha.protocol import messages
from pyreplog.ha.protocol.members import MAGIC as MEMBERS_MAGIC
from pyreplog.ha.protocol.members import Members, Quorum
from pyreplog.ha.protocol.messages import (
    VERSION,
    Accept,
    AskStatus,
    Command,
    Commit,
    Join,
    MembershipUpdate,
    MembersStored,
    Message,
    MessageKind,
    Prepare,
    PreVote,
    ProgressReport,
    Promise,
    RefusalCode,
    Refuse,
    StatusReply,
    VoteRejected,
    decode,
    encode,
)
from pyreplog.stream.log_position import LogPosition
from pyreplog.stream.terms import HISTORY_MAX, History, Term, Terms, TermStart
from pyreplog.stream.terms import MAGIC as TERMS_MAGIC

FORMAT = (Path(pyreplog.__file__).parent / "_native" / "FORMAT.md").read_text()
UUID = bytes(range(16))
TERM = Term(7, "zwölf")
HISTORY = History((TermStart(Term(1, "a"), LogPosition(4096, 0)), TermStart(TERM, LogPosition(8192, 5))))
MEMBERS = Members.first(["a", "zwölf"], 1).change(Quorum.of("abc", 2)).led_by(Term(8, "a"))

SAMPLES: list[Message] = [
    Join(UUID, 1 << 20, "b", True, LogPosition(9000, 7), LogPosition(8192, 5), TERM, HISTORY),
    ProgressReport(LogPosition(1 << 62, 3), LogPosition(2, 1)),
    MembersStored(1 << 63),
    Accept(UUID, 1 << 16, TERM, HISTORY, LogPosition(0, 0), LogPosition(9000, 7)),
    Refuse(RefusalCode.BEHIND, "take a new copy"),
    Commit(LogPosition(5000, 2), 4096, True),
    MembershipUpdate(MEMBERS),
    Prepare(Term(9, "c"), UUID, MEMBERS.stamp, True),
    Promise(Term(9, "c"), HISTORY, LogPosition(9000, 7), LogPosition(8192, 5), MEMBERS, True),
    Promise(Term(9, "c"), History(), LogPosition(0, 0), LogPosition(0, 0), None),
    VoteRejected(RefusalCode.HIGHER_TERM, TERM, "no", None),
    AskStatus(),
    StatusReply(b'{"role": "master"}'),
    Command(b'{"command": "promote"}'),
]


def name_of(message: Message) -> str:
    return type(message).__name__


@pytest.mark.parametrize("message", SAMPLES, ids=name_of)
def test_decode_reverses_encode_of_control_messages(message: Message) -> None:
    assert decode(memoryview(encode(message))) == message


# ---- FORMAT.md -------------------------------------------------------------------------------------------------


def section(title: str) -> str:
    return FORMAT.partition(f"\n## {title}")[2].partition("\n## ")[0]


class Twin:
    """A decoder that was written from FORMAT.md alone."""

    def __init__(self, data: bytes, order: str) -> None:
        self.data, self.at, self.order = data, 0, order

    def take(self, layout: str) -> Any:
        (value,) = struct.unpack_from(self.order + layout, self.data, self.at)
        self.at += struct.calcsize(self.order + layout)
        return value

    def string(self, length: int) -> str:
        return str(self.take(f"{length}s"), "utf-8")

    def read(self, kind: str) -> Any:
        numbers = {"u8": "B", "u16": "H", "u32": "I", "u64": "Q", "uuid": "16s"}
        return self.take(numbers[kind]) if kind in numbers else getattr(self, kind)()

    def name(self) -> str:
        return self.string(self.take("B"))

    def text(self) -> str:
        return self.string(self.take("H"))

    def mark(self) -> Any:
        return (self.take("q"), self.take("q"))

    def term(self) -> Any:
        return (self.take("Q"), self.name())

    def history(self) -> Any:
        return [(self.term(), self.mark()) for _ in range(self.take("I"))]

    def stamp(self) -> Any:
        return (self.term(), self.take("Q"))

    def members(self) -> Any:
        return self.stamp(), [self.quorum() for _ in range(1 + self.take("B"))]

    def quorum(self) -> Any:
        k, count = self.take("B"), self.take("B")
        return tuple(self.name() for _ in range(count)), k

    def known(self) -> Any:
        return self.members() if self.take("B") else None

    def json(self) -> Any:
        return self.take(f"{len(self.data) - self.at}s")


def plain(value: Any) -> Any:
    """Return a value as the decoder of this test returns it."""
    if isinstance(value, History):
        return [tuple(start) for start in value.starts]
    if isinstance(value, Members):
        return value.stamp, [quorum for quorum in (value.quorum, value.former) if quorum is not None]
    return value


def documented() -> dict[str, tuple[int, list[tuple[str, str]]]]:
    """Return for each name the kind, and type and name of each field."""
    rows = re.findall(r"^\| (\d+) \| (\w+) \| [\w, ]+ \| ?(.*?) ?\|$", section("Replication"), re.MULTILINE)
    return {name: (int(kind), [tuple(f.split()) for f in fields.split(", ") if f]) for kind, name, fields in rows}


@pytest.mark.parametrize("message", SAMPLES, ids=name_of)
def test_control_messages_have_their_documented_bytes(message: Message) -> None:
    body = encode(message)
    name = next(kind.name for kind in MessageKind if kind == body[0])
    kind, fields = documented()[name]
    twin = Twin(body, ">")
    assert twin.take("B") == kind
    for layout, field in fields:
        assert twin.read(layout) == plain(getattr(message, field)), field
    assert twin.at == len(body)


def test_all_kinds_and_codes_are_documented() -> None:
    assert {name: kind for name, (kind, _) in documented().items()} == {kind.name: kind.value for kind in MessageKind}
    codes = section("Replication").partition("Codes of REFUSE")[2]
    assert dict(re.findall(r"\b(\d+) ([A-Z_]+)\b", codes)) == {str(code.value): code.name for code in RefusalCode}
    trials = section("Replication").partition("`trial` of PREPARE: ")[2].partition(". ")[0]
    assert re.findall(r"(?:^|; )(\d) ", trials) == [str(trial.value) for trial in PreVote]
    assert {kind for kind, *_ in messages._KINDS} == set(MessageKind) and {type(sample) for sample in SAMPLES} == set(
        messages._WRITERS
    )


@pytest.mark.parametrize(
    ("name", "magic", "value", "values"),
    [
        ("terms", TERMS_MAGIC, Terms(TERM, HISTORY, is_master=True), [1, TERM, plain(HISTORY)]),
        ("members", MEMBERS_MAGIC, MEMBERS, [plain(MEMBERS)]),
    ],
)
def test_terms_and_members_files_have_their_documented_bytes(
    name: str, magic: bytes, value: Terms | Members, values: list[Any]
) -> None:
    text, data = section("Terms and members files"), value.encode()
    rows = [(int(at), int(size)) for at, size in re.findall(r"^\| (\d+) \| (\d+) \|", text, re.MULTILINE)]
    head = text.partition("format `<")[2].partition("`")[0]
    assert [at + size for at, size in rows] == [*[at for at, _ in rows[1:]], struct.calcsize(f"<{head}")]
    assert data.startswith(magic) and f"`{magic.decode()}`" in text
    fields = re.search(rf"`{name}`(?: goes on)? with ([\w, ]+)[;.]", text.replace("\n", " "))
    assert fields is not None
    twin = Twin(data[struct.calcsize(f"<{head}") :], "<")
    assert [twin.read(field.split()[0]) for field in fields[1].split(", ")] == values
    assert twin.at == len(twin.data)


# ---- bytes that are no message ---------------------------------------------------------------------------------


@given(st.binary(max_size=300))
def test_arbitrary_control_messages_are_decoded_or_refused(body: bytes) -> None:
    check(body)


@given(st.sampled_from(SAMPLES), st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), max_size=4), st.data())
def test_damaged_control_messages_are_decoded_or_refused(
    message: Message, changes: list[tuple[int, int]], data: st.DataObject
) -> None:
    body = bytearray(encode(message))
    for at, value in changes:
        body[at % len(body)] = value
    check(bytes(body[: data.draw(st.integers(0, len(body)))]))
    check(bytes(body))


def check(body: bytes) -> None:
    """Decoding raises the documented error, or returns a message that encodes to the same bytes."""
    try:
        message = decode(body)
    except InvalidMessageError:
        return
    # invalid UTF-8 is replaced, and a JOIN of a later version is longer
    if not isinstance(message, Refuse | VoteRejected | Join):
        assert encode(message) == body


@pytest.mark.parametrize("message", SAMPLES, ids=name_of)
def test_messages_that_are_cut_or_go_on(message: Message) -> None:
    body = encode(message)
    for length in range(len(body) - (len(message.json) if isinstance(message, StatusReply | Command) else 0)):
        with pytest.raises(InvalidMessageError):
            decode(body[:length])
    if not isinstance(message, StatusReply | Command):
        with pytest.raises(InvalidMessageError, match="its end"):
            decode(body + b"\0")


def test_a_later_version_of_join_is_understood_as_far_as_needed() -> None:
    later = SAMPLES[0]._replace(version=VERSION + 1)  # type: ignore[union-attr, call-arg]
    assert decode(encode(later) + b"more") == later


def test_lengths_are_bounded_before_they_are_believed() -> None:
    head = encode(SAMPLES[0])[: -len(encode(SAMPLES[0]).partition(b"\0\0\0\2")[2]) - 4]
    for count in (HISTORY_MAX + 1, 0xFFFFFFFF):
        with pytest.raises(InvalidMessageError, match="at most"):
            decode(head + struct.pack(">I", count) + bytes(100))
    with pytest.raises(InvalidMessageError, match="at most 1024"):
        decode(b"\x05\x01" + struct.pack(">H", 1025) + bytes(1025))
    assert len(Refuse(1, "ü" * 2000).text.encode()) > 1024 and len(encode(Refuse(1, "xü" * 2000))) == 1 + 1 + 2 + 1024
    assert isinstance(decode(encode(Refuse(1, "xü" * 2000))), Refuse)


@pytest.mark.parametrize(
    "starts", [[(2, 100), (1, 200)], [(1, 100), (1, 200)], [(1, 100), (2, 100)], [(1, 200), (2, 100)]]
)
def test_impossible_histories_are_refused(starts: list[tuple[int, int]]) -> None:
    history = History(tuple(TermStart(Term(number, "a"), LogPosition(at, 0)) for number, at in starts))
    with pytest.raises(InvalidMessageError, match="a term behind"):
        decode(encode(Promise(Term(9, "c"), history, LogPosition(900, 0), LogPosition(0, 0), None)))


def test_marks_are_not_negative() -> None:
    for progress in (
        ProgressReport(LogPosition(-1, 0), LogPosition(0, 0)),
        ProgressReport(LogPosition(0, 0), LogPosition(0, -1)),
    ):
        with pytest.raises(InvalidMessageError, match="from 0 on"):
            decode(encode(progress))
