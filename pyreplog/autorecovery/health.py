"""ClusterHealth: the state of a cluster as one colour, with the reason and the next step for each finding."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import dataclass, field
from enum import StrEnum

from pyreplog.autorecovery.config import AutoRecoveryConfig, load_config
from pyreplog.autorecovery.hold import find_hold
from pyreplog.autorecovery.leased_keys import AUDITOR
from pyreplog.autorecovery.ledger_survey import LedgerSurvey, Membership, survey_ledgers
from pyreplog.autorecovery.lost_entries import list_lost
from pyreplog.autorecovery.orders import list_orders
from pyreplog.autorecovery.protocol.absence import name_of_bookie
from pyreplog.autorecovery.status import FRESH_US, find_status
from pyreplog.autorecovery.timed_reason import TimedReason
from pyreplog.bookie.bookie_state import BookiePhase, BookieState, list_bookie_states
from pyreplog.bookie.identity import known_bookies
from pyreplog.bookie.scrub_report import LastScrub
from pyreplog.errors import InvalidMetadataError
from pyreplog.ledger.ledger_store import list_ledgers
from pyreplog.ledger.repair_notes import repairs
from pyreplog.ledger.runtime import RuntimeBase
from pyreplog.metadata.store import MetadataStore
from pyreplog.plurals import agreeing, counted

HOLD_FORGOTTEN = "hold-forgotten"
"""Code of a finding about a hold older than `hold_alarm_ms`; the auditor's alarm has the same code."""

_GONE = (BookiePhase.LOST, BookiePhase.RETIRED)


class Colour(StrEnum):
    """The state of a cluster."""

    GREEN = "green"
    """Every entry has all its copies."""
    AMBER = "amber"
    """Something needs time or an operator; no entry is known to be lost."""
    RED = "red"
    """Entries are lost."""


@dataclass(frozen=True)
class Finding:
    """A reason why a cluster is not green.

    Attributes:
        code: stable code, for programs.
        colour: amber or red.
        text: description of the finding.
        next_step: what an operator should do.
    """

    code: str
    colour: Colour
    text: str
    next_step: str


@dataclass(frozen=True)
class ClusterHealth:
    """The health of a cluster at one moment.

    Attributes:
        colour: the worst colour of the findings.
        findings: the findings, red ones first.
        auditor: name of the auditor's process; None: none runs, or the cluster is embedded.
        bookies: number of running bookies.
        ledgers: number of ledgers with readable metadata.
        missing_copies: number of copies on bookies that do not run, as far as the number of entries is known.
        scrubs: last complete scrub of each running bookie that had one.
        is_scanned: whether the metadata of all ledgers were read; otherwise the result relies on the auditor's status.
    """

    colour: Colour
    findings: tuple[Finding, ...]
    auditor: str | None
    bookies: int
    ledgers: int
    missing_copies: int
    scrubs: Mapping[str, LastScrub] = field(default_factory=dict)
    is_scanned: bool = True


def check_health(
    runtime: RuntimeBase,
    *,
    limbo: Callable[[], list[tuple[int, str]]] | None = None,
    survey: LedgerSurvey | None = None,
    now_us: int | None = None,
    trust_auditor: bool = False,
) -> ClusterHealth:
    """Return the health of a cluster.

    Reads the metadata of all ledgers; needs no auditor, and sends no requests to bookies.

    With `trust_auditor` the metadata are not read if no key of bookies or auto-recovery indicates missing copies, and
    the auditor, which follows all ledgers, has reported none within the last minutes.

    Args:
        runtime: of a cluster.
        limbo: asks bookies for ledgers in limbo, returned as pairs of ledger and bookie; None: bookies are not asked.
        survey: copy counts of all ledgers that were just read; None: the metadata are read.
        now_us: time for the age of a hold, microseconds since 1970-01-01 UTC; None: now.
        trust_auditor: whether to rely on the auditor's status for the absence of missing copies.

    Raises:
        MetadataLayoutError: the store has to be migrated.
        ReplogError: errors of the store.
    """
    store, statuses = runtime.metadata, runtime.bookie_statuses()
    findings: list[Finding] = []
    states = _states(store, findings)
    membership = find_membership(runtime, states)
    is_trusted = survey is None and trust_auditor and not findings and _auditor_suffices(runtime, states, membership)
    if is_trusted:
        survey = LedgerSurvey(membership, ledgers=len(list_ledgers(store)))
    counts = survey or survey_ledgers(store, membership)
    registered, current = counts.membership.registered, counts.membership.current
    lost = counts.membership.lost
    findings += _of_entries(store, counts)
    findings += _of_bookies(current, registered, states, set() if counts.garbled else lost - counts.leaving.keys())
    if full := sorted(status.bookie for status in statuses if status.read_only):
        findings.append(
            _amber("read-only", f"read-only: {', '.join(full)}", "free space on their disks, or add bookies")
        )
    if limbo is not None and (in_limbo := limbo()):
        text = f"{counted(len(in_limbo), 'ledger', 'are')} in limbo, ledger {in_limbo[0][0]} on {in_limbo[0][1]} first"
        findings.append(_amber("limbo", text, "pyreplog ledger recover LEDGER, then pyreplog ledger repair"))
    scrubs = {status.bookie: status.scrub for status in statuses if status.scrub is not None}
    findings += _of_scrubs(scrubs)
    findings += _of_recovery(store, runtime.reactor.clock.now_us() if now_us is None else now_us)
    auditor = store.get(AUDITOR)
    if auditor is None and runtime.embedded_bookies is None:
        findings.append(
            _amber("no-auditor", "no auditor runs: lost copies are not made again", "pyreplog autorecovery run URL")
        )
    findings.sort(key=lambda finding: finding.colour is not Colour.RED)
    colour = findings[0].colour if findings else Colour.GREEN
    owner = None if auditor is None else auditor.value.decode(errors="replace")
    return ClusterHealth(
        colour, tuple(findings), owner, len(registered), counts.ledgers, counts.missing, scrubs, not is_trusted
    )


def _auditor_suffices(runtime: RuntimeBase, states: Mapping[str, BookieState], membership: Membership) -> bool:
    """Return whether a living auditor reports that no ledger names a bookie that does not run, or that leaves."""
    store, auditor = runtime.metadata, runtime.metadata.get(AUDITOR)
    if auditor is None or states or membership.leaving or membership.registered != {*membership.current.values()}:
        return False
    try:
        status = find_status(store)
    except InvalidMetadataError:
        return False
    if status is None or status.auditor.encode() != auditor.value:
        return False
    is_fresh = abs(runtime.reactor.clock.now_us() - status.at_us) < FRESH_US
    return is_fresh and not (status.ledgers_left or status.alarms or status.failed)


def find_membership(runtime: RuntimeBase, states: Mapping[str, BookieState]) -> Membership:
    """Return the known bookies of a cluster.

    Args:
        runtime: runtime of the cluster.
        states: states of its bookies.

    Raises:
        ReplogError: errors of the store.
    """
    store = runtime.metadata
    registered = frozenset(status.bookie for status in runtime.bookie_statuses())
    lost = {bookie for bookie, state in states.items() if state.phase in _GONE} - registered
    draining = {bookie for bookie, state in states.items() if state.phase is BookiePhase.DRAINING}
    current = {name_of_bookie(bookie): bookie for bookie in known_bookies(store)}
    leaving = lost | draining | list_orders(store).keys()
    return Membership(registered, lost, current, leaving, dict(runtime.racks()))


def _amber(code: str, text: str, next_step: str) -> Finding:
    return Finding(code, Colour.AMBER, text, next_step)


def _states(store: MetadataStore, findings: list[Finding]) -> Mapping[str, BookieState]:
    try:
        return list_bookie_states(store)
    except InvalidMetadataError as error:
        step = "use the version of pyreplog that wrote it; auto-recovery waits until it can be read"
        findings.append(_amber("state-unreadable", str(error), step))
        return {}


def _entries_of(entries: int, ledgers: int, verb: str) -> str:
    return f"{counted(entries, 'entry')} of {counted(ledgers, 'ledger')} {agreeing(entries, verb)}"


def _of_entries(store: MetadataStore, counts: LedgerSurvey) -> Iterator[Finding]:
    if listed := list_lost(store):
        entries = sum(lost.count for lost in listed.values())
        text = f"{_entries_of(entries, len(listed), 'are')} lost, of ledger {min(listed)} first"
        step = "bring back the disk of a bookie that /lost/LEDGER names; if none exists any more, delete the ledger"
        yield Finding("entries-lost", Colour.RED, text, step)
    if counts.gone:
        text = f"{_entries_of(sum(counts.gone.values()), len(counts.gone), 'have')} copies on lost bookies alone"
        step = "bring back the disk of a bookie that had them"
        yield Finding("copies-gone", Colour.RED, f"{text}, of ledger {min(counts.gone)} first", step)
    if counts.lacking:
        text = f"{counted(len(counts.lacking), 'ledger', 'have')} copies on bookies that do not run"
        text += f", ledger {counts.lacking[0]} first"
        yield _amber("copies-missing", text, "start the bookies, or wait until auto-recovery has made the copies again")
    if counts.garbled:
        text = f"the metadata of {counted(len(counts.garbled), 'ledger')} cannot be read"
        text += f", of ledger {counts.garbled[0]} first"
        yield _amber("garbled", text, "see docs/operations.md, Metadata that make no sense")
    noted, garbled = repairs(store)
    if noted or garbled:
        parts = [f"{counted(len(noted), 'copy', 'are')} noted for repair"] if noted else []
        text = ", and ".join(parts + ([f"{counted(len(garbled), 'note')} cannot be read"] if garbled else []))
        step = "nothing: they are written again once the bookies run; `pyreplog ledger repair` does it at once"
        yield _amber("repairs", text, step)


def _of_bookies(
    current: Mapping[str, str], registered: Set[str], states: Mapping[str, BookieState], done: Set[str]
) -> Iterator[Finding]:
    """Yield findings about bookies. `done` are lost bookies that no ledger names, which need no more work."""
    for phase in (BookiePhase.AWAY, BookiePhase.LOST, BookiePhase.DRAINING):
        if bookies := sorted(bookie for bookie, state in states.items() if state.phase is phase and bookie not in done):
            yield _amber(str(phase), f"{phase}: {', '.join(bookies)}", _STEPS[phase])
    unnoted = sorted(bookie for bookie in current.values() if bookie not in registered and bookie not in states)
    if unnoted:
        yield _amber("not-running", f"not running: {', '.join(unnoted)}", _STEPS[BookiePhase.AWAY])
    strange = sorted(registered - set(current.values()))
    if strange:
        text = f"registered, but not the bookies that the cluster knows by these names: {', '.join(strange)}"
        yield _amber("strange-bookie", text, "stop them: their names belong to newer incarnations, or another cluster")


_STEPS = {
    BookiePhase.AWAY: "start it; if its data are gone, pyreplog cluster lost BOOKIE",
    BookiePhase.LOST: "wait until its copies are made again; it is retired by itself",
    BookiePhase.DRAINING: "wait (pyreplog cluster drain --wait BOOKIE), then pyreplog cluster retire BOOKIE",
}


def _of_scrubs(scrubs: Mapping[str, LastScrub]) -> Iterator[Finding]:
    if damaged := {bookie: scrub.damaged_segments for bookie, scrub in scrubs.items() if scrub.damaged_segments}:
        text = f"{counted(sum(damaged.values()), 'segment', 'are')} damaged, on {', '.join(sorted(damaged))}"
        step = "wait until the copies are made again and the segments removed; if that takes days, look at the disk"
        yield _amber("damaged-segments", text, step)


def _of_recovery(store: MetadataStore, now_us: int) -> Iterator[Finding]:
    hold, orders = find_hold(store), list_orders(store)
    if hold is not None:
        yield _of_hold(store, hold, now_us)
    if orders:
        yield _amber("orders", f"copies are made again of {', '.join(orders)}", "wait; pyreplog top shows the rest")
    try:
        status = find_status(store)
    except InvalidMetadataError as error:
        yield _amber("status-unreadable", str(error), "use the version of pyreplog that wrote it")
        return
    for alarm in () if status is None else status.alarms:
        if alarm.code == HOLD_FORGOTTEN:  # reported above, also without an auditor
            continue
        yield _amber(f"alarm-{alarm.code}", alarm.text, "see docs/operations.md, Auto-recovery")


def _of_hold(store: MetadataStore, hold: TimedReason, now_us: int) -> Finding:
    try:
        limit_us = load_config(store).hold_alarm_ms * 1000
    except InvalidMetadataError:  # the hold stays in force
        limit_us = AutoRecoveryConfig().hold_alarm_ms * 1000
    age_us = now_us - hold.since_us
    text = f"auto-recovery is on hold {_since(age_us) if hold.since_us else 'since an unknown time'}: {hold.reason}"
    code = HOLD_FORGOTTEN if age_us > limit_us else "hold"
    return _amber(code, text, "pyreplog cluster hold --end")


def _since(age_us: int) -> str:
    """Return an age as text: in days, hours or minutes if it has two of them or more, else in seconds."""
    for unit, size_us in (("days", 86_400_000_000), ("hours", 3_600_000_000), ("minutes", 60_000_000)):
        if age_us >= 2 * size_us:
            return f"for {age_us // size_us} {unit}"
    return f"for {max(age_us, 0) // 1_000_000} s"
