"""Copying what a member should hold, one message at a time."""

from __future__ import annotations

import random
from typing import Any

import pytest
from ledger.lab import KEY, LEDGER, Bench, Lab, written

from pyreplog._native.quorum.quorum import write_set
from pyreplog.autorecovery.protocol import stripe_copy
from pyreplog.autorecovery.protocol.stripe_copy import StripeCopied, StripeCopy
from pyreplog.bookie.protocol import Flag, Reply, ReplyStatus, Request, RequestKind
from pyreplog.errors import InvalidArgumentError, UnreadableError
from pyreplog.ledger.ledger_metadata import key_proof

COUNT = 40


def lab_of(size: int = 5, quorum: int = 3, count: int = COUNT) -> Lab:
    lab = Lab(size, quorum, quorum // 2 + 1, spares=2)
    written(lab, count)
    return lab


def copying(lab: Lab, index: int, target: str = "f", count: int = COUNT, **options: Any) -> Bench:
    bench = Bench(lab, StripeCopy(lab.metadata, first=0, end=count, index=index, target=target, **options))
    bench.do(bench.machine.start())
    return bench


def stripe(lab: Lab, index: int, count: int = COUNT) -> list[int]:
    sizes = lab.metadata.ensemble_size, lab.metadata.write_quorum
    return [entry for entry in range(count) if index in write_set(entry, *sizes)]


def held(lab: Lab, bookie: str) -> list[int]:
    return [entry for entry in range(200) if lab.logs[bookie].holds(LEDGER, entry)]


def finish(bench: Bench) -> StripeCopied:
    while bench.sends:
        bench.deliver()
    (finished,) = bench.finished
    assert finished.error is None
    result: StripeCopied = finished.result
    return result


def failure(bench: Bench) -> str:
    while bench.sends:
        bench.deliver()
    (finished,) = bench.finished
    assert isinstance(finished.error, UnreadableError)
    return str(finished.error)


@pytest.mark.parametrize(("size", "quorum"), [(3, 3), (5, 3), (4, 2), (2, 2), (6, 5), (5, 5)])
@pytest.mark.parametrize("entries", [1, 3, 4096])
def test_the_target_gets_the_members_entries_and_no_others(
    size: int, quorum: int, entries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stripe_copy, "SEGMENT_ENTRIES", entries)
    for index in range(size):
        lab = lab_of(size, quorum)
        target, lost = "abcdefgh"[size], "abcdefgh"[index]
        copied = finish(copying(lab, index, target, absent={lost}))
        assert held(lab, target) == stripe(lab, index)
        assert (copied.entries, copied.missing) == (len(stripe(lab, index)), ())
        assert copied.bytes == sum(len(record) for record in lab.logs[target].held[LEDGER].values())


def test_bytes_copied_are_bytes_needed() -> None:
    """E=5, Qw=3: three fifths of the fragment, not all of it."""
    lab = lab_of()
    bench = copying(lab, 0, absent={"a"})
    read: list[int] = []
    while bench.sends:
        for send in list(bench.sends):
            bench.sends.remove(send)
            reply = bench.arrive(send)
            if send.request.kind == RequestKind.READ:
                read.append(len(reply.body))
            bench.reply(send, reply)
    needed = sum(len(record) for record in lab.logs["a"].held[LEDGER].values())
    assert sum(read) == bench.finished[0].result.bytes == needed


def test_records_arrive_as_they_were_written() -> None:
    lab = lab_of()
    finish(copying(lab, 2, absent={"c"}))
    assert all(lab.logs["f"].held[LEDGER][entry] == lab.logs["c"].held[LEDGER][entry] for entry in stripe(lab, 2))


def test_the_reply_to_an_add_proves_that_it_is_on_disk() -> None:
    """The adds are synced, and taken by a ledger that is fenced (PR #4163)."""
    lab = lab_of()
    bench = copying(lab, 0, absent={"a"})
    bench.deliver("bcde")
    adds = bench.to("f", RequestKind.ADD)
    assert adds
    assert {int(send.request.flags) for send in adds} == {int(Flag.COPY)}
    lab.ask("f", Request(RequestKind.LAST, LEDGER, key=KEY, flags=Flag.FENCE))
    finish(bench)
    assert held(lab, "f") == stripe(lab, 0)


def test_the_proof_admits_the_copies() -> None:
    """Who copies has no key of the ledger: it may have a password."""
    lab = lab_of()
    bench = copying(lab, 0, absent={"a"})
    bench.deliver("bcde")
    assert {send.request.key for send in bench.to("f", RequestKind.ADD)} == {bytes.fromhex(key_proof(KEY))}
    finish(bench)
    writes = Request(RequestKind.SET_LAC, LEDGER, 0, 5, KEY)
    assert lab.bookies["f"].claims(writes), "no key was noted"
    assert lab.ask("f", writes).status == ReplyStatus.OK


def test_a_member_that_runs_is_asked_last() -> None:
    lab = lab_of()
    bench = copying(lab, 0)
    assert not bench.to("a")
    for other in "bcde":
        lab.down.add(other)
    finish(bench)
    assert held(lab, "f") == stripe(lab, 0), "a drain goes on from the bookie that is drained"


def test_absent_bookies_are_not_read_for_a_stripe_copy() -> None:
    lab = lab_of()
    bench = copying(lab, 0, absent={"a", "b"})
    seen: set[str] = set()
    while bench.sends:
        seen |= {send.bookie for send in bench.sends}
        bench.deliver()
    assert seen == {"c", "d", "e", "f"}
    assert held(lab, "f") == stripe(lab, 0)


def test_an_entry_that_one_member_lacks_is_read_from_another() -> None:
    lab = lab_of()
    for entry in (0, 10, 11, 39):
        for bookie in "bcde":
            if lab.logs[bookie].holds(LEDGER, entry) and sum(lab.logs[b].holds(LEDGER, entry) for b in "bcde") > 1:
                del lab.logs[bookie].held[LEDGER][entry]
    assert finish(copying(lab, 0, absent={"a"})).missing == ()
    assert held(lab, "f") == stripe(lab, 0)


def test_missing_is_what_every_other_member_definitely_lacks() -> None:
    lab = lab_of()
    gone = [entry for entry in (0, 3, 20, 38) if entry in stripe(lab, 0)]
    for entry in gone:
        for bookie in "bcde":
            lab.logs[bookie].held[LEDGER].pop(entry, None)
    copied = finish(copying(lab, 0, absent={"a"}))
    assert copied.missing == tuple(gone)
    assert held(lab, "f") == [entry for entry in stripe(lab, 0) if entry not in gone]


@pytest.mark.parametrize("how", ["down", "limbo", "damaged"])
def test_a_copy_fails_while_a_holder_cannot_tell(how: str) -> None:
    """Entry 0 lies on a, b and c. b has lost it, and c cannot say."""
    lab = lab_of()
    del lab.logs["b"].held[LEDGER][0]
    if how == "down":
        lab.down.add("c")
    elif how == "limbo":
        del lab.logs["c"].held[LEDGER][0]
        lab.bookies["c"].limbo.enter([LEDGER])
    else:
        lab.logs["c"].damaged.add((LEDGER, 0))
    assert "no copy of entry 0 can be read: c: " in failure(copying(lab, 0, absent={"a"}))


def test_a_damaged_copy_is_reported_and_read_elsewhere() -> None:
    lab = lab_of()
    bench = copying(lab, 0, absent={"a"})
    send = bench.take("b")
    good = bench.arrive(send)
    body = bytearray(good.body)
    body[-1] ^= 1
    bench.reply(send, good._replace(body=bytes(body)))
    assert finish(bench).missing == ()
    assert held(lab, "f") == stripe(lab, 0)


@pytest.mark.parametrize("status", [ReplyStatus.READ_ONLY, ReplyStatus.UNKNOWN, ReplyStatus.REFUSED])
def test_a_target_that_refuses_ends_the_copy(status: ReplyStatus) -> None:
    lab = lab_of()
    bench = copying(lab, 0, absent={"a"})
    bench.deliver("bcde")
    bench.reply(bench.take("f"), Reply(status, LEDGER))
    told = str(bench.finished[0].error)
    assert "the copy to f has ended: f does not take the copies" in told
    bench.fail("f")
    bench.deliver()
    assert len(bench.finished) == 1, "late answers change nothing"
    assert bench.machine.is_refused, "so another one may take them"


def test_a_target_that_stays_overloaded_refuses() -> None:
    lab = lab_of()
    bench = copying(lab, 0, absent={"a"}, window=1)
    bench.deliver("bcde")
    slept = []
    while not bench.finished:
        bench.reply(bench.take("f"), Reply(ReplyStatus.OVERLOADED, LEDGER))
        if bench.wakes:
            wake = bench.wakes.pop()
            slept.append(wake.seconds)
            bench.do(bench.machine.woken(wake.about))
    assert slept == [0.25, 0.5, 1.0, 2.0, 4.0]
    assert bench.machine.is_refused


def test_a_target_that_is_down_fails_the_copy() -> None:
    lab = lab_of()
    lab.down.add("f")
    assert "f does not take the copies" in failure(copying(lab, 0, absent={"a"}))


@pytest.mark.parametrize("window", [1, 2, 3])
def test_the_window_bounds_what_is_on_its_way(window: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stripe_copy, "SEGMENT_ENTRIES", 2)
    lab = lab_of()
    bench = copying(lab, 0, absent={"a"}, window=window)
    while bench.sends:
        assert len(bench.sends) <= window
        bench.deliver(bench.sends[0].bookie)
    assert held(lab, "f") == stripe(lab, 0)


def test_the_pace_is_asked_after_each_batch() -> None:
    lab = lab_of()
    spent: list[int] = []

    def throttle(count: int) -> float:
        spent.append(count)
        return 0.5 * (len(spent) % 2)  # every other batch has to wait

    bench = copying(lab, 0, absent={"a"}, throttle=throttle, window=2)
    slept = 0.0
    while bench.sends or bench.wakes:
        bench.deliver()
        for wake in bench.wakes[:]:
            bench.wakes.remove(wake)
            slept += wake.seconds
            bench.do(bench.machine.woken(wake.about))
    copied = bench.finished[0].result
    assert sum(spent) == copied.bytes
    assert spent[0] == 0 and slept == 0.5 * -(-len(spent) // 2), (
        "what earlier copies have overdrawn is waited for first"
    )


def test_after_the_last_batch_nothing_waits() -> None:
    """Copies that are not proved yet may be removed as surplus; the next copy waits instead."""
    lab = lab_of()
    bench = copying(lab, 0, absent={"a"}, throttle=lambda count: 3600.0 if count else 0.0, window=8)
    while bench.sends:
        bench.deliver()
    assert bench.finished
    assert held(lab, "f") == stripe(lab, 0)


@pytest.mark.parametrize("last", [-1, 1 << 40])
def test_a_reply_about_other_entries_is_not_believed(last: int) -> None:
    lab = lab_of()
    bench = copying(lab, 0, absent={"a"})
    send = bench.take("b")
    bench.reply(send, Reply(ReplyStatus.OK, LEDGER, send.request.first, last))
    assert finish(bench).missing == ()
    assert held(lab, "f") == stripe(lab, 0)


def test_entries_that_were_not_asked_for_are_not_copied() -> None:
    """Records of another stripe, intact, and a damaged one behind them."""
    lab = lab_of()
    bench = copying(lab, 0, absent={"a"})
    send = bench.take("b")
    asked = send.request
    strays = bench.lab.ask("b", asked._replace(first=asked.first + 1, step=1))
    bench.reply(send, strays._replace(first=asked.first, body=bytes(strays.body) + bytes(40)))
    assert finish(bench).missing == ()
    assert held(lab, "f") == stripe(lab, 0)


def test_an_empty_fragment_needs_no_copy() -> None:
    lab = lab_of(count=1)
    bench = Bench(lab, StripeCopy(lab.metadata, first=0, end=0, index=0, target="f"))
    bench.do(bench.machine.start())
    assert bench.finished[0].result == StripeCopied(0, 0, (), 0, 0)


@pytest.mark.parametrize(
    "wrong",
    [{"first": 1}, {"index": 5}, {"index": -1}, {"target": "b"}, {"window": 0}],
    ids=lambda wrong: "".join(wrong),
)
def test_impossible_stripes_are_refused(wrong: dict[str, Any]) -> None:
    lab = lab_of()
    with pytest.raises(InvalidArgumentError):
        StripeCopy(lab.metadata, **{"first": 0, "end": COUNT, "index": 0, "target": "f", **wrong})


@pytest.mark.parametrize("seed", range(150))
def test_any_order_and_any_loss(seed: int) -> None:
    """Members lose entries, are down, or in limbo, and answers come in any order: the target has what some other member
    had, and "missing" is said of what nobody else has only."""
    rng = random.Random(seed)
    size = rng.randint(2, 5)
    quorum = rng.randint(2, size)
    lab = lab_of(size, quorum)
    index = rng.randrange(size)
    lost, others = "abcde"[index], [name for name in "abcde"[:size] if name != "abcde"[index]]
    target = "abcdefgh"[size]
    for bookie in others:
        for entry in rng.sample(range(COUNT), rng.choice([0, 0, 5, 30])):
            lab.logs[bookie].held[LEDGER].pop(entry, None)
        if rng.random() < 0.15:
            lab.down.add(bookie)
        elif rng.random() < 0.1:
            lab.bookies[bookie].limbo.enter([LEDGER])
    had = {e for e in stripe(lab, index) if any(lab.logs[b].holds(LEDGER, e) for b in others)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stripe_copy, "SEGMENT_ENTRIES", rng.choice([1, 3, 10, 100]))
        bench = copying(lab, index, target, absent={lost}, window=rng.randint(1, 5))
    while bench.sends:
        send = bench.take(rng.choice(bench.sends).bookie)
        if send.bookie in lab.down or rng.random() < 0.02:
            bench.do(bench.machine.failed(send, ConnectionError("lost")))
        else:
            bench.reply(send)
    (finished,) = bench.finished
    assert {*held(lab, target)} <= {*stripe(lab, index)}
    if finished.error is None:
        assert {*held(lab, target)} == had
        assert {*finished.result.missing} == {*stripe(lab, index)} - had
