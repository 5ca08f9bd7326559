"""Retention keeps records for replicas: when a master starts again, on a replica that is promoted, and on a replica
that has replicas."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from pyreplog.errors import DisconnectedError
from pyreplog.ha.master import Master
from pyreplog.ha.node import Node
from pyreplog.ha.protocol import messages
from pyreplog.net.reactor import Reactor
from tests.ha.inside import followers_of, has_log, master_of, replica_of
from tests.ha.nodes import SEGMENT_BYTES, Lab, level, until, values
from tests.ha.test_attacks_wire import Stranger, join

LITTLE = {"retention_bytes": SEGMENT_BYTES}


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    with ExitStack() as stack:
        yield Lab(tmp_path, stack)


def fill(node: Node, segments: int = 6) -> None:
    for _ in range(segments):
        node.append_batch([b"." * 1000] * (SEGMENT_BYTES // 1000))


def retain(node: Node) -> int:
    """Trim all that retention may trim; return where the log begins then."""
    node.log.run_background_tasks()
    return node.log.start_position


def test_a_master_that_starts_again_keeps_what_replicas_lack(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Retention runs as soon as the log is open, before the master knows which records its replicas lack."""
    a = lab.master(members="ab", sync_replicas=0, log=LITTLE)
    b = lab.replica("b", a)
    a.append(b"first")
    level(a, b)
    lab.close(b)
    fill(a)
    lab.close(a)
    with monkeypatch.context() as patch:
        patch.setattr(Master, "_set_retention_floor", lambda _: None)
        a = lab.master(members="ab", sync_replicas=0, log=LITTLE)
        assert retain(a) == 0
    b = lab.replica("b", a)
    level(a, b)
    until(lambda: retain(a) > 0)


def test_a_promoted_replica_keeps_what_its_master_kept(lab: Lab) -> None:
    """After the promotion, other replicas have to find there the records that they lack."""
    a = lab.master(log=LITTLE)
    b, c = lab.replica("b", a, log=LITTLE), lab.replica("c", a)
    a.append(b"first")
    level(a, b, c)
    lab.close(c)
    until(lambda: a.log.retention_floor < SEGMENT_BYTES)
    fill(a)
    level(a, b)
    assert (retain(a), retain(b)) == (0, 0)
    b.promote()
    until(lambda: a.role == "replica" and a.stats()["streaming"])
    c = lab.replica("c", b)
    level(b, a, c)
    assert values(c) == values(b)
    until(lambda: retain(b) > 0)
    until(lambda: b.append(b"tells where the log begins") and retain(a) > 0)


@pytest.mark.parametrize("hold_bytes", [1 << 30, 2 * SEGMENT_BYTES])
def test_a_replica_keeps_what_its_own_replicas_lack(lab: Lab, hold_bytes: int) -> None:
    """The bytes that are kept are bounded."""
    a = lab.master(members="a", sync_replicas=0)
    middle = lab.replica("m", a, observer=True, log=LITTLE, group={"retention_hold_bytes": hold_bytes})
    a.append(b"first")
    level(a, middle)
    with Reactor() as reactor:
        reactor.start()
        with Stranger(reactor, middle.address, "x") as slow:
            slow.say(messages.encode(join(middle, "x", observer=True)))
            until(lambda: slow.received)
            fill(a)
            level(a, middle)
            until(lambda: middle.log.retention_floor < 1 << 62)
            assert middle.log.tail.end - retain(middle) < hold_bytes + 2 * SEGMENT_BYTES
            kept = retain(middle)
            assert (kept == 0) == (hold_bytes > middle.log.tail.end)
            slow.connections[0].close(DisconnectedError("enough"))
            until(lambda: retain(middle) > max(kept, 4 * SEGMENT_BYTES))


def test_uncommitted_records_are_not_removed(lab: Lab) -> None:
    """No reader has seen these records, and a replica that acknowledges them later would have records that its master
    lacks."""
    a = lab.master(members="ab", log=LITTLE, group={"retention_hold_bytes": 0})
    for _ in range(6):
        a.submit_batch([b"." * 1000] * (SEGMENT_BYTES // 1000))
    until(lambda: a.log.retention_floor > 4 * SEGMENT_BYTES)
    assert retain(a) == 0 and values(a) == []
    b = lab.replica("b", a)
    until(lambda: has_log(b) and len(values(b)) == 6 * (SEGMENT_BYTES // 1000))
    until(lambda: retain(a) > 4 * SEGMENT_BYTES)


def test_records_are_kept_for_a_replica_that_joins_between_two_ticks(lab: Lab) -> None:
    """Otherwise the records that it is about to be sent could be removed before the next tick."""
    a = lab.master(members="a", sync_replicas=0)
    fill(a)
    master = master_of(a)
    with Reactor() as reactor:
        reactor.start()
        with Stranger(reactor, a.address, "x") as new:
            master._timer.cancel()
            a.log.retention_floor = 1 << 62
            new.say(messages.encode(join(a, "x", observer=True)))
            until(lambda: followers_of(a))
            until(lambda: new.received)  # `join` ends with this message
            a.log.config = replace(a.log.config, **LITTLE)
            assert retain(a) == 0


def test_observers_of_a_replica_are_throttled_as_those_of_a_master(lab: Lab) -> None:
    a = lab.master(members="a", sync_replicas=0)
    middle = lab.replica("m", a, observer=True, throttle_bytes_per_s=1 << 20)
    x = lab.replica("x", middle, observer=True)
    a.append(b"one")
    level(a, middle, x)
    replica = replica_of(middle)
    assert replica is not None and replica._cascade is not None
    (follower,) = replica._cascade._followers.values()
    assert follower.sender._throttle is not None
