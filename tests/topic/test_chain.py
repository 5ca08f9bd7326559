"""The chain of a topic's ledgers: positions across empty and trimmed ledgers compared with lists, its bytes, and its
size."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyreplog.errors import InvalidArgumentError, InvalidMetadataError, NoSuchTopicError, TopicFullError, WrongTypeError
from pyreplog.metadata.keys import VALUE_MAX, check_key
from pyreplog.topic.model.chain import ANY_US, RESERVE_BYTES, LedgerChain, LedgerTotals
from pyreplog.topic.model.config import TopicConfig
from pyreplog.topic.model.positions import ORIGIN, TopicPosition
from pyreplog.topic_names import topic_key, unquote_name

US = 1_700_000_000_000_000


def new() -> LedgerChain:
    return LedgerChain(topic="t", token="a", epoch=1, owner="me", nonce="b", created_us=US, config=TopicConfig())


def with_ledger(
    chain: LedgerChain, ledger: int, entries: int, messages: int, size: int, closed_us: int = US + 1
) -> LedgerChain:
    counts = LedgerTotals(ledger, entries, messages, size, closed_us, US - 1)
    return chain.added(ledger, US).closed(counts)


LIVES = st.lists(
    st.one_of(
        st.tuples(st.just("ledger"), st.integers(0, 3), st.integers(1, 4)),
        st.tuples(st.just("trim"), st.integers(0, 60), st.just(0)),
        st.tuples(st.just("retake"), st.just(0), st.just(0)),
    ),
    max_size=25,
)


@given(LIVES)
def test_a_ledger_chain_behaves_as_a_list_of_messages(life: list[tuple[str, int, int]]) -> None:
    """The list has, for each message, the ledger that holds it, or None when that was trimmed."""
    chain, holders, pending_deletion, last = new(), [], [], 0
    entries: dict[int, int] = {}
    for step, a, b in life:
        if step == "ledger":
            last += 3
            chain = with_ledger(chain, last, a, a * b, a * 10)
            holders += [last] * (a * b)
            entries[last] = a
            pending_deletion += [last] if not a else []
        elif step == "trim":
            before = chain
            chain = chain.trimmed(a)
            gone = [item.ledger for item in before.ledgers if item.end.offset <= a]
            pending_deletion += gone
            holders = [None if holder in gone else holder for holder in holders]
        else:
            chain = chain.taken_over("other", "c")
    assert [item.ledger for item in chain.ledgers] == list(dict.fromkeys(h for h in holders if h is not None))
    assert list(chain.pending_deletion) == pending_deletion
    assert chain.end == TopicPosition(len(holders), sum(entries.values()), sum(entries.values()) * 10)
    for offset in range(-1, len(holders) + 2):
        at = chain.index_of(offset)
        ledger = chain.ledgers[at].ledger if at >= 0 else None
        assert ledger == (holders[offset] if 0 <= offset < len(holders) else None)
    kept = [offset for offset, holder in enumerate(holders) if holder is not None]
    assert chain.start.offset == (kept[0] if kept else len(holders))
    assert LedgerChain.decode(chain.encode()) == chain


def test_the_open_ledger_holds_what_is_to_come() -> None:
    chain = with_ledger(new(), 1, 2, 5, 20).added(2, US)
    assert chain.open_ledger == chain.last and chain.index_of(4) == 0 and chain.index_of(5) == 1
    assert chain.index_of(1 << 40) == 1 and chain.end == TopicPosition(5, 2, 20)
    assert chain.trimmed(1 << 40).ledgers == (chain.last,), "an open ledger is never trimmed"
    with pytest.raises(InvalidMetadataError):
        chain.added(3, US)


def test_changes_made_twice_are_made_once() -> None:
    """A change with an unknown outcome is made again."""
    longer_chain = with_ledger(new(), 1, 2, 5, 20)
    counts = LedgerTotals(2, 1, 3, 10, US + 9, US + 8)
    two = longer_chain.added(2, US)
    assert two.added(2, US + 5) is two
    rolled = two.closed(counts).added(4, US)
    assert rolled.closed(counts).added(4, US) is rolled
    empty = two.closed(LedgerTotals(2, 0, 0, 0, US, 0))
    assert (
        empty.closed(LedgerTotals(2, 0, 0, 0, US, 0)) is empty and empty.pending_deletion == (2,) and empty.ids == {1}
    )
    trimmed = rolled.trimmed(5)
    assert trimmed.trimmed(5) is trimmed and trimmed.pending_deletion == (1,)
    assert trimmed.without_deleted([1]).without_deleted([1]).pending_deletion == ()


def test_a_condemned_topic_takes_no_ledger() -> None:
    gone = with_ledger(new(), 1, 2, 5, 20).added(2, US).marked_deleted()
    assert gone.deleted and gone.pending_deletion == (1, 2) and not gone.ledgers and gone.marked_deleted() == gone
    with pytest.raises(NoSuchTopicError):
        gone.added(3, US)


def test_ten_thousand_ledgers_fit() -> None:
    """With ids and counts of maximum length. One more ledger is refused, and the last one can still be closed."""
    row = (1 << 40, US, US, 1 << 40, 1 << 50, 1 << 50)
    body = json.loads(new().encode())
    body["ledgers"] = [[row[0] + i, *row[1:3], 1 << 20, 1 << 27, 1 << 30, US] for i in range(10_000)]
    chain = LedgerChain.decode(json.dumps(body).encode())
    assert len(chain.ledgers) == 10_000 and len(chain.encode()) <= VALUE_MAX - RESERVE_BYTES
    chain = chain.added(7, US)
    size = len(json.dumps(body["ledgers"][0], separators=(",", ":"))) + 1
    more = (VALUE_MAX - RESERVE_BYTES - len(chain.encode())) // size + 1
    body["ledgers"] += [[(1 << 41) + i, *row[1:3], 1 << 20, 1 << 27, 1 << 30, US] for i in range(more)]
    full = LedgerChain.decode(json.dumps(body).encode())
    with pytest.raises(TopicFullError, match="topic t"):
        full.added(7, US)
    assert len(full.marked_deleted().encode()) <= VALUE_MAX


@pytest.mark.parametrize(
    "change",
    [
        {"version": 0}, {"epoch": 0}, {"epoch": True}, {"token": 1}, {"start": [0, 0]}, {"start": [0, 0, -1]},
        {"ledgers": [[1, US, US, 2, 1, 1, 1]]}, {"ledgers": [[1, US, 0, 0, 0, 0, 0], [2, US, US, 1, 1, 1, 1]]},
        {"ledgers": [[1, US, 0, 1, 1, 1, 0]]}, {"ledgers": [[1, US, US, 1, 1, 1, 1], [1, US, US, 1, 1, 1, 1]]},
        {"ledgers": [[1, US, 0, 0, 0, 0, 1]]}, {"ledgers": [[1, US, US, 1, 1]]},
        {"ledgers": [[1, US, US, 1.0, 1, 1, 1]]}, {"ledgers": {}},
        {"config": {"roll_entries": 0}}, {"properties": {"a": 1}}, {"doomed": ["1"]}, {"deleted": 1},
    ],
    ids=str,
)  # fmt: skip
def test_metadata_that_makes_no_sense(change: dict[str, Any]) -> None:
    body = json.loads(with_ledger(new(), 1, 1, 1, 1).encode())
    assert LedgerChain.decode(json.dumps(body).encode()).end == TopicPosition(1, 1, 1)
    with pytest.raises(InvalidMetadataError):
        LedgerChain.decode(json.dumps({**body, **change}).encode())


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"null", b"\xff", b"[" * 9999])
def test_malformed_metadata_of_a_chain_are_refused(data: bytes) -> None:
    with pytest.raises(InvalidMetadataError):
        LedgerChain.decode(data)


def test_ledgers_of_which_no_append_time_is_noted() -> None:
    """Metadata as older builds wrote them."""
    chain = with_ledger(new(), 1, 2, 5, 20).added(2, US)
    body = json.loads(chain.encode())
    body["ledgers"] = [row[:6] for row in body["ledgers"]]
    closed, last = LedgerChain.decode(json.dumps(body).encode()).ledgers
    assert (closed, last) == (chain.ledgers[0]._replace(last_us=ANY_US), chain.ledgers[1])


def test_a_chain_is_decoded_with_all_its_fields() -> None:
    chain = dataclasses.replace(
        with_ledger(new(), 5, 1, 2, 3),
        properties={"a": "ü"},
        pending_deletion=(3, 4),
        config=TopicConfig(roll_ms=5, ensemble=1),
    )
    assert LedgerChain.decode(chain.encode()) == chain
    assert new().start == ORIGIN == new().end and new().last is None


NAMES = st.text(st.characters(exclude_categories=("Cc", "Cs")), min_size=1, max_size=20)


@given(NAMES)
def test_names_become_keys_and_come_back(name: str) -> None:
    key = topic_key(name)
    check_key(key)
    assert key.count("/") == 2 and unquote_name(key.rpartition("/")[2]) == name


@pytest.mark.parametrize("name", [".", "..", "a/b", "~", "%2F", "a b", "-" * 200])
def test_odd_topic_names_have_valid_keys(name: str) -> None:
    check_key(topic_key(name))
    assert unquote_name(topic_key(name).rpartition("/")[2]) == name


@pytest.mark.parametrize("name", ["", "a\n", "\x7f", "\x85", "x" * 201, "ü" * 50, "\ud800"])
def test_malformed_topic_names_are_refused(name: str) -> None:
    with pytest.raises(InvalidArgumentError):
        topic_key(name)
    with pytest.raises(WrongTypeError):
        topic_key(b"name")  # type: ignore[arg-type]
