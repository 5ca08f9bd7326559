"""Retention knows replicas: those that are away when a master starts again, heirs, and replicas of replicas."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from pyreplog.errors import DisconnectedError
from pyreplog.ha.master import Master
from pyreplog.ha.node import Node
from pyreplog.ha.protocol import messages
from pyreplog.net.reactor import Reactor
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
    """Have retention do all that it may; where the log begins then."""
    node.log._housekeeper.step(node.log)
    return node.log.start_position


def test_a_master_that_starts_again_keeps_what_replicas_lack(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Retention runs as soon as the log is open, before the master knows who lacks what."""
    a = lab.master(members="ab", sync_replicas=0, log=LITTLE)
    b = lab.replica("b", a)
    a.append(b"first")
    level(a, b)
    lab.close(b)
    fill(a)
    lab.close(a)
    with monkeypatch.context() as patch:
        patch.setattr(Master, "_keep", lambda _: None)
        a = lab.master(members="ab", sync_replicas=0, log=LITTLE)
        assert retain(a) == 0
    b = lab.replica("b", a)
    level(a, b)
    until(lambda: retain(a) > 0)


def test_an_heir_keeps_what_its_master_kept(lab: Lab) -> None:
    """Others have to find there what they lack."""
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
    """Up to a bound."""
    a = lab.master(members="a", sync_replicas=0)
    middle = lab.replica("m", a, observer=True, log=LITTLE, group={"retention_hold_bytes": hold_bytes})
    a.append(b"first")
    level(a, middle)
    with Reactor() as reactor:
        reactor.start()
        with Stranger(reactor, middle.address, "x") as slow:
            slow.say(messages.encode(join(middle, "x", observer=True)))
            until(lambda: slow.heard)
            fill(a)
            level(a, middle)
            until(lambda: middle.log.retention_floor < 1 << 62)
            assert middle.log.tail.end - retain(middle) < hold_bytes + 2 * SEGMENT_BYTES
            kept = retain(middle)
            assert (kept == 0) == (hold_bytes > middle.log.tail.end)
            slow.connections[0].close(DisconnectedError("enough"))
            until(lambda: retain(middle) > max(kept, 4 * SEGMENT_BYTES))
