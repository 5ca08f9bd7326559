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


class Hand:
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

    def turn(self, calls: int = 1) -> None:
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


class Stand:
    def __init__(self) -> None:
        self.hand, self.metadata = Hand(), Metadata()
        self.verdicts: list[tuple[object, list[int], KeyVerdict]] = []
        self.requests: list[Request] = []
        self.verifier = KeyVerifier(cast("Reactor", self.hand), self.metadata, self._proceed)
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
def stand() -> Iterator[Stand]:
    stand = Stand()
    yield stand
    stand.verifier.close()


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
def test_the_metadata_are_asked(ledger: int, key: bytes, flags: int, verdict: KeyVerdict, stand: Stand) -> None:
    stand.ask(7, ledger, key, flags=flags)
    assert stand.verifier.waiting == 1 and not stand.take_verdicts()
    stand.hand.turn()
    assert stand.take_verdicts() == [(stand.connection, [7], verdict)]
    assert stand.verifier.waiting == 0 and not stand.verifier.is_store_away
    (timer,) = stand.hand.timers
    assert (timer.seconds, timer.is_cancelled) == (PATIENCE_S, True)
    assert [bytes(request.records) for request in stand.requests] == [b"records"]
    assert type(stand.requests[0].records) is bytes, "the frame that holds them is used again"


def test_requests_with_one_key_wait_together(stand: Stand) -> None:
    for number in range(3):
        stand.ask(number)
    stand.hand.turn()
    assert stand.take_verdicts() == [(stand.connection, [0, 1, 2], KeyVerdict.RIGHT)]
    assert len(stand.metadata.asked) == 1


def test_a_store_that_raises_is_not_asked_for_a_while(stand: Stand, caplog: pytest.LogCaptureFixture) -> None:
    for error in (MetadataUnavailableError("out of reach"), OSError("broken")):
        stand.metadata.error = error
        stand.ask()
        stand.hand.turn()
        assert stand.take_verdicts() == [(stand.connection, [1], KeyVerdict.UNKNOWN)]
        assert str(error) in caplog.text
        asked = len(stand.metadata.asked)
        assert stand.verifier.is_store_away
        stand.hand.clock.advance(int(AWAY_S * 1e6) - 1)
        assert stand.verifier.is_store_away
        stand.ask()
        assert stand.verifier.waiting == 1 and not stand.take_verdicts(), "not in the call itself"
        stand.hand.turn()
        assert stand.take_verdicts() == [(stand.connection, [1], KeyVerdict.UNKNOWN)]
        assert len(stand.metadata.asked) == asked
        stand.hand.clock.advance(1)
        assert not stand.verifier.is_store_away, "what was not asked did not fail"
    stand.metadata.error = None
    stand.ask()
    stand.hand.turn()
    assert stand.take_verdicts() == [(stand.connection, [1], KeyVerdict.RIGHT)]


def test_an_answer_that_comes_too_late_changes_nothing(stand: Stand) -> None:
    stand.ask()
    until(lambda: bool(stand.hand.soon))
    (timer,) = stand.hand.timers
    timer.call()
    assert stand.take_verdicts() == [(stand.connection, [1], KeyVerdict.UNKNOWN)]
    assert stand.verifier.is_store_away and stand.verifier.waiting == 0
    stand.hand.turn()
    assert stand.take_verdicts() == []


def test_a_connection_sends_keys_of_so_many_ledgers_that_nobody_can_check(
    stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_verifier, "UNPROVEN_MAX", 3)
    assert UNPROVEN_MAX > 3
    stand.metadata.error = MetadataUnavailableError("out of reach")
    verdicts = []
    for ledger in range(5):
        stand.ask(ledger, ledger)
        stand.hand.turn()
        verdicts.append(stand.take_verdicts()[0][2])
    assert verdicts == [KeyVerdict.UNKNOWN] * 3 + [KeyVerdict.SURPLUS] * 2
    stand.verifier.leave(stand.connection)
    stand.ask()
    stand.hand.turn()
    assert stand.take_verdicts() == [(stand.connection, [1], KeyVerdict.UNKNOWN)]


def test_requests_of_a_connection_that_has_ended_are_dropped(stand: Stand) -> None:
    stand.ask(1)
    stand.verifier.ask(stand.other, 2, Request(RequestKind.ADD, 1, 0, 0, OTHER_KEY))
    until(lambda: len(stand.hand.soon) == 2)
    stand.verifier.leave(stand.connection)
    assert [timer.is_cancelled for timer in stand.hand.timers] == [True, False]
    assert stand.verifier.waiting == 1
    stand.hand.turn(2)
    assert stand.take_verdicts() == [(stand.other, [2], KeyVerdict.WRONG)]


def test_a_closed_reactor_hears_nothing_any_more(stand: Stand) -> None:
    stand.hand.is_closed = True
    stand.ask()
    until(lambda: bool(stand.metadata.asked))
    stand.verifier.close()
    assert stand.take_verdicts() == [] and stand.hand.soon == []
