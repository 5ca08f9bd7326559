"""Ownership of topics: claims, waiting for claims, and losing them; in all three stores."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from pyreplog.errors import (
    ClosedError,
    InvalidArgumentError,
    InvalidMetadataError,
    LeaseLostError,
    MetadataUnavailableError,
    OutcomeUnknownError,
    TopicOwnedError,
)
from pyreplog.metadata import open_store
from pyreplog.metadata.keys import check_key
from pyreplog.metadata.memory import MemoryLease, MemoryStore
from pyreplog.topic.owner.ownership import Claim, Ownership, TopicOwner, owner_key, owner_of
from tests.metadata.conftest import other, shared_url, sqlite_url, store, url
from tests.metadata.processes import Process
from tests.waiting import until

__all__ = ["other", "shared_url", "sqlite_url", "store", "url"]  # these are fixtures

KEEPER = """
import sys
from pyreplog.metadata import open_store
from pyreplog.topic.owner.ownership import Ownership
url, ttl = sys.argv[1:]
say = lambda line: print(line + "\\n", end="", flush=True)  # one write, as two threads say something
with open_store(url) as store, Ownership(store, address="there:1", lease_s=float(ttl)) as ownership:
    claims = [ownership.claim(name, on_lost=lambda name=name: say("lost " + name)) for name in ("a", "b")]
    say("serving")
    for line in sys.stdin:
        say("held" if claims[0].is_held else "not held")
"""
"""A program that claims topics a and b, and answers each line with whether it holds a."""


LEASE_S = 3.0
"""The lease outlasts pauses of a process that waits for the processor."""


@pytest.fixture
def memory() -> Iterator[MemoryStore]:
    with MemoryStore() as store:
        yield store


def lease_of(ownership: Ownership) -> MemoryLease:
    assert ownership._current is not None and isinstance(ownership._current.lease, MemoryLease)
    return ownership._current.lease


# ---- claiming --------------------------------------------------------------------------------------------------


def test_claimed_topic_cannot_be_claimed_by_another_process(store, other) -> None:
    with Ownership(store, address="here:1") as first, Ownership(other, address="there:2") as second:
        assert second.owner_of("orders/é 1") is None
        with first.claim("orders/é 1") as claim, second.claim("another"):
            assert claim.is_held and claim.topic == "orders/é 1"
            owner = second.owner_of("orders/é 1")
            assert (owner.address, owner.pid) == ("here:1", os.getpid()) and owner_of(store, "orders/é 1") == owner
            with pytest.raises(TopicOwnedError, match=f"process {os.getpid()} of .* at here:1") as caught:
                second.claim("orders/é 1")
            assert caught.value.topic == "orders/é 1"
            with pytest.raises(TopicOwnedError, match="this process"):
                first.claim("orders/é 1")
        assert not claim.is_held and first.owner_of("orders/é 1") is None
        claim.release()
        with second.claim("orders/é 1"):
            claim.release()  # is not its own any more
            assert first.owner_of("orders/é 1").address == "there:2"
            with pytest.raises(TopicOwnedError, match="there:2"):
                first.claim("orders/é 1")


def test_all_topics_are_free_when_it_is_closed(store, other) -> None:
    lost: list[str] = []
    with Ownership(store) as first, Ownership(other) as second:
        claims = [first.claim(name, on_lost=lambda: lost.append("x")) for name in "abc"]
        first.close()
        assert [second.owner_of(name) for name in "abc"] == [None] * 3 and lost == []
        assert not any(claim.is_held for claim in claims)
        claims[0].release()
        for call in (first.claim, first.owner_of):
            with pytest.raises(ClosedError):
                call("a")
        assert second.claim("a").is_held


def test_all_claims_of_a_process_share_one_lease(memory, monkeypatch) -> None:
    numbers: list[float] = []
    begin = memory.lease
    monkeypatch.setattr(memory, "lease", lambda ttl, on_loss: numbers.append(ttl) or begin(ttl, on_loss))
    with Ownership(memory, lease_s=7) as ownership:
        assert numbers == []
        for n in range(20):
            ownership.claim(f"topic-{n}")
    assert numbers == [7]


def test_invalid_owner_metadata_raises_invalid_metadata_error(memory) -> None:
    good = TopicOwner("a:1", 7, "h", "i", 9)
    assert TopicOwner.decode(good.encode()) == good
    body = json.loads(good.encode())
    bad = [b"", b"[]", b"7", b"\xff", b'{"pid": 1}', *(json.dumps({**body, **wrong}).encode() for wrong in (
        {"pid": "7"}, {"address": 7}, {"since_us": 1.5}, {"version": "2"}, {"pid": True}))]  # fmt: skip
    for value in bad:
        with pytest.raises(InvalidMetadataError, match="owner of a topic"):
            TopicOwner.decode(value)
    memory.create(owner_key("t"), b"nonsense")
    with Ownership(memory) as ownership:
        for call in (ownership.claim, ownership.owner_of):
            with pytest.raises(InvalidMetadataError):
                call("t")


def test_every_topic_has_a_key(memory) -> None:
    names = [".", "..", "%2E", "a/b", "a%2Fb", "é" * 40, "é" * 39 + "e", " ", "~", "a" * 200]
    keys = {owner_key(name) for name in names}
    assert len(keys) == len(names)
    for key in keys:
        check_key(key)
    with Ownership(memory) as ownership:
        for bad in ("", "a\n", "é" * 200):
            with pytest.raises(InvalidArgumentError):
                ownership.claim(bad)
            with pytest.raises(InvalidArgumentError):
                ownership.owner_of(bad)


# ---- waiting ---------------------------------------------------------------------------------------------------


def waiting(ownership: Ownership, topic: str, pool: ThreadPoolExecutor) -> Future[Claim]:
    """Claim a topic in another thread; return once the claim waits."""
    before = len(ownership._waiting)
    future = pool.submit(ownership.claim, topic, wait=60)
    until(lambda: len(ownership._waiting) > before)
    return future


def test_release_hands_the_topic_to_a_waiting_claim_at_once(store, other) -> None:
    with Ownership(store) as first, Ownership(other) as second, ThreadPoolExecutor() as pool:
        for ownership in (second, first):  # of another process, and of this one
            claim = first.claim("t")
            next_ = waiting(ownership, "t", pool)
            assert not next_.done()
            claim.release()
            assert next_.result(30).is_held
            next_.result().release()


def test_waiting_for_a_claim_in_vain(store, other) -> None:
    with Ownership(store, address="here:1") as first, Ownership(other) as second, first.claim("t"):
        with pytest.raises(TopicOwnedError, match="here:1"):
            second.claim("t", wait=0.05)
        assert not second._waiting


def test_a_close_ends_the_waiting(memory) -> None:
    with Ownership(memory) as first, Ownership(memory) as second, ThreadPoolExecutor() as pool, first.claim("t"):
        actual_waiting = waiting(second, "t", pool)
        second.close()
        with pytest.raises(ClosedError):
            actual_waiting.result(30)


def test_concurrent_claims_have_one_holder_at_a_time(sqlite_url) -> None:
    """Four threads of two owners claim and release the topic, several times each."""
    holders: list[int] = []
    most: list[int] = []

    def serve(ownership: Ownership, number: int) -> None:
        for _ in range(5):
            with ownership.claim("t", wait=60):
                holders.append(number)
                most.append(len(holders))
                holders.remove(number)

    with (
        open_store(sqlite_url) as store,
        open_store(sqlite_url) as two,
        ThreadPoolExecutor() as pool,
        Ownership(store) as first,
        Ownership(two) as second,
    ):
        for job in [pool.submit(serve, ownership, n) for n, ownership in enumerate((first, first, second, second))]:
            job.result(120)
    assert most == [1] * 20


# ---- losing ----------------------------------------------------------------------------------------------------


def test_lost_lease_calls_on_lost_once_for_each_held_claim(memory) -> None:
    lost: list[str] = []
    with Ownership(memory) as first, Ownership(memory) as second:

        def fail() -> None:
            lost.append("a")
            raise RuntimeError("a callback that fails")

        claims = [first.claim("a", on_lost=fail), first.claim("b", on_lost=lambda: lost.append("b")), first.claim("c")]
        first.claim("d", on_lost=lambda: lost.append("d")).release()
        incarnation = first.owner_of("a").incarnation
        lease_of(first).expire()
        until(lambda: len(lost) >= 2)
        assert not any(claim.is_held for claim in claims)
        with second.claim("a"):
            claims[0].release()
            assert second.owner_of("a") is not None, "a lost claim leaves the next owner's alone"
            with pytest.raises(TopicOwnedError):
                first.claim("a")
        again = first.claim("a", on_lost=lambda: lost.append("again"))
        assert again.is_held and first.owner_of("a").incarnation != incarnation
        until(lambda: not first._sessions.get(incarnation))
    assert sorted(lost) == ["a", "b"]


def test_claim_is_not_held_while_its_lease_is_unconfirmed(memory) -> None:
    with Ownership(memory) as ownership, ownership.claim("t") as claim:
        lease = lease_of(ownership)
        lease.suspend()
        assert not claim.is_held
        lease.resume()
        until(lambda: claim.is_held)


def test_a_callback_may_claim_and_close(memory) -> None:
    done = threading.Event()
    claims: list[Claim] = []

    def again() -> None:
        claims.append(ownership.claim("t"))
        ownership.close()
        done.set()

    with Ownership(memory) as ownership:
        ownership.claim("t", on_lost=again)
        lease_of(ownership).expire()
        assert done.wait(30) and owner_of(memory, "t") is None


def test_a_loss_that_is_noticed_by_a_claim(memory, monkeypatch) -> None:
    """The key cannot be created, as the lease is gone: another lease is begun. Holders of old claims are told later."""
    with Ownership(memory) as ownership:
        lost = threading.Event()
        ownership.claim("a", on_lost=lost.set)
        old = lease_of(ownership)
        monkeypatch.setattr(old, "create", raising(LeaseLostError("gone")))
        assert ownership.claim("b").is_held and lease_of(ownership) is not old and not lost.is_set()
        old.expire()
        assert lost.wait(30) and owner_of(memory, "b") is not None


def test_a_loss_that_is_not_noticed_yet(memory) -> None:
    """A released topic may belong to the next owner already."""
    with Ownership(memory) as first, Ownership(memory) as second:
        claim = first.claim("t")
        memory.delete(owner_key("t"), memory.get(owner_key("t")).version)
        with second.claim("t"):
            owner = second.owner_of("t")
            claim.release()
            assert second.owner_of("t") == owner


def raising(error: Exception, after: Callable[..., object] | None = None) -> Callable[..., object]:
    """Return a call that raises an error, after or in place of the real one."""

    def call(*args: object) -> object:
        if after is not None:
            after(*args)
        raise error

    return call


@pytest.mark.parametrize("ends", ["killed", "frozen"])
def test_the_topics_of_a_process_that_died(shared_url, ends) -> None:
    """The process ends by kill -9, or is stopped for longer than its lease; the stopped one learns of the loss when it
    goes on."""
    with open_store(shared_url) as store, Process(KEEPER, shared_url, LEASE_S) as keeper, Ownership(store) as ownership:
        assert keeper.line() == "serving"
        until(lambda: keeper.ask() == "held")  # not at first, if the process had to wait for the processor
        with pytest.raises(TopicOwnedError, match=f"process {keeper.popen.pid} of .* at there:1"):
            ownership.claim("a")
        if ends == "killed":
            keeper.popen.kill()
        else:
            keeper.freeze(shared_url)
        with ownership.claim("a", wait=60) as claim:
            assert claim.is_held and ownership.owner_of("a").pid == os.getpid()
            if ends == "frozen":
                keeper.popen.send_signal(signal.SIGCONT)
                lines = [keeper.ask()]
                until(lambda: lines.append(keeper.ask()) or {"lost a", "lost b"} <= set(lines))
                assert "held" not in lines and lines.count("lost a") == lines.count("lost b") == 1
            assert ownership.owner_of("a").pid == os.getpid()


# ---- stores that fail ------------------------------------------------------------------------------------------


def test_a_claim_whose_outcome_was_unknown(memory, monkeypatch) -> None:
    with Ownership(memory) as ownership, Ownership(memory) as other:
        ownership.claim("first")
        lease = lease_of(ownership)
        create = lease.create
        monkeypatch.setattr(lease, "create", raising(OutcomeUnknownError("?"), create))
        assert ownership.claim("done").is_held, "it was made: a look shows it"
        monkeypatch.setattr(lease, "create", raising(OutcomeUnknownError("?")))
        with pytest.raises(OutcomeUnknownError):
            ownership.claim("late")
        monkeypatch.setattr(lease, "create", create)
        create(owner_key("late"), TopicOwner("", 1, "h", ownership.owner_of("first").incarnation, 1).encode())
        with pytest.raises(TopicOwnedError):
            other.claim("late")
        with ownership.claim("late") as claim:  # made in the end
            assert claim.is_held
        assert other.claim("late").is_held


def test_a_release_that_fails_may_be_repeated(memory, monkeypatch) -> None:
    with Ownership(memory) as ownership:
        lost: list[str] = []
        claims = {name: ownership.claim(name, on_lost=lambda: lost.append("x")) for name in "ab"}
        with monkeypatch.context() as broken:
            broken.setattr(memory, "delete", raising(MetadataUnavailableError("away")))
            for claim in claims.values():
                with pytest.raises(MetadataUnavailableError):
                    claim.release()
                assert not claim.is_held and owner_of(memory, claim.topic) is not None
        claims["a"].release()
        assert owner_of(memory, "a") is None
        with ownership.claim("b") as anew:
            claims["b"].release()  # is another's now
            assert anew.is_held and owner_of(memory, "b") is not None
            ownership.claim("c").release()
            lease_of(ownership).expire()
            until(lambda: not anew.is_held)
    assert lost == []


def test_no_lease_to_be_had(memory, monkeypatch) -> None:
    with Ownership(memory) as ownership:
        with monkeypatch.context() as broken:
            broken.setattr(memory, "lease", raising(MetadataUnavailableError("away")))
            with pytest.raises(MetadataUnavailableError):
                ownership.claim("t")
        assert ownership.claim("t").is_held


def test_a_lease_that_is_lost_as_soon_as_it_is_made_is_given_back(memory, monkeypatch) -> None:
    """Otherwise the store would renew it for ever."""
    leases: list[MemoryLease] = []
    make = memory.lease

    def lost_at_once(ttl_s, on_lost):
        lease = make(ttl_s, on_lost)
        leases.append(lease)
        on_lost()
        return lease

    with Ownership(memory) as ownership:
        with monkeypatch.context() as patch:
            patch.setattr(memory, "lease", lost_at_once)
            with pytest.raises(LeaseLostError):
                ownership.claim("t")
        with pytest.raises(ClosedError):
            _ = leases[0].state
        assert ownership.claim("t").is_held
