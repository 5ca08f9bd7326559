"""Which bookies are away, lost or back: single cases, and an auditor that is elected anew at every step."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from pyreplog.autorecovery.protocol.absence import (
    FUTURE_US,
    Alarm,
    AuditorView,
    ForgetState,
    NoteState,
    PlaceOrder,
    WithdrawOrder,
    decide,
)
from pyreplog.bookie.bookie_state import BookiePhase, BookieState

DELAY_US = 600_000_000
NOW_US = 1_700_000_000_000_000
BOOKIES = ["a@1", "b@1", "c@1", "d@1", "e@1", "f@1"]


def view(*away: str, **changes: object) -> AuditorView:
    """Six bookies, of which those in `away` are not registered."""
    named = dict.fromkeys(BOOKIES, 10)
    plain = AuditorView(named, {*BOOKIES} - {*away}, {}, frozenset(), NOW_US)
    return replace(plain, **changes)  # type: ignore[arg-type]


def away_since(us: int) -> BookieState:
    return BookieState(BookiePhase.AWAY, us)


def test_no_bookie_changes_state_while_all_are_registered() -> None:
    assert decide(view(), DELAY_US) == []


def test_the_time_of_an_absence_is_noted_first() -> None:
    assert decide(view("a@1"), DELAY_US) == [NoteState("a@1", away_since(NOW_US))]


@pytest.mark.parametrize(("waited_us", "orders"), [(0, 0), (DELAY_US - 1, 0), (DELAY_US, 1), (DELAY_US + 1, 1)])
def test_the_delay_ends_on_time(waited_us: int, orders: int) -> None:
    decisions = decide(view("a@1", states={"a@1": away_since(NOW_US - waited_us)}), DELAY_US)
    assert [type(decision) for decision in decisions] == [PlaceOrder] * orders


def test_an_order_is_placed_once() -> None:
    states = {"a@1": away_since(NOW_US - DELAY_US)}
    assert decide(view("a@1", states=states, orders={"a@1"}), DELAY_US) == []


def test_a_return_ends_the_work() -> None:
    decisions = decide(view(states={"a@1": away_since(NOW_US)}, orders={"a@1"}), DELAY_US)
    assert decisions == [WithdrawOrder("a@1", "it is back"), ForgetState("a@1")]


def test_another_incarnation_is_a_loss_at_once() -> None:
    registered = {*BOOKIES, "a@2"} - {"a@1"}
    note, order = decide(view(registered=registered), DELAY_US)
    assert note == NoteState("a@1", BookieState(BookiePhase.LOST, NOW_US, "a@2 was registered under its name"))
    assert order == PlaceOrder("a@1", "a@2 was registered under its name")


def test_a_name_that_begins_like_another_one_is_no_successor() -> None:
    named = {"b1@1": 1, "b10@1": 1, "c@1": 1, "d@1": 1}
    decisions = decide(view(named=named, registered={"b10@1", "c@1", "d@1"}), DELAY_US)
    assert decisions == [NoteState("b1@1", away_since(NOW_US))]


@pytest.mark.parametrize("phase", [BookiePhase.LOST, BookiePhase.DRAINING])
def test_bookie_declared_lost_or_draining_is_ordered_without_the_delay(phase: BookiePhase) -> None:
    decisions = decide(view("b@1", states={"b@1": BookieState(phase, NOW_US)}), DELAY_US)
    assert [type(decision) for decision in decisions] == [PlaceOrder]


def test_a_draining_bookie_runs() -> None:
    decisions = decide(view(states={"b@1": BookieState(BookiePhase.DRAINING, NOW_US)}), DELAY_US)
    assert [type(decision) for decision in decisions] == [PlaceOrder]


def test_a_bookie_that_no_ledger_names_needs_no_copies() -> None:
    states = {"x@1": away_since(0), "y@1": BookieState(BookiePhase.RETIRED, 0)}
    decisions = decide(view(states=states, orders={"x@1", "y@1"}), DELAY_US)
    assert decisions == [
        WithdrawOrder("x@1", "no ledger names it"),
        ForgetState("x@1"),
        WithdrawOrder("y@1", "no ledger names it"),
    ]


@pytest.mark.parametrize(
    ("total", "away", "suspended"),
    [
        (2, 1, False),
        (3, 1, False),
        (3, 2, True),
        (6, 2, False),
        (6, 3, True),
        (5, 2, True),
        (9, 3, False),
        (9, 4, True),
    ],
)
def test_an_alarm_while_more_than_one_and_more_than_a_third_are_away(total: int, away: int, suspended: bool) -> None:
    bookies = [f"n{number}@1" for number in range(total)]
    states = {bookie: away_since(0) for bookie in bookies[:away]}
    decisions = decide(view(named=dict.fromkeys(bookies, 1), registered={*bookies[away:]}, states=states), DELAY_US)
    if suspended:
        (alarm,) = decisions
        assert isinstance(alarm, Alarm)
        assert alarm.code == "many-away"
        assert f"{away} of the {total} bookies" in alarm.text
    else:
        assert [type(decision) for decision in decisions] == [PlaceOrder] * away


def test_lost_bookies_do_not_count_in_the_share_of_absent_ones() -> None:
    """Three of nine disks burnt and were declared lost; two more of the six others are away: a third, not more."""
    bookies = [f"n{number}@1" for number in range(9)]
    lost = {bookie: BookieState(BookiePhase.LOST, 0) for bookie in bookies[:3]}
    states = {**lost, **{bookie: away_since(0) for bookie in bookies[3:5]}}
    decisions = decide(view(named=dict.fromkeys(bookies, 1), registered={*bookies[5:]}, states=states), DELAY_US)
    assert [type(decision) for decision in decisions] == [PlaceOrder] * 5


def test_an_alarm_does_not_hold_up_what_is_certain() -> None:
    states = {bookie: away_since(0) for bookie in BOOKIES[:4]}
    states["a@1"] = BookieState(BookiePhase.LOST, 0)
    decisions = decide(view(*BOOKIES[:4], states=states), DELAY_US)
    assert [type(decision) for decision in decisions] == [PlaceOrder, Alarm]
    assert decisions[0] == PlaceOrder("a@1", "an operator, or its successor, declared it lost")


def test_nothing_is_copied_on_hold() -> None:
    decisions = decide(view("a@1", states={"a@1": away_since(0)}, hold=True), DELAY_US)
    assert [decision.code for decision in decisions if isinstance(decision, Alarm)] == ["hold"]
    assert len(decisions) == 1


def test_nothing_is_noted_or_copied_just_after_a_reconnect() -> None:
    decisions = decide(view("a@1", "b@1", states={"a@1": away_since(0)}, settled=False), DELAY_US)
    assert [decision.code for decision in decisions if isinstance(decision, Alarm)] == ["reconnected"]
    assert len(decisions) == 1


@pytest.mark.parametrize(("ahead_us", "again"), [(FUTURE_US, False), (FUTURE_US + 1, True)])
def test_a_time_in_the_future_is_of_a_wrong_clock(ahead_us: int, again: bool) -> None:
    decisions = decide(view("a@1", states={"a@1": away_since(NOW_US + ahead_us)}), DELAY_US)
    assert decisions == ([NoteState("a@1", away_since(NOW_US))] if again else [])


@pytest.mark.parametrize("seed", range(50))
def test_auditors_that_die_at_every_step_agree(seed: int) -> None:
    """Only some of the decisions are written, then another auditor goes on from what is stored. In the end each bookie
    that stayed away for the delay has an order, none that runs has one, and none was placed before the delay that was
    noted had passed. (An absence that ended and began again unseen counts as one.)"""
    rng = random.Random(seed)
    states: dict[str, BookieState] = {}
    orders: set[str] = set()
    named, now_us = dict.fromkeys(BOOKIES, 3), NOW_US
    away: dict[str, int] = {}
    for _ in range(200):
        now_us += rng.randrange(DELAY_US // 3)
        bookie = rng.choice(BOOKIES)
        if bookie in away:
            del away[bookie]
        elif len(away) < 2 and rng.random() < 0.3:
            away[bookie] = now_us
        seen = AuditorView(named, named.keys() - away.keys(), dict(states), {*orders}, now_us)
        decisions = decide(seen, DELAY_US)
        for decision in decisions[: rng.randint(0, len(decisions))]:
            if isinstance(decision, NoteState):
                states[decision.bookie] = decision.state
            elif isinstance(decision, ForgetState):
                del states[decision.bookie]
            elif isinstance(decision, PlaceOrder):
                assert decision.bookie in away
                assert now_us - states[decision.bookie].since_us >= DELAY_US
                orders.add(decision.bookie)
            elif isinstance(decision, WithdrawOrder):
                assert decision.bookie not in away
                orders.remove(decision.bookie)
    for _ in range(5):
        now_us += DELAY_US
        for decision in decide(
            AuditorView(named, named.keys() - away.keys(), dict(states), {*orders}, now_us), DELAY_US
        ):
            if isinstance(decision, NoteState):
                states[decision.bookie] = decision.state
            elif isinstance(decision, ForgetState):
                del states[decision.bookie]
            elif isinstance(decision, PlaceOrder):
                orders.add(decision.bookie)
            elif isinstance(decision, WithdrawOrder):
                orders.remove(decision.bookie)
    assert orders == states.keys() == away.keys()
