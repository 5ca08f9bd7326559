"""StripeCopy: a state machine that copies the entries of one member of a fragment to a target.

The target is a bookie that replaces the member, or the member itself, if it lacks entries. Only the member's own
entries are read, each from one other member of its write set, checked, and added to the target durably. BookKeeper
copies the whole fragment for one lost member (`LedgerFragmentReplicator`), E / Qw times as much.
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
"""Maximum number of entries of a segment. A stripe is copied in segments; several of them are in flight at a time."""


RESUME_BYTES = 16 << 20
"""For a longer ledger, in bytes, the target is first asked which entries it holds: an earlier worker may have been
killed while it copied."""

OVERLOAD_S, OVERLOAD_MAX_S = 0.25, 8.0
"""Back-off in seconds while the target is overloaded: the first one, and the one at which another target is chosen."""


@dataclass(frozen=True)
class StripeCopied:
    """The result of a copy.

    Attributes:
        entries: number of entries that were added to the target.
        bytes: their size in bytes.
        missing: entries that every source definitely lacks, ascending.
        held: number of entries that the target holds now, including those that it had before.
        digest: digest of the entries that the target holds, see `bookie.holdings`.
    """

    entries: int
    bytes: int
    missing: tuple[int, ...]
    held: int
    digest: int


@dataclass
class _Segment:
    """Entries with one write set.

    `sources` are the members to ask, the best first; a member that failed is removed. `is_new`: copy without asking the
    target first. `doubtful`: how many of the first entries to copy if the target cannot say whether it has the first
    one.
    """

    entries: range
    sources: deque[str]
    unknown: list[str] = field(default_factory=list)  # why sources could not say whether they have the entry
    is_new: bool = True
    doubtful: int = 1

    def part(self, entries: range, **changed: Any) -> _Segment:
        """Return a segment with some of the entries."""
        return replace(self, entries=entries, sources=self.sources.copy(), unknown=list(self.unknown), **changed)

    def behind(self, entry: int, **changed: Any) -> _Segment:
        """Return a segment with the entries behind the given one."""
        return self.part(self.entries[self.entries.index(entry) + 1 :], **changed)


@dataclass
class _Batch:
    """Records in flight to the target. `delay_s` is the next back-off in seconds, if the target is overloaded."""

    entries: int
    bytes: int
    digest: int
    delay_s: float = OVERLOAD_S


class StripeCopy:
    """Copies to `target` the entries that member `index` of a fragment should hold; ends with `Finished(StripeCopied)`.

    The target may be the member itself: then it is asked which entries it holds, and gets those that it lacks or cannot
    read.

    An entry is missing only if every other member of its write set definitely lacks it, and the target has no copy from
    an earlier attempt. If a member cannot say whether it has an entry, the copy ends with an UnreadableError: a later
    attempt may find the entry there. If the target refuses an entry, the copy ends with an UnreadableError that names
    the target.

    Args:
        metadata: metadata of the ledger.
        first: first entry of the fragment.
        end: entry behind the last one of the fragment.
        index: the member's place in the ensemble.
        target: the bookie that replaces the member, or the member itself.
        absent: bookies that get no requests. The member itself is asked last, unless it is one of them, or the target.
        others: bookies outside the ensemble that are asked after its members.
        window: number of segments in flight at a time.
        throttle: takes the bytes of each copied batch, first 0, and returns the seconds to wait before the next; None:
            no limit.
        resume: whether to ask the target first which entries it holds; None: if the ledger is large, or the target is
            the member itself.
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
        self._busy = self._asleep = 0  # segments in flight, and segments that wait for the throttle
        self._is_over = False
        self.is_refused = False
        """Whether the copy has ended because the target refused it, so that another target may succeed."""
        is_new = not (metadata.length > RESUME_BYTES or self._is_member if resume is None else resume)
        self._is_target_asked = not is_new  # whether the target was asked about all entries
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
            return self._handle_added(send, reply)
        if send.request.kind == RequestKind.HOLDINGS:
            return self._handle_holdings(send, reply)
        return self._handle_read(send.about, reply)

    def failed(self, send: Send, error: Exception) -> list[Effect]:
        if self._is_over:
            return []
        if send.bookie == self._target:
            return self._refused(str(error))
        return self._try_next_source(send.about, str(error))

    def woken(self, about: object) -> list[Effect]:
        if self._is_over:
            return []
        if isinstance(about, Send):
            return [about]
        self._asleep -= 1
        return self._begin_segments()

    # ---- entries that the target holds ----------------------------------------------------------------------

    def _ask_target(self, segment: _Segment) -> list[Effect]:
        entries = segment.entries
        request = Request(
            RequestKind.HOLDINGS, self._ledger, entries[0], entries[-1], limit=READ_BYTES_MAX, step=entries.step
        )
        return [Send(self._target, request, segment)]

    def _handle_holdings(self, send: Send, reply: Reply) -> list[Effect]:
        """Skip the entries that the target holds. It has checked their records, so they are equal to the source's."""
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
        covered = entries[: entries.index(last_of(entries, reply.last)) + 1]
        self._held += holdings.count
        self._digest = (self._digest + holdings.digest) % DIGEST_MODULUS
        asked = np.arange(covered.start, covered.stop, covered.step)
        for run in runs_of(np.setdiff1d(asked, holdings.entries(send.request)), covered.step):
            self._left.append(segment.part(run, is_new=True))
        return self._ask_about_rest(segment.behind(covered[-1], doubtful=1))

    def _ask_for_missing(self) -> list[Effect]:
        """Ask the target for entries that no member has: an earlier worker may have copied them before it failed."""
        self._is_target_asked = True
        missing, self._missing = self._missing, []
        for stripe in self._stripes:
            for run in runs_of(np.intersect1d(missing, np.arange(stripe.start, stripe.stop, stripe.step)), stripe.step):
                self._left.append(_Segment(run, deque(), is_new=False))
        return self._begin_segments()

    def _copy_doubtful(self, segment: _Segment) -> list[Effect]:
        """Copy the first entries, for which the target cannot say whether it has them, then ask about the rest.

        The number of entries doubles with each such answer: damage is rare, but a ledger in limbo may be long.
        """
        entries = segment.entries
        doubtful = segment.part(entries[: segment.doubtful], is_new=True)
        doubtful.unknown.append(f"{self._target} cannot say whether it has it")
        self._left.append(doubtful)
        return self._ask_about_rest(segment.part(entries[segment.doubtful :], doubtful=2 * segment.doubtful))

    def _ask_about_rest(self, rest: _Segment) -> list[Effect]:
        """Ask the target about the rest of a segment, and start on segments that it lacks if the window has room."""
        return [*self._ask_target(rest), *self._begin_segments()] if rest.entries else self._done()

    def _done(self) -> list[Effect]:
        self._busy -= 1
        return self._begin_segments()

    # ---- reading --------------------------------------------------------------------------------------------

    def _begin_segments(self) -> list[Effect]:
        """Start on as many segments as the window allows."""
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
            return self._sources_exhausted(segment)
        entries = segment.entries
        request = Request(
            RequestKind.READ, self._ledger, entries[0], entries[-1], limit=READ_BYTES_MAX, step=entries.step
        )  # fmt: skip
        return [Send(segment.sources[0], request, segment)]

    def _handle_read(self, segment: _Segment, reply: Reply) -> list[Effect]:
        entries = segment.entries
        if reply.status != ReplyStatus.OK or not entries[0] <= reply.last:
            return self._try_next_source(segment, error_text(reply))
        answered = entries[: entries.index(last_of(entries, reply.last)) + 1]
        try:
            batch = parse_entries(reply.body, ledger=self._ledger, first=entries[0], last=answered[-1])
        except InvalidRecordsError:
            return [BadCopy(segment.sources[0], entries[0]), *self._try_next_source(segment, "its copy is damaged")]
        held, is_damaged = batch.entry, batch.next_position < len(reply.body)
        if not np.isin(held, np.arange(answered.start, answered.stop, answered.step)).all():
            return self._try_next_source(segment, "it answered with entries that were not asked for")
        if is_damaged and not len(held):
            return [BadCopy(segment.sources[0], entries[0]), *self._try_next_source(segment, "its copy is damaged")]
        if is_damaged:  # the next record is damaged; the next read begins with it
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

    def _try_next_source(self, segment: _Segment, why: str) -> list[Effect]:
        """Ask the next source, because this one cannot say."""
        source = segment.sources.popleft()
        segment.unknown.append(f"{source}: {why}")
        return self._read(segment)

    def _sources_exhausted(self, segment: _Segment) -> list[Effect]:
        """Note entries as missing after all sources were asked. Each source must have denied them definitely."""
        if segment.unknown:
            return self._end(f"no copy of entry {segment.entries[0]} can be read: {'; '.join(segment.unknown)}")
        self._missing += segment.entries
        self._busy -= 1
        return self._begin_segments()

    # ---- adding ---------------------------------------------------------------------------------------------

    def _add(self, held: npt.NDArray[np.int64], records: bytes | memoryview) -> list[Effect]:
        """Add records to the target, without UNSYNCED: the reply proves that the copies are on disk."""
        request = Request(
            RequestKind.ADD, self._ledger, int(held[0]), int(held[-1]), self._proof, Flag.COPY, records=records
        )  # fmt: skip
        return [Send(self._target, request, _Batch(len(held), len(records), holdings_digest(records)))]

    def _handle_added(self, send: Send, reply: Reply) -> list[Effect]:
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
        """Wait as the throttle demands after a batch, unless the copy is complete.

        The wait for the last batches is left to the next copy: until the proof, the target may count these copies as
        surplus.
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
