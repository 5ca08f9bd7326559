"""Copies that auto-recovery adds: the ledger's proof admits them, and they change nothing for the ledger's writer."""

from __future__ import annotations

from typing import Any

import pytest

from pyreplog._native.bookie.fast_add import as_fast_add
from pyreplog.bookie import admission
from pyreplog.bookie.controls import ControlCode, Controls, load_controls
from pyreplog.bookie.key_verifier import KeyVerdict
from pyreplog.bookie.protocol import ID_MAX, Flag, Reply, ReplyStatus, Request
from tests.bookie.asking import KEY, LEDGER, OTHER_KEY, Node, add, entries_in, last, read, records_of, set_lac
from tests.bookie.memory_log import MemoryLog
from tests.bookie.test_fast_add import plain_of

PROOF, OTHER_PROOF = b"p" * 16, b"q" * 16


def copy(*entries: int, key: bytes = PROOF, flags: int = Flag.COPY, **settings: Any) -> Request:
    return add(*entries, key=key, flags=flags, **settings)


def judged(node: Node, request: Request, verdict: KeyVerdict) -> Reply:
    """The reply to a request about whose key the metadata were asked."""
    replies: list[Reply] = []
    node.bookie.handle(request, replies.append, None, verdict)
    node.bookie.commit()
    return replies[0]


@pytest.fixture(params=[True, False], ids=["synced", "appended"])
def node(request: pytest.FixtureRequest) -> Node:
    return Node(staged=request.param)


def test_copies_are_stored_durably(node: Node) -> None:
    replies = node.send(copy(3, 4, 9))
    assert replies == [] and node.log.synced < len(node.log.stored)
    node.bookie.commit()
    assert replies == [Reply(ReplyStatus.OK, LEDGER, 3, 9, 8)]
    assert entries_in(node.crash().ask(read(0, 99))) == [3, 4, 9]
    size = len(node.log.stored)
    assert node.ask(copy(3, 4, 9)).status == ReplyStatus.OK and len(node.log.stored) == size, "stored once"


# ---- keys --------------------------------------------------------------------------------------------------------


def test_copies_note_no_key(node: Node) -> None:
    """Who copies has no key, and what it sends in place of one would keep the ledger's writer out."""
    node.ask(copy(0, 1))
    assert load_controls(node.log, LEDGER) == Controls(copied=True)
    assert [item.entry for item in node.log.stored if item.ledger != LEDGER] == [ControlCode.COPIED]
    for after in (node, node.crash()):
        assert after.bookie.claims(add(2)), "the real key is looked up, as that of a new ledger"
        assert after.bookie.claims(last(fence=True))


@pytest.mark.parametrize("request_", [add(2), add(2, flags=Flag.RECOVERY), last(fence=True), set_lac(1)])
def test_the_real_key_is_checked_and_noted_when_it_comes(request_: Request, node: Node) -> None:
    node.ask(copy(0, 1))
    assert judged(node, request_._replace(key=OTHER_KEY), KeyVerdict.WRONG).status == ReplyStatus.UNAUTHORIZED
    assert load_controls(node.log, LEDGER).key is None
    assert judged(node, request_, KeyVerdict.RIGHT).status == ReplyStatus.OK
    node.ask(copy(5))
    for after in (node, node.crash()):
        assert load_controls(after.log, LEDGER).key == KEY
        assert not after.bookie.claims(request_) and after.bookie.claims(request_._replace(key=OTHER_KEY))
        assert after.ask(add(3, flags=Flag.RECOVERY)).status == ReplyStatus.OK
        assert after.ask(add(4, flags=Flag.RECOVERY, key=PROOF)).status == ReplyStatus.UNAUTHORIZED


def test_a_noted_key_stays_when_copies_come(node: Node) -> None:
    node.ask(add(5))
    node.ask(copy(0, 1))
    for after in (node, node.crash()):
        assert load_controls(after.log, LEDGER) == Controls(key=KEY)
        assert after.ask(add(6)).status == ReplyStatus.OK
        assert entries_in(after.ask(read(0, 99))) == [0, 1, 5, 6]


def test_a_key_that_is_lost_stays_lost() -> None:
    """Then a fence may be lost, too. Copies that come later do not make up for it."""
    log = MemoryLog()
    log.append(records_of(0))
    log.sync()
    node = Node(log)
    assert node.ask(copy(1)).status == ReplyStatus.OK
    for after in (node, node.crash()):
        assert after.ask(add(2)).status == ReplyStatus.UNKNOWN
        assert load_controls(after.log, LEDGER) == Controls()


# ---- proofs ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("verdict", "status"),
    [
        (KeyVerdict.RIGHT, ReplyStatus.OK),
        (KeyVerdict.WRONG, ReplyStatus.UNAUTHORIZED),
        (KeyVerdict.NO_LEDGER, ReplyStatus.UNAUTHORIZED),
        (KeyVerdict.UNKNOWN, ReplyStatus.UNKNOWN),
        (KeyVerdict.SURPLUS, ReplyStatus.UNKNOWN),
    ],
)
@pytest.mark.parametrize("had", [None, add(9), copy(9)], ids=["nothing", "the key", "copies"])
def test_metadata_decide_whether_a_copy_is_stored(
    verdict: KeyVerdict, status: ReplyStatus, had: Request | None, node: Node
) -> None:
    """Unlike a writer, who copies can wait until the metadata answer."""
    if had is not None:
        node.ask(had)
    assert node.bookie.claims(copy(0))
    assert judged(node, copy(0), verdict).status == status
    assert node.bookie.claims(copy(1)) == (verdict is not KeyVerdict.RIGHT)
    assert entries_in(node.ask(read(0, 8))) == ([0] if verdict is KeyVerdict.RIGHT else [])


def test_a_proof_is_asked_for_once(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "PROOFS_MAX", 3)
    for ledger in (1, 2, 3):
        judged(node, copy(0, ledger=ledger), KeyVerdict.RIGHT)
    assert not node.bookie.claims(copy(1, ledger=1)), "used last"
    assert node.bookie.claims(copy(1, ledger=1, key=OTHER_PROOF)) and node.bookie.claims(copy(1, ledger=1, key=KEY))
    judged(node, copy(0, ledger=4), KeyVerdict.RIGHT)
    assert [node.bookie.claims(copy(1, ledger=ledger)) for ledger in (1, 2, 3, 4)] == [False, True, False, False]


def test_a_wrong_proof_does_not_take_the_place_of_the_right_one(node: Node) -> None:
    judged(node, copy(0), KeyVerdict.RIGHT)
    assert judged(node, copy(1, key=OTHER_PROOF), KeyVerdict.WRONG).status == ReplyStatus.UNAUTHORIZED
    assert not node.bookie.claims(copy(1)) and node.bookie.claims(copy(1, key=OTHER_PROOF))


def test_a_proof_is_no_key_and_a_key_is_no_proof(node: Node) -> None:
    judged(node, copy(0), KeyVerdict.RIGHT)
    node.ask(add(1))
    for request in (add(2, key=PROOF), last(fence=True, key=PROOF), set_lac(1, key=PROOF)):
        assert node.bookie.claims(request) and node.ask(request).status == ReplyStatus.UNAUTHORIZED
    assert node.ask(set_lac(1, key=PROOF, flags=Flag.COPY)).status == ReplyStatus.UNAUTHORIZED
    assert node.bookie.claims(copy(2, key=KEY))


def test_copies_of_a_deleted_ledger_are_refused(node: Node) -> None:
    judged(node, copy(0), KeyVerdict.RIGHT)
    node.bookie.forget(LEDGER)
    assert node.bookie.claims(copy(1))
    assert judged(node, copy(1), KeyVerdict.NO_LEDGER).status == ReplyStatus.UNAUTHORIZED
    assert judged(node, copy(1), KeyVerdict.RIGHT).status == ReplyStatus.REFUSED


# ---- what else refuses them --------------------------------------------------------------------------------------


def test_a_fenced_ledger_takes_copies_and_stays_fenced(node: Node) -> None:
    node.ask(add(5))
    node.ask(last(fence=True))
    assert node.ask(copy(0, 1)).status == ReplyStatus.OK
    assert node.ask(add(6)).status == ReplyStatus.FENCED


def test_limbo_takes_copies_and_stays(node: Node) -> None:
    node = node.crash(limbo=(LEDGER,))
    assert node.ask(copy(0)).status == ReplyStatus.OK
    assert node.ask(read(0, 1, step=1)).last == 0 and node.ask(read(1, 1)).status == ReplyStatus.LIMBO
    assert node.ask(add(1)).status == ReplyStatus.UNKNOWN, "a fence may be lost"


@pytest.mark.parametrize("flags", [Flag.COPY | other for other in (Flag.RECOVERY, Flag.UNSYNCED, Flag.FENCE)])
def test_copies_have_no_other_flag(flags: int, node: Node) -> None:
    """RECOVERY would let them have the space that recoveries need; UNSYNCED would answer before they are on disk."""
    assert node.ask(copy(0, flags=flags)).status == ReplyStatus.REFUSED
    assert entries_in(node.ask(read(0, 9))) == []


def test_space_that_is_kept_for_recoveries_is_not_for_copies() -> None:
    node = Node(reserve_bytes=0, read_only_below_bytes=1000, writable_from_bytes=2000)
    node.ask(add(0))
    node.log.free = 999
    node.bookie.expire(0)
    assert node.ask(add(1)).status == ReplyStatus.READ_ONLY
    assert node.ask(copy(1)).status == ReplyStatus.READ_ONLY
    assert node.ask(add(1, flags=Flag.RECOVERY)).status == ReplyStatus.OK
    full = Node()
    full.log.full = True
    assert full.ask(copy(0)).status == ReplyStatus.READ_ONLY


def test_other_records_than_the_ones_that_are_here_are_refused(node: Node) -> None:
    node.ask(add(0, 1))
    assert node.ask(copy(0, 1)).status == ReplyStatus.OK
    assert node.ask(copy(0, 1, mark=b"another")).status == ReplyStatus.REFUSED
    damaged = copy(2)._replace(records=records_of(2)[:-1] + b"\xff")
    assert node.ask(damaged).status == ReplyStatus.INVALID
    assert node.ask(copy(0)._replace(last=ID_MAX + 1)).status == ReplyStatus.REFUSED
    assert entries_in(node.ask(read(0, 9))) == [0, 1]


def test_a_copy_in_place_of_a_damaged_one(node: Node) -> None:
    node.ask(add(0, 1))
    node.log.damaged = {(LEDGER, 1)}
    size = len(node.log.stored)
    assert node.ask(copy(1)).status == ReplyStatus.OK and len(node.log.stored) == size + 1


def test_the_fast_path_takes_no_copies() -> None:
    """It compares keys, and knows nothing of proofs."""
    assert plain_of(add(0)) is not None
    assert plain_of(copy(0)) is None and plain_of(copy(0, flags=Flag.COPY | Flag.UNSYNCED)) is None
    assert as_fast_add(copy(0)) is None and as_fast_add(copy(0, flags=Flag.COPY | Flag.UNSYNCED)) is None


def test_a_copy_is_no_news_of_the_end(node: Node) -> None:
    """A ledger that is open elsewhere: copies of older entries leave the highest entry and the LAC as they are."""
    node.ask(add(10, 11))
    before = node.ask(last())
    assert node.ask(copy(0, 1)).lac == before.lac
    assert node.ask(last()) == before
