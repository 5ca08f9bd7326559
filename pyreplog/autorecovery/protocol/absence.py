"""Decides which bookies are away, lost or back, and which need their copies replicated again.

The decision is a pure function of the auditor's view at one moment. In doubt it waits, because copying after a network
split moves data that is not lost. BookKeeper's auditor does not wait: it restarts its delay after each election, and
copies whatever share of the cluster is missing (BOOKKEEPER `Auditor`, `lostBookieRecoveryDelay`).
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import TypeAlias

from pyreplog.bookie.bookie_state import BookiePhase, BookieState

FUTURE_US = 60_000_000
"""A phase that begins further in the future than this, in microseconds, was written with a wrong clock: the delay
restarts."""


@dataclass(frozen=True)
class AuditorView:
    """What an auditor knows at one moment.

    Attributes:
        named: number of ledgers that name each bookie id, from a complete scan.
        registered: ids of running bookies, read-only ones included.
        states: the states under `/bookie-states`.
        orders: ids of bookies for which an order exists.
        now_us: wall clock, microseconds since 1970.
        settled: registrations were followed without interruption for one session time-out; a view taken just after a
            reconnect may lack running bookies.
        hold: whether an operator has suspended recovery, for an upgrade.
        is_complete: whether the metadata of every ledger could be read; an unreadable ledger may name any bookie.
    """

    named: Mapping[str, int]
    registered: Set[str]
    states: Mapping[str, BookieState]
    orders: Set[str]
    now_us: int
    settled: bool = True
    hold: bool = False
    is_complete: bool = True


@dataclass(frozen=True)
class NoteState:
    """Write the state of a bookie by compare-and-set, unless another process changed it."""

    bookie: str
    state: BookieState


@dataclass(frozen=True)
class ForgetState:
    """Delete the state of a bookie by compare-and-set, which makes it an ordinary member again."""

    bookie: str


@dataclass(frozen=True)
class PlaceOrder:
    """Order that the copies of a bookie are replicated again. `reason` is shown to operators."""

    bookie: str
    reason: str


@dataclass(frozen=True)
class WithdrawOrder:
    """Withdraw the order for a bookie. `reason` is shown to operators."""

    bookie: str
    reason: str


@dataclass(frozen=True)
class Alarm:
    """Report a condition that needs an operator. `code` is stable, for alert rules."""

    code: str
    text: str


Decision: TypeAlias = NoteState | ForgetState | PlaceOrder | WithdrawOrder | Alarm


def name_of_bookie(bookie: str) -> str:
    """Return the name in a bookie id, which is NAME@INCARNATION."""
    return bookie.partition("@")[0]


def decide(view: AuditorView, delay_us: int) -> list[Decision]:
    """Return the decisions on every bookie that ledgers name or that has a state.

    Args:
        view: what the auditor knows.
        delay_us: time for which a bookie may be away before its copies are replicated again, microseconds.

    Returns:
        The writes to make, ordered so that it is safe to stop after any of them. Empty: there is nothing to do.
    """
    absent = {bookie for bookie in view.named if bookie not in view.registered and not _is_gone(bookie, view)}
    decisions: list[Decision] = []
    suspended = _suspension(absent, view)
    for bookie in sorted(view.named.keys() | view.states.keys() | view.orders):
        decisions += _decide_about(bookie, view, delay_us, suspended)
    if suspended is not None and absent:
        decisions.append(suspended)
    return decisions


def _decide_about(bookie: str, view: AuditorView, delay_us: int, suspended: Alarm | None) -> list[Decision]:
    state = view.states.get(bookie)
    phase = state.phase if state is not None else None
    if bookie not in view.named:
        return _unnamed(bookie, view, phase)
    if phase is BookiePhase.DRAINING:
        return _order(bookie, view, "an operator drains it")
    if phase in (BookiePhase.LOST, BookiePhase.RETIRED):
        return _order(bookie, view, "an operator, or its successor, declared it lost")
    if bookie in view.registered:
        back: list[Decision] = [] if state is None else [ForgetState(bookie)]
        return [*_withdraw(bookie, view, "it is back"), *back]
    if successor := _successor(bookie, view):
        lost = BookieState(BookiePhase.LOST, view.now_us, f"{successor} was registered under its name")
        return [NoteState(bookie, lost), *_order(bookie, view, lost.reason)]
    if state is None or state.since_us > view.now_us + FUTURE_US:
        # An unsettled view may lack running bookies: start the delay only once the view is settled.
        return [NoteState(bookie, BookieState(BookiePhase.AWAY, view.now_us))] if view.settled else []
    if suspended is not None or view.now_us - state.since_us < delay_us:
        return []
    return _order(bookie, view, f"it has been away for {(view.now_us - state.since_us) // 1_000_000} s")


def _unnamed(bookie: str, view: AuditorView, phase: BookiePhase | None) -> list[Decision]:
    """Return the decisions on a bookie that no ledger names, so that nothing is left to copy.

    An operator's states stay.
    """
    if not view.is_complete:
        return []
    done: list[Decision] = _withdraw(bookie, view, "no ledger names it")
    return [*done, ForgetState(bookie)] if phase is BookiePhase.AWAY else done


def _order(bookie: str, view: AuditorView, reason: str) -> list[Decision]:
    return [] if bookie in view.orders else [PlaceOrder(bookie, reason)]


def _withdraw(bookie: str, view: AuditorView, reason: str) -> list[Decision]:
    return [WithdrawOrder(bookie, reason)] if bookie in view.orders else []


def _successor(bookie: str, view: AuditorView) -> str | None:
    """Return another registered incarnation with the name of a bookie; None: there is none."""
    name = name_of_bookie(bookie)
    return next((other for other in sorted(view.registered) if name_of_bookie(other) == name and other != bookie), None)


def _is_gone(bookie: str, view: AuditorView) -> bool:
    """Return whether a bookie will not come back. Its absence is no evidence of a network split."""
    state = view.states.get(bookie)
    if state is not None and state.phase in (BookiePhase.LOST, BookiePhase.RETIRED):
        return True
    return _successor(bookie, view) is not None


def _suspension(absent: Set[str], view: AuditorView) -> Alarm | None:
    """Return why bookies that are merely away get no orders now; None: they get orders."""
    if view.hold:
        return Alarm(
            "hold", f"auto-recovery is on hold: {len(absent)} bookies are away; end it with `cluster hold --end`"
        )
    if not view.settled:
        return Alarm("reconnected", "the auditor has just reconnected: bookies may register again within moments")
    present = sum(1 for bookie in view.named if not _is_gone(bookie, view))
    if len(absent) > 1 and 3 * len(absent) > present:
        share = f"{len(absent)} of the {present} bookies that ledgers name are away"
        return Alarm(
            "many-away",
            f"{share}: this looks like a network split, and nothing is copied; declare lost bookies as lost "
            "(`cluster lost`)",
        )
    return None
