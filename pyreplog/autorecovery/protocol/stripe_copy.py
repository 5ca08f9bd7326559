"""Copying what one member of a fragment should hold to a bookie that takes its place, or to the member itself, which
lacks some of it. A state machine.

Only the member's own entries are read, each from one other member of its write set, checked, and added to the target
durably. BookKeeper copies the whole fragment for one lost member (`LedgerFragmentReplicator`), E / Qw times as much.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from pyreplog._native.ledger_log.digest import holdings_digest
from pyreplog._native.ledger_log.entries import parse_entries
from pyreplog._native.machines.effects import Send
from pyreplog._native.quorum.quorum import write_set
from pyreplog.autorecovery.protocol.entry_ranges import last_of, runs_of
from pyreplog.bookie.holdings import DIGEST_MODULUS, Holdings
from pyreplog.bookie.protocol import READ_BYTES_MAX, Flag, Reply, ReplyStatus, Request, RequestKind
from pyreplog.errors import InvalidArgumentError, InvalidMessageError, InvalidRecordsError, UnreadableError
from pyreplog.ledger.ledger_metadata import LedgerMetadata
from pyreplog.ledger.protocol.effects import BadCopy, Effect, Finished, Wake
from pyreplog.ledger.protocol.terminal_errors import error_text

SEGMENT_ENTRIES = 4096
"""A stripe is copied in segments of up to so many entries; several segments are on their way at a time."""


RESUME_BYTES = 16 << 20
"""A target is asked first what it holds of a ledger with more bytes: an earlier worker may have been killed."""

OVERLOAD_S, OVERLOAD_MAX_S = 0.25, 8.0
"""Seconds to wait when the target is overloaded: the first time, and when another target is to be chosen."""


@dataclass(frozen=True)
class StripeCopied:
    """What became of a copy.

    Attributes:
        entries: number of entries that the target took.
        bytes: their bytes.
        missing: entries of which nobody has a copy, ascending.
        held: number of entries that the target holds now: those that it took, and those that it had before.
        digest: digest of these, see `bookie.holdings`.
    """

    entries: int
    bytes: int
    missing: tuple[int, ...]
    held: int
    digest: int


@dataclass
class _Segment:
    """Entries with one write set. sources: members to ask, the best first; those asked in vain are taken away.

    is_new: whether they are copied without a question to the target. doubtful: how many of the first ones are copied if
    the target cannot say of the first one whether it has it.
    """

    entries: range
    sources: deque[str]
    unknown: list[str] = field(default_factory=list)  # why a source could not say
    is_new: bool = True
    doubtful: int = 1

    def part(self, entries: range, **changed: Any) -> _Segment:
        """Some of its entries."""
        return replace(self, entries=entries, sources=self.sources.copy(), unknown=list(self.unknown), **changed)

    def behind(self, entry: int, **changed: Any) -> _Segment:
        """What is left of it behind an entry."""
        return self.part(self.entries[self.entries.index(entry) + 1 :], **changed)


@dataclass
class _Batch:
    """Records on their way to the target. delay_s: seconds to wait if it is overloaded once more."""

    entries: int
    bytes: int
    digest: int
    delay_s: float = OVERLOAD_S


class StripeCopy:
    """Gives `target` what member `index` of a fragment should hold; ends with `Finished(StripeCopied)`.

    The target may be the member itself: it is asked what it holds, and gets what it lacks, and what it cannot read.

    An entry is missing only if every other member of its write set said definitely that it does not have it, and the
    target has no copy of an earlier try. A member that cannot say ends the copy with an UnreadableError: another try,
    later, may find the entry there. The target's refusal ends it with an UnreadableError that names the target.

    Args:
        metadata: of the ledger.
        first: first entry of the fragment.
        end: entry behind its last one.
        index: the member's place in the ensemble.
        target: the bookie that takes its place, or the member itself.
        absent: bookies that are not asked. The member itself is asked last, unless it is among them, or the target.
        others: bookies outside the ensemble that are asked as well, behind its members.
        window: segments on their way at a time.
        throttle: gets the bytes of each batch that was copied, 0 first, and returns seconds to wait before the next;
            None: no limit.
        resume: ask the target first what it holds; None: if the ledger is large, or the target is the member itself.
    """

    def __init__(
        self,
        metadata: LedgerMetadata,
        *,
        first: int,
        end: int,
        index: int,
        target: str,
        absent: Set[str] = frozenset(),
        others: Sequence[str] = (),
        window: int = 4,
        throttle: Callable[[int], float] | None = None,
        resume: bool | None = None,
    ) -> None:
        fragment = metadata.fragment_of(first)
        is_place = fragment.first == first and 0 <= index < len(fragment.ensemble)
        self._is_member = is_place and fragment.ensemble[index] == target
        if not is_place or (target in fragment.ensemble and not self._is_member):
            raise InvalidArgumentError(
                f"ledger {metadata.ledger}: expected a fragment, a place in it, and a target that is no other member, "
                f"found entry {first}, place {index}, {target} for {fragment.ensemble}"
            )
        if window < 1:
            raise InvalidArgumentError(f"window: expected 1 or more, found {window}")
        self._ledger, self._proof, self._target = metadata.ledger, metadata.proof_bytes, target
        self._window, self._throttle = window, throttle
        self._missing: list[int] = []
        self._entries = self._bytes = self._held = self._digest = 0
        self._busy = self._asleep = 0  # segments on their way, and those whose throttle has to be waited for
        self._is_over = False
        self.is_refused = False
        """Whether the copy has ended because the target did not take it, so that another one may."""
        is_new = not (metadata.length > RESUME_BYTES or self._is_member if resume is None else resume)
        self._is_target_asked = not is_new  # about all entries
        self._stripes = [stripe for stripe in metadata.stripes(index, first, end) if stripe]
        self._left: deque[_Segment] = deque()
        for stripe in self._stripes:
            places = list(write_set(stripe[0], metadata.ensemble_size, metadata.write_quorum))
            members = [fragment.ensemble[place] for place in places if place != index]
            asked = dict.fromkeys((*members, fragment.ensemble[index], *others))
            sources = [bookie for bookie in asked if bookie not in absent and bookie != target]
            for start in range(0, len(stripe), SEGMENT_ENTRIES):
                self._left.append(_Segment(stripe[start : start + SEGMENT_ENTRIES], deque(sources), is_new=is_new))

    def start(self) -> list[Effect]:
        delay_s = 0.0 if self._throttle is None else self._throttle(0)
        if delay_s > 0:
            self._asleep += 1
            return [Wake(delay_s, None)]
        return self._begin_segments()

    def replied(self, send: Send, reply: Reply) -> list[Effect]:
        if self._is_over:
            return []
        if send.request.kind == RequestKind.ADD:
            return self._added(send, reply)
        if send.request.kind == RequestKind.HOLDINGS:
            return self._have_asked(send, reply)
        return self._have_read(send.about, reply)

    def failed(self, send: Send, error: Exception) -> list[Effect]:
        if self._is_over:
            return []
        if send.bookie == self._target:
            return self._refused(str(error))
        return self._ask_another(send.about, str(error))

    def woken(self, about: object) -> list[Effect]:
        if self._is_over:
            return []
        if isinstance(about, Send):
            return [about]
        self._asleep -= 1
        return self._begin_segments()

    # ---- what the target holds already ----------------------------------------------------------------------

    def _ask_target(self, segment: _Segment) -> list[Effect]:
        entries = segment.entries
        request = Request(
            RequestKind.HOLDINGS, self._ledger, entries[0], entries[-1], limit=READ_BYTES_MAX, step=entries.step
        )
        return [Send(self._target, request, segment)]

    def _have_asked(self, send: Send, reply: Reply) -> list[Effect]:
        """Leave out what the target holds: its records are checked, so they are the same."""
        segment: _Segment = send.about
        entries = segment.entries
        if self._is_member and reply.status in (ReplyStatus.UNKNOWN, ReplyStatus.LIMBO):
            return self._copy_doubtful(segment)
        if reply.status != ReplyStatus.OK:
            return self._refused(error_text(reply))
        try:
            holdings = Holdings.decode(send.request, reply)
        except InvalidMessageError as error:
            return self._refused(str(error))
        told = entries[: entries.index(last_of(entries, reply.last)) + 1]
        self._held += holdings.count
        self._digest = (self._digest + holdings.digest) % DIGEST_MODULUS
        asked = np.arange(told.start, told.stop, told.step)
        for run in runs_of(np.setdiff1d(asked, holdings.entries(send.request)), told.step):
            self._left.append(segment.part(run, is_new=True))
        return self._ask_on(segment.behind(told[-1], doubtful=1))

    def _ask_for_missing(self) -> list[Effect]:
        """Ask the target for entries that no member has: an earlier worker may have copied them, and got no further."""
        self._is_target_asked = True
        missing, self._missing = self._missing, []
        for stripe in self._stripes:
            for run in runs_of(np.intersect1d(missing, np.arange(stripe.start, stripe.stop, stripe.step)), stripe.step):
                self._left.append(_Segment(run, deque(), is_new=False))
        return self._begin_segments()

    def _copy_doubtful(self, segment: _Segment) -> list[Effect]:
        """Copy the first entries, of which the target cannot say whether it has them; go on behind them.

        Each time it cannot say once more, twice as many are copied: damage is rare, a ledger in limbo is long.
        """
        entries = segment.entries
        doubtful = segment.part(entries[: segment.doubtful], is_new=True)
        doubtful.unknown.append(f"{self._target} cannot say whether it has it")
        self._left.append(doubtful)
        return self._ask_on(segment.part(entries[segment.doubtful :], doubtful=2 * segment.doubtful))

    def _ask_on(self, rest: _Segment) -> list[Effect]:
        """Ask the target about the rest of a segment, and begin with what it lacks if there is room."""
        return [*self._ask_target(rest), *self._begin_segments()] if rest.entries else self._done()

    def _done(self) -> list[Effect]:
        self._busy -= 1
        return self._begin_segments()

    # ---- reading --------------------------------------------------------------------------------------------

    def _begin_segments(self) -> list[Effect]:
        """Begin with as many segments as may be on their way."""
        effects: list[Effect] = []
        while self._left and self._busy + self._asleep < self._window and not self._is_over:
            segment = self._left.popleft()
            self._busy += 1
            effects += self._read(segment) if segment.is_new else self._ask_target(segment)
        if not self._busy and not self._left and not self._is_over:
            if self._missing and not self._is_target_asked:
                return self._ask_for_missing()
            self._is_over = True
            missing = tuple(sorted(self._missing))
            effects.append(Finished(StripeCopied(self._entries, self._bytes, missing, self._held, self._digest)))
        return effects

    def _read(self, segment: _Segment) -> list[Effect]:
        if not segment.sources:
            return self._nobody_has(segment)
        entries = segment.entries
        request = Request(
            RequestKind.READ, self._ledger, entries[0], entries[-1], limit=READ_BYTES_MAX, step=entries.step
        )  # fmt: skip
        return [Send(segment.sources[0], request, segment)]

    def _have_read(self, segment: _Segment, reply: Reply) -> list[Effect]:
        entries = segment.entries
        if reply.status != ReplyStatus.OK or not entries[0] <= reply.last:
            return self._ask_another(segment, error_text(reply))
        answered = entries[: entries.index(last_of(entries, reply.last)) + 1]
        try:
            batch = parse_entries(reply.body, ledger=self._ledger, first=entries[0], last=answered[-1])
        except InvalidRecordsError:
            return [BadCopy(segment.sources[0], entries[0]), *self._ask_another(segment, "its copy is damaged")]
        held, is_damaged = batch.entry, batch.next_position < len(reply.body)
        if not np.isin(held, np.arange(answered.start, answered.stop, answered.step)).all():
            return self._ask_another(segment, "it answered with entries that were not asked for")
        if is_damaged and not len(held):
            return [BadCopy(segment.sources[0], entries[0]), *self._ask_another(segment, "its copy is damaged")]
        if is_damaged:  # the record behind those is; it is the first one of the next read
            answered = entries[: entries.index(int(held[-1])) + 1]
        absent = np.setdiff1d(np.arange(answered.start, answered.stop, answered.step), held)
        for entry in absent.tolist():
            place = entries.index(entry)
            others = deque(list(segment.sources)[1:])
            self._left.append(_Segment(entries[place : place + 1], others, list(segment.unknown)))  # of the target: new
        rest = segment.behind(answered[-1])
        if rest.entries:
            self._left.appendleft(rest)
        if not len(held):
            self._busy -= 1
            return self._begin_segments()
        return self._add(held, reply.body[: batch.next_position])

    def _ask_another(self, segment: _Segment, why: str) -> list[Effect]:
        """A source cannot say: another one may."""
        source = segment.sources.popleft()
        segment.unknown.append(f"{source}: {why}")
        return self._read(segment)

    def _nobody_has(self, segment: _Segment) -> list[Effect]:
        """All sources were asked. Only a definite no of each of them proves that an entry is missing."""
        if segment.unknown:
            return self._end(f"no copy of entry {segment.entries[0]} can be read: {'; '.join(segment.unknown)}")
        self._missing += segment.entries
        self._busy -= 1
        return self._begin_segments()

    # ---- adding ---------------------------------------------------------------------------------------------

    def _add(self, held: npt.NDArray[np.int64], records: bytes | memoryview) -> list[Effect]:
        """Without UNSYNCED: the reply proves that the copies are on disk."""
        request = Request(
            RequestKind.ADD, self._ledger, int(held[0]), int(held[-1]), self._proof, Flag.COPY, records=records
        )  # fmt: skip
        return [Send(self._target, request, _Batch(len(held), len(records), holdings_digest(records)))]

    def _added(self, send: Send, reply: Reply) -> list[Effect]:
        batch: _Batch = send.about
        if reply.status == ReplyStatus.OVERLOADED:
            delay_s, batch.delay_s = batch.delay_s, 2 * batch.delay_s
            return [Wake(delay_s, send)] if delay_s < OVERLOAD_MAX_S else self._refused(error_text(reply))
        if reply.status != ReplyStatus.OK:
            return self._refused(error_text(reply))
        self._entries += batch.entries
        self._bytes += batch.bytes
        self._held += batch.entries
        self._digest = (self._digest + batch.digest) % DIGEST_MODULUS
        return self._pause(batch.bytes) if self._throttle is not None else self._done()

    def _pause(self, size: int) -> list[Effect]:
        """Wait as the throttle says after a batch of so many bytes, unless all is copied.

        The wait for the last batches is left to the next copy: the target may count what is not proved as surplus.
        """
        assert self._throttle is not None
        delay_s = self._throttle(size)
        if delay_s <= 0:
            return self._done()
        self._busy -= 1
        self._asleep += 1
        rest = self._begin_segments()
        return rest if self._is_over else [Wake(delay_s, None), *rest]

    def _refused(self, why: str) -> list[Effect]:
        self.is_refused = True
        return self._end(f"{self._target} does not take the copies: {why}")

    def _end(self, why: str) -> list[Effect]:
        self._is_over = True
        return [Finished(error=UnreadableError(self._ledger, f"the copy to {self._target} has ended: {why}"))]
