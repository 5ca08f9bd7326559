"""KeyVerifier: what the metadata say of keys, and what happens while they say nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest

from pyreplog.bookie import key_verifier
from pyreplog.bookie.key_verifier import AWAY_S, PATIENCE_S, UNPROVEN_MAX, KeyVerdict, KeyVerifier
from pyreplog.bookie.protocol import Flag, Request, RequestKind
from pyreplog.clock import ManualClock
from pyreplog.errors import ClosedError, MetadataUnavailableError
from pyreplog.net.reactor import Reactor
from pyreplog.net.server_connection import ServerConnection
from tests.bookie.asking import KEY, OTHER_KEY
from tests.waiting import until


class Timer:
    def __init__(self, seconds: float, call: Callable[[], object]) -> None:
        self.seconds, self.call, self.is_cancelled = seconds, call, False

    def cancel(self) -> None:
        self.is_cancelled = True


class ManualReactor:
    """A reactor whose calls the test makes."""

    def __init__(self) -> None:
        self.clock = ManualClock(0)
        self.soon: list[Callable[[], object]] = []
        self.timers: list[Timer] = []
        self.is_closed = False

    def call_soon(self, call: Callable[[], object]) -> None:
        if self.is_closed:
            raise ClosedError("the reactor was closed")
        self.soon.append(call)

    def call_later(self, seconds: float, call: Callable[[], object]) -> Timer:
        self.timers.append(Timer(seconds, call))
        return self.timers[-1]

    def run_calls(self, calls: int = 1) -> None:
        """Make so many calls, when they are there."""
        until(lambda: len(self.soon) >= calls)
        assert len(self.soon) == calls
        due, self.soon = self.soon, []
        for call in due:
            call()


class Metadata:
    """Ledger 1 has the key KEY, and the proof OTHER_KEY; `error`: what each look raises."""

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.asked: list[tuple[int, bytes]] = []

    def admits(self, ledger: int, key: bytes) -> bool | None:
        self.asked.append((ledger, key))
        if self.error is not None:
            raise self.error
        return key == KEY if ledger == 1 else None

    def admits_copy(self, ledger: int, proof: bytes) -> bool | None:
        return not self.admits(ledger, proof) if ledger == 1 else None


class Harness:
    """A KeyVerifier whose reactor and metadata the test drives."""

    def __init__(self) -> None:
        self.reactor, self.metadata = ManualReactor(), Metadata()
        self.verdicts: list[tuple[object, list[int], KeyVerdict]] = []
        self.requests: list[Request] = []
        self.verifier = KeyVerifier(cast("Reactor", self.reactor), self.metadata, self._proceed)
        self.connection, self.other = self.new_connection(), self.new_connection()

    def new_connection(self) -> ServerConnection:
        class Connection:
            """As its identity."""

        return cast("ServerConnection", Connection())

    def _proceed(self, connection: ServerConnection, requests: list[tuple[int, Request]], verdict: KeyVerdict) -> None:
        self.requests += [request for _, request in requests]
        self.verdicts.append((connection, [number for number, _ in requests], verdict))

    def ask(self, number: int = 1, ledger: int = 1, key: bytes = KEY, **fields: Any) -> None:
        request = Request(RequestKind.ADD, ledger, 0, 0, key, records=memoryview(b"records"), **fields)
        self.verifier.ask(self.connection, number, request)

    def take_verdicts(self) -> list[tuple[object, list[int], KeyVerdict]]:
        told, self.verdicts = self.verdicts, []
        return told


@pytest.fixture
def harness() -> Iterator[Harness]:
    harness = Harness()
    yield harness
    harness.verifier.close()


@pytest.mark.parametrize(
    ("ledger", "key", "flags", "verdict"),
    [
        (1, KEY, 0, KeyVerdict.RIGHT),
        (1, OTHER_KEY, 0, KeyVerdict.WRONG),
        (2, KEY, 0, KeyVerdict.NO_LEDGER),
        (1, KEY, Flag.COPY, KeyVerdict.WRONG),
        (1, OTHER_KEY, Flag.COPY, KeyVerdict.RIGHT),
        (2, KEY, Flag.COPY, KeyVerdict.NO_LEDGER),
    ],
)
def test_a_key_verifier_asks_the_metadata(
    ledger: int, key: bytes, flags: int, verdict: KeyVerdict, harness: Harness
) -> None:
    harness.ask(7, ledger, key, flags=flags)
    assert harness.verifier.waiting == 1 and not harness.take_verdicts()
    harness.reactor.run_calls()
    assert harness.take_verdicts() == [(harness.connection, [7], verdict)]
    assert harness.verifier.waiting == 0 and not harness.verifier.is_store_away
    (timer,) = harness.reactor.timers
    assert (timer.seconds, timer.is_cancelled) == (PATIENCE_S, True)
    assert [bytes(request.records) for request in harness.requests] == [b"records"]
    assert type(harness.requests[0].records) is bytes, "the frame that holds them is used again"


def test_requests_with_one_key_wait_together(harness: Harness) -> None:
    for number in range(3):
        harness.ask(number)
    harness.reactor.run_calls()
    assert harness.take_verdicts() == [(harness.connection, [0, 1, 2], KeyVerdict.RIGHT)]
    assert len(harness.metadata.asked) == 1


def test_a_store_that_raises_is_not_asked_for_a_while(harness: Harness, caplog: pytest.LogCaptureFixture) -> None:
    for error in (MetadataUnavailableError("out of reach"), OSError("broken")):
        harness.metadata.error = error
        harness.ask()
        harness.reactor.run_calls()
        assert harness.take_verdicts() == [(harness.connection, [1], KeyVerdict.UNKNOWN)]
        assert str(error) in caplog.text
        asked = len(harness.metadata.asked)
        assert harness.verifier.is_store_away
        harness.reactor.clock.advance(int(AWAY_S * 1e6) - 1)
        assert harness.verifier.is_store_away
        harness.ask()
        assert harness.verifier.waiting == 1 and not harness.take_verdicts(), "not in the call itself"
        harness.reactor.run_calls()
        assert harness.take_verdicts() == [(harness.connection, [1], KeyVerdict.UNKNOWN)]
        assert len(harness.metadata.asked) == asked
        harness.reactor.clock.advance(1)
        assert not harness.verifier.is_store_away, "what was not asked did not fail"
    harness.metadata.error = None
    harness.ask()
    harness.reactor.run_calls()
    assert harness.take_verdicts() == [(harness.connection, [1], KeyVerdict.RIGHT)]


def test_an_answer_that_comes_too_late_changes_nothing(harness: Harness) -> None:
    harness.ask()
    until(lambda: bool(harness.reactor.soon))
    (timer,) = harness.reactor.timers
    timer.call()
    assert harness.take_verdicts() == [(harness.connection, [1], KeyVerdict.UNKNOWN)]
    assert harness.verifier.is_store_away and harness.verifier.waiting == 0
    harness.reactor.run_calls()
    assert harness.take_verdicts() == []


def test_unverifiable_keys_of_a_connection_are_limited(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_verifier, "UNPROVEN_MAX", 3)
    assert UNPROVEN_MAX > 3
    harness.metadata.error = MetadataUnavailableError("out of reach")
    verdicts = []
    for ledger in range(5):
        harness.ask(ledger, ledger)
        harness.reactor.run_calls()
        verdicts.append(harness.take_verdicts()[0][2])
    assert verdicts == [KeyVerdict.UNKNOWN] * 3 + [KeyVerdict.SURPLUS] * 2
    harness.verifier.leave(harness.connection)
    harness.ask()
    harness.reactor.run_calls()
    assert harness.take_verdicts() == [(harness.connection, [1], KeyVerdict.UNKNOWN)]


def test_requests_of_a_connection_that_has_ended_are_dropped(harness: Harness) -> None:
    harness.ask(1)
    harness.verifier.ask(harness.other, 2, Request(RequestKind.ADD, 1, 0, 0, OTHER_KEY))
    until(lambda: len(harness.reactor.soon) == 2)
    harness.verifier.leave(harness.connection)
    assert [timer.is_cancelled for timer in harness.reactor.timers] == [True, False]
    assert harness.verifier.waiting == 1
    harness.reactor.run_calls(2)
    assert harness.take_verdicts() == [(harness.other, [2], KeyVerdict.WRONG)]


def test_verdict_after_the_reactor_closed_is_dropped(harness: Harness) -> None:
    harness.reactor.is_closed = True
    harness.ask()
    until(lambda: bool(harness.metadata.asked))
    harness.verifier.close()
    assert harness.take_verdicts() == [] and harness.reactor.soon == []
