"""Keys that live as long as their owner, in all three stores."""

from __future__ import annotations

import signal
import threading
import time

import pytest

from pyreplog.clock import SystemClock
from pyreplog.errors import (
    ClosedError,
    InvalidArgumentError,
    KeyExistsError,
    LeaseLostError,
    MetadataUnavailableError,
    VersionConflictError,
)
from pyreplog.metadata import Lease, LeaseState, open_store
from pyreplog.metadata.lease import Heartbeat
from tests.metadata.processes import HOLDER, Process
from tests.waiting import until

TTL_S = 20
"""Of leases that nothing here waits for the end of: longer than a machine that is busy stands still."""

SHORT_S = 5.0
"""Of those that end by themselves."""


def test_keys_vanish_when_the_lease_is_closed(store, other):
    with store.lease(TTL_S) as lease, store.lease(TTL_S) as second:
        assert lease.state is LeaseState.HELD and lease.ttl == TTL_S
        lease.create("/bookies/a", b"x")
        lease.create("/bookies/b", b"y")
        second.create("/bookies/c", b"z")
        store.create("/bookies/d", b"")
        assert other.list("/bookies") == ["a", "b", "c", "d"] and other.get("/bookies/a").value == b"x"
        lease.close()
        assert other.list("/bookies") == ["c", "d"] and other.get("/bookies/a") is None
        assert second.state is LeaseState.HELD
    assert other.list("/bookies") == ["d"]


def test_keys_are_like_other_keys(store, other):
    with store.lease(TTL_S) as lease:
        version = lease.create("/a", b"one")
        with pytest.raises(KeyExistsError):
            other.create("/a", b"")
        with pytest.raises(KeyExistsError):
            lease.create("/a", b"")
        newer = other.put("/a", b"two", version)
        with pytest.raises(VersionConflictError):
            other.delete("/a", version)
        other.delete("/a", newer)
        other.create("/a", b"somebody else's")
    assert store.get("/a").value == b"somebody else's"


def test_leased_keys_have_no_children(store):
    with store.lease(TTL_S) as lease:
        lease.create("/a/b", b"")
        for call in (store.create, lease.create):
            for key in ("/a/b/c", "/a/b/c/d"):
                with pytest.raises(InvalidArgumentError, match="lease"):
                    call(key, b"")
        assert store.list("/a/b") == []
    assert store.get("/a/b") is None and store.get("/a") is not None


def test_watchers_hear_of_the_end(store, other):
    seen: list[tuple[bool, list[str]]] = []
    look = lambda key: seen.append((other.get("/a/b") is not None, other.list("/a")))  # noqa: E731
    with other.watch("/a/b", look), other.watch("/a", look):
        with store.lease(TTL_S) as lease:
            lease.create("/a/b", b"")
            until(lambda: (True, ["b"]) in seen)
            seen.clear()
        until(lambda: (False, []) in seen)


def test_closing_the_store_ends_its_leases(url, store, other):
    lease = store.lease(TTL_S)
    lease.create("/a", b"")
    store.close()
    if url != "memory:":
        assert other.get("/a") is None
    with pytest.raises(Exception, match="closed"):
        lease.create("/b", b"")


def test_a_lease_that_begins_while_the_store_is_closed_ends_with_it(store, monkeypatch):
    """Nobody would end it: its thread would go on for ever."""
    begun: list[Lease] = []

    def begin(ttl, on_loss):
        monkeypatch.undo()
        begun.append(store._lease(ttl, on_loss))
        with store._lease_lock:  # as `close` does before it ends those there are
            store._takes_leases = False
        return begun[0]

    monkeypatch.setattr(store, "_lease", begin)
    with pytest.raises(ClosedError, match="closed"):
        store.lease(TTL_S)
    with pytest.raises(ClosedError):
        _ = begun[0].state
    assert not begun[0]._heartbeat._thread.is_alive()


def test_a_lease_that_cannot_be_ended_keeps_nothing_else_open(url, store, other, monkeypatch):
    leases = [store.lease(TTL_S) for _ in range(3)]
    for number, lease in enumerate(leases):
        lease.create(f"/{number}", b"")
    end = Lease.close

    def close(lease):
        if lease is leases[1]:
            raise MetadataUnavailableError("the store is away")
        end(lease)

    monkeypatch.setattr(Lease, "close", close)
    with pytest.raises(MetadataUnavailableError, match="is away"):
        store.close()
    if url != "memory:":
        assert [other.get(f"/{number}") for number in (0, 2)] == [None, None]
    with pytest.raises(ClosedError):
        store.get("/1")


def test_heartbeat_thread_of_an_unclosed_lease_ends_with_its_store(caplog):
    """The lease may be collected as garbage with the handle that is to close it: the store does not know it then."""
    others, renewals = {*threading.enumerate()}, iter([SystemClock().monotonic_us])

    def renew():
        for renewal in renewals:
            return renewal()
        raise ClosedError("the store was closed")

    heartbeat = Heartbeat(ttl=0.03, clock=SystemClock(), renew=renew, give_up=None, on_loss=None)
    until(lambda: not {*threading.enumerate()} - others)
    assert heartbeat.state is LeaseState.UNKNOWN and not caplog.text


@pytest.mark.parametrize("ttl", [0, -1, float("nan"), float("inf"), 1e9])
def test_impossible_lease_times_are_refused(store, ttl):
    with pytest.raises(InvalidArgumentError, match="seconds"):
        store.lease(ttl)


def test_suspended_is_unknown_and_lost_is_lost():
    """In memory the test says when; the callback comes once, and never for a lease that its owner closed."""
    lost: list[str] = []
    with open_store("memory:") as store:
        closed = store.lease(TTL_S, on_loss=lambda: lost.append("closed"))
        closed.close()
        with store.lease(TTL_S, on_loss=lambda: lost.append("one")) as lease:
            lease.create("/a", b"")
            lease.suspend()
            assert lease.state is LeaseState.UNKNOWN and store.get("/a") is not None
            lease.resume()
            until(lambda: lease.state is LeaseState.HELD)
            lease.expire()
            assert lease.state is LeaseState.LOST and store.get("/a") is None
            until(lambda: lost)
            with pytest.raises(LeaseLostError, match="/b"):
                lease.create("/b", b"")
            lease.resume()
            assert lease.state is LeaseState.LOST
    assert lost == ["one"]


def test_a_callback_may_close_its_lease(store):
    with open_store("memory:") as store:
        done: list[object] = []
        lease = store.lease(TTL_S, on_loss=lambda: done.append(lease.close()))
        lease.expire()
        until(lambda: done)


def test_keys_are_held_while_their_owner_lives_and_vanish_with_it(shared_url):
    """kill -9: nobody cleans up."""
    with open_store(shared_url) as store, Process(HOLDER, shared_url, SHORT_S) as holder:
        gone: list[bool] = []
        assert holder.line() == "holding"
        with store.watch("/holders", lambda key: gone.append(store.list("/holders") == [])):
            first = store.get("/holders/one")
            until(lambda: holder.ask() == "held")  # in doubt it may be, when it stood still
            until(lambda: gone[-1:] == [False])
            holder.popen.kill()
            until(lambda: True in gone)
        assert first is not None and store.get("/holders/one") is None


def test_renewal_holds_for_longer_than_the_ttl(zookeeper_url):
    """Watched for longer than the ttl, by a store that would hear of every end. Of SQLite's see test_sqlite_store."""
    with open_store(zookeeper_url) as store, open_store(zookeeper_url) as owner, owner.lease(SHORT_S) as lease:
        lease.create("/a", b"")
        begun, seen = time.monotonic(), []
        with store.watch("/a", lambda key: seen.append(store.get("/a"))):
            until(lambda: time.monotonic() > begun + 1.5 * SHORT_S)
        assert None not in seen and lease.state is not LeaseState.LOST


def test_a_frozen_owner_learns_that_it_lost(shared_url):
    """SIGSTOP for longer than the ttl: the key vanishes; awake again, the owner first doubts and then knows."""
    with open_store(shared_url) as store, Process(HOLDER, shared_url, SHORT_S) as holder:
        assert holder.line() == "holding"
        holder.freeze(shared_url)
        until(lambda: store.get("/holders/one") is None)
        holder.popen.send_signal(signal.SIGCONT)
        said = [holder.ask()]
        until(lambda: said.append(holder.ask()) or ("lost" in said and "on_loss" in said))
        assert "held" not in said
        assert said.count("on_loss") == 1
        assert store.get("/holders/one") is None
