"""Observers that follow a replica, which lags and may lose records that it had not synced; and replicas without any
records."""

from __future__ import annotations

from typing import Any

import pytest

from pyreplog.ha.protocol.effects import CreateLog, StoreTerms
from pyreplog.ha.protocol.joining import StreamedLog, check_join_of_copy
from pyreplog.ha.protocol.messages import NO_UUID, PERMANENT, Accept, Join, RefusalCode, Refuse
from pyreplog.ha.protocol.replica_machine import ReplicaMachine
from pyreplog.stream.log_position import ORIGIN, LogPosition
from pyreplog.stream.terms import History, Term, Terms
from tests.ha.groups import HISTORY, SEGMENT_BYTES, T1, T2, UUID, mark, only
from tests.ha.test_replica_machine import MASTERS, T3, check_left, connected, replica


def join(received: int, history: History = HISTORY, **fields: Any) -> Join:
    """Return the JOIN of an observer."""
    end = mark(received)
    known = {"uuid": UUID, "segment_bytes": SEGMENT_BYTES, "history": history.up_to(end), **fields}
    return Join(member="x", observer=True, received=end, synced=end, promised=known["history"].last, **known)


def copy(end: int, start: int = 0, history: History = HISTORY, term: Term = T2) -> StreamedLog:
    return StreamedLog(UUID, SEGMENT_BYTES, term, history, mark(start), mark(end))


@pytest.mark.parametrize(
    ("asks", "copied"),
    [
        pytest.param(join(15), copy(12), id="it has more of the same term"),
        pytest.param(join(15), copy(8), id="what it has is of a term that the copy knows, and holds nothing of"),
        pytest.param(join(5), copy(0), id="the copy holds nothing"),
        pytest.param(join(0, uuid=NO_UUID, segment_bytes=0), copy(7, start=7), id="nor has it anything to give"),
    ],
)
def test_a_replica_that_lags_is_asked_again(asks: Join, copied: StreamedLog) -> None:
    """The replica reported that its master had lost records, or that the logs had nothing in common; the observer left
    for good."""
    answer = check_join_of_copy(asks, copied, "m")
    assert isinstance(answer, Refuse) and answer.code == RefusalCode.NOT_MASTER and answer.code not in PERMANENT
    assert "m is a replica" in answer.text


@pytest.mark.parametrize(
    ("asks", "copied", "resume"),
    [
        (join(12), copy(12), 12),
        (join(5), copy(12), 5),
        (join(0, uuid=NO_UUID, segment_bytes=0), copy(12, start=3), 3),
        (join(15, history=HISTORY.up_to(mark(10))), copy(12), 10),
    ],
    ids=["level", "behind", "new", "parted"],
)
def test_an_observer_that_fits_a_copy_follows_it(asks: Join, copied: StreamedLog, resume: int) -> None:
    answer = check_join_of_copy(asks, copied, "m")
    assert isinstance(answer, Accept) and answer.resume == mark(resume)


def test_an_observer_with_another_log_is_refused() -> None:
    answer = check_join_of_copy(join(15, uuid=b"x" * 16), copy(8), "m")
    assert isinstance(answer, Refuse) and answer.code == RefusalCode.FOREIGN


# ---- a copy that holds nothing ----------------------------------------------------------------------------------


def emptied(at: int = 8) -> ReplicaMachine:
    """Retention has removed all records that the replica had and had reported."""
    following = replica(promised=T3, history=MASTERS)
    request = connected(following, start=at, received=at, synced=at)
    assert (request.uuid, request.received, request.synced) == (UUID, mark(at), mark(at)), "it says how far it was"
    return following


def test_an_emptied_copy_goes_on_at_its_position() -> None:
    following = emptied()
    effects = following.message_received(Accept(UUID, SEGMENT_BYTES, T3, MASTERS, ORIGIN, mark(8)))
    assert not only(CreateLog, effects) and only(StoreTerms, effects)


@pytest.mark.parametrize("code", [RefusalCode.BEHIND, RefusalCode.DIVERGED, RefusalCode.FOREIGN])
def test_an_emptied_copy_that_does_not_fit_asks_for_a_new_one(code: RefusalCode) -> None:
    following = emptied()
    check_left(following, following.message_received(Refuse(code, "no")), None, permanent=False)
    request = connected(following, start=8, received=8, synced=8)
    assert (request.uuid, request.received, request.synced, request.history) == (
        NO_UUID,
        LogPosition(0, 0),
        LogPosition(0, 0),
        History(),
    )
    check_left(following, following.message_received(Refuse(code, "no")), None, permanent=True)


def test_a_new_copy_takes_back_nothing_that_was_shown() -> None:
    """Its master is far ahead, and a lagging replica has all records from the start: readers would go back to those."""
    following = emptied()
    assert following.committed < mark(8), "after a power cut nothing but the log's start says that it was shown"
    check_left(
        following, following.message_received(Refuse(RefusalCode.BEHIND, "what follows is gone")), None, permanent=False
    )
    connected(following, start=8, received=8, synced=8)
    lagging = Accept(UUID, SEGMENT_BYTES, T3, MASTERS, mark(6), mark(6))
    check_left(following, following.message_received(lagging), RefusalCode.NOT_MASTER, permanent=False)
    request = connected(following, start=8, received=8, synced=8)
    assert (request.uuid, request.received) == (UUID, mark(8)), "it says again how far it was"
    following.message_received(Refuse(RefusalCode.BEHIND, "what follows is gone"))
    connected(following, start=8, received=8, synced=8)
    assert only(CreateLog, following.message_received(Accept(UUID, SEGMENT_BYTES, T3, MASTERS, mark(10), mark(10))))


@pytest.mark.parametrize("gone", [5, 7])
def test_replica_accepts_a_new_copy_after_committed_records_were_lost(gone: int) -> None:
    """A node was promoted by force, with a log that ends before this copy begins. The replica asked for a new copy, and
    refused it, in turns."""
    forced = HISTORY.up_to(mark(gone)).begin(T3, mark(gone))
    following = replica(promised=T3, history=HISTORY)
    connected(following, start=12, received=12, synced=12)
    check_left(
        following,
        following.message_received(Accept(UUID, SEGMENT_BYTES, T3, forced, ORIGIN, mark(gone))),
        RefusalCode.BEHIND,
        permanent=False,
    )
    connected(following, start=12, received=12, synced=12)
    assert only(CreateLog, following.message_received(Accept(UUID, SEGMENT_BYTES, T3, forced, mark(4), mark(4))))


def test_a_new_copy_does_not_know_how_what_is_removed_was_committed() -> None:
    following = ReplicaMachine("x", NO_UUID, 0, Terms(), committed=ORIGIN)
    connected(following, start=0, received=0, synced=0)
    following.message_received(Accept(UUID, SEGMENT_BYTES, T1, HISTORY.up_to(mark(1)), mark(3), mark(3)))
    assert following.unreplicated
