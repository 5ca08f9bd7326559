"""The cause and the reason of a dead letter: why it was delivered again last, and the reason that a consumer gave."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from pyreplog.topic.model.dispatch import redelivery
from pyreplog.topic.model.dispatch.redelivery import Reasons, RedeliveryCause
from tests.topic.dispatching import Log, Rig


def rig(**settings: object) -> Rig:
    """Return a rig with ten messages. Consumer 1 has all of them, and each that is delivered again becomes a dead
    letter."""
    log = Log()
    log.publish(10)
    rig = Rig(log, **{"type": "shared", "nack_min_ms": 0, "nack_max_ms": 1000, "max_redeliveries": 0, **settings})
    rig.attach(1, 1000)
    return rig


def failures(harness: Rig) -> dict[int, tuple[str, str | None]]:
    """Return cause and reason of each dead letter, by offset."""
    return {at: (why.cause, why.reason) for dead in harness.dead for at, why in dead.failures.items()}


CAUSES: dict[RedeliveryCause, Callable[[Rig], None]] = {
    RedeliveryCause.NACK: lambda item: item.nack(1, range(10)),
    RedeliveryCause.ACK_TIMEOUT: lambda item: item.sleep(60),
    RedeliveryCause.CONSUMER_LOST: lambda item: item.detach(1),
    RedeliveryCause.REDELIVER: lambda item: item.do(item.dispatcher.redeliver_unacked(1, item.now)),
}


@pytest.mark.parametrize("kind", ["shared", "key_shared", "failover"])
@pytest.mark.parametrize("cause", list(RedeliveryCause))
def test_a_dead_letter_names_the_cause_of_its_redelivery(cause: RedeliveryCause, kind: str) -> None:
    harness = rig(type=kind, ack_timeout_ms=1000 if cause is RedeliveryCause.ACK_TIMEOUT else None)
    harness.attach(2, 1000, priority=1)
    CAUSES[cause](harness)
    assert failures(harness) == dict.fromkeys(range(10), (cause, None))


def test_another_consumer_becomes_the_active_one() -> None:
    harness = rig(type="failover")
    harness.attach(2, 1000, priority=-1)
    assert set(failures(harness).values()) == {(RedeliveryCause.CONSUMER_LOST, None)}


def test_the_last_cause_and_the_last_reason_count() -> None:
    harness = rig(max_redeliveries=2)
    harness.nack(1, [3, 4], reason="no such customer")
    harness.do(harness.dispatcher.redeliver_unacked(1, harness.now))
    harness.nack(1, [3], reason="out of memory")
    harness.nack(1, [4, 5])
    assert failures(harness) == {
        3: (RedeliveryCause.NACK, "out of memory"),
        4: (RedeliveryCause.NACK, "no such customer"),
    }
    harness.detach(1)
    harness.attach(1, 1000)
    assert failures(harness)[5] == (RedeliveryCause.CONSUMER_LOST, None)


def test_dead_letters_that_were_not_published_keep_theirs() -> None:
    harness = rig(ack_timeout_ms=5000)
    harness.nack(1, [3], reason="why")
    harness.sleep(60)
    for dead in list(harness.dead):
        harness.do(harness.dispatcher.dead_letters_failed(dead.batch.offset, harness.now))
    before, harness.dead = failures(harness), []
    harness.sleep(60)
    assert failures(harness) == before
    assert before == {
        at: (RedeliveryCause.NACK, "why") if at == 3 else (RedeliveryCause.ACK_TIMEOUT, None) for at in range(10)
    }


def test_a_reason_is_of_the_consumer_that_has_the_message() -> None:
    harness = rig(max_redeliveries=1)
    harness.attach(2, 1000)
    harness.nack(2, [3], reason="not mine")
    harness.do(harness.dispatcher.redeliver_unacked(1, harness.now))
    harness.detach(1)
    harness.detach(2)
    harness.attach(1, 1000)
    assert failures(harness)[3] == (RedeliveryCause.CONSUMER_LOST, None)


def test_a_seek_resets_redelivery_counts() -> None:
    harness = rig(max_redeliveries=1)
    harness.nack(1, [3], reason="before")
    harness.do(harness.dispatcher.seek(harness.log.place(0).before, harness.now))
    harness.detach(1)
    harness.attach(1, 1000)
    harness.nack(1, [3])
    assert failures(harness)[3] == (RedeliveryCause.NACK, None)


def test_acknowledged_messages_keep_nothing() -> None:
    """Their offsets never occur again, so that what is kept of them would stay for ever."""
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
