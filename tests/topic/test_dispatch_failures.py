"""Why a message became a dead letter: by which cause it came back last, and the reason that a consumer gave."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from pyreplog.topic.model.dispatch import redelivery
from pyreplog.topic.model.dispatch.redelivery import Reasons, RedeliveryCause
from tests.topic.dispatching import Log, Rig


def rig(**settings: object) -> Rig:
    """Ten messages; consumer 1 has all of them, and each becomes a dead letter when it comes back."""
    log = Log()
    log.publish(10)
    made = Rig(log, **{"type": "shared", "nack_min_ms": 0, "nack_max_ms": 1000, "max_redeliveries": 0, **settings})
    made.attach(1, 1000)
    return made


def failures(one: Rig) -> dict[int, tuple[str, str | None]]:
    """By offset: the cause and the reason of its dead letter."""
    return {at: (why.cause, why.reason) for dead in one.dead for at, why in dead.failures.items()}


CAUSES: dict[RedeliveryCause, Callable[[Rig], None]] = {
    RedeliveryCause.NACK: lambda one: one.nack(1, range(10)),
    RedeliveryCause.ACK_TIMEOUT: lambda one: one.sleep(60),
    RedeliveryCause.CONSUMER_LOST: lambda one: one.detach(1),
    RedeliveryCause.REDELIVER: lambda one: one.do(one.dispatcher.redeliver_unacked(1, one.now)),
}


@pytest.mark.parametrize("kind", ["shared", "key_shared", "failover"])
@pytest.mark.parametrize("cause", list(RedeliveryCause))
def test_each_cause(cause: RedeliveryCause, kind: str) -> None:
    one = rig(type=kind, ack_timeout_ms=1000 if cause is RedeliveryCause.ACK_TIMEOUT else None)
    one.attach(2, 1000, priority=1)
    CAUSES[cause](one)
    assert failures(one) == dict.fromkeys(range(10), (cause, None))


def test_another_consumer_becomes_the_active_one() -> None:
    one = rig(type="failover")
    one.attach(2, 1000, priority=-1)
    assert set(failures(one).values()) == {(RedeliveryCause.CONSUMER_LOST, None)}


def test_the_last_cause_and_the_last_reason_count() -> None:
    one = rig(max_redeliveries=2)
    one.nack(1, [3, 4], reason="no such customer")
    one.do(one.dispatcher.redeliver_unacked(1, one.now))
    one.nack(1, [3], reason="out of memory")
    one.nack(1, [4, 5])
    assert failures(one) == {
        3: (RedeliveryCause.NACK, "out of memory"),
        4: (RedeliveryCause.NACK, "no such customer"),
    }
    one.detach(1)
    one.attach(1, 1000)
    assert failures(one)[5] == (RedeliveryCause.CONSUMER_LOST, None)


def test_dead_letters_that_were_not_published_keep_theirs() -> None:
    one = rig(ack_timeout_ms=5000)
    one.nack(1, [3], reason="why")
    one.sleep(60)
    for dead in list(one.dead):
        one.do(one.dispatcher.dead_letters_failed(dead.batch.offset, one.now))
    before, one.dead = failures(one), []
    one.sleep(60)
    assert failures(one) == before
    assert before == {
        at: (RedeliveryCause.NACK, "why") if at == 3 else (RedeliveryCause.ACK_TIMEOUT, None) for at in range(10)
    }


def test_a_reason_is_of_the_consumer_that_has_the_message() -> None:
    one = rig(max_redeliveries=1)
    one.attach(2, 1000)
    one.nack(2, [3], reason="not mine")
    one.do(one.dispatcher.redeliver_unacked(1, one.now))
    one.detach(1)
    one.detach(2)
    one.attach(1, 1000)
    assert failures(one)[3] == (RedeliveryCause.CONSUMER_LOST, None)


def test_a_seek_begins_anew() -> None:
    one = rig(max_redeliveries=1)
    one.nack(1, [3], reason="before")
    one.do(one.dispatcher.seek(one.log.place(0).before, one.now))
    one.detach(1)
    one.attach(1, 1000)
    one.nack(1, [3])
    assert failures(one)[3] == (RedeliveryCause.NACK, None)


def test_acknowledged_messages_keep_nothing() -> None:
    """Their offsets do not come again; what is kept of them would stay for ever."""
    reasons = Reasons()
    reasons.note(np.arange(10), "why")
    reasons.forget(np.array([1, 3, 77]))
    reasons.forget_range(4, 9)
    assert [at for at in range(10) if reasons.get(at)] == [0, 2, 9]
    reasons.forget_range(0, 1 << 60)
    assert not reasons


def test_reasons_take_so_much_memory_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redelivery, "REASONS_BYTES_MAX", 100 * (redelivery.REASON_OVERHEAD + 40))
    reasons = Reasons()
    for first in range(0, 1000, 50):
        reasons.note(np.arange(first, first + 50), "ten  bytes")
    assert [at for at in range(1000) if reasons.get(at)] == list(range(900, 1000)), "the latest"
    reasons.note(np.arange(900, 950), "x")
    assert reasons.get(900) == "x" and reasons.get(999) == "ten  bytes"
