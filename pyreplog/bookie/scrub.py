"""Scrub: a bookie verifies its own segments on the disk, all of them within `scrub_interval_ms`, and has damage
repaired.

The segment that was verified longest ago comes next. The rate follows from the bytes that exist and the time that is
left, so that the work is spread evenly. Damage is repaired in one of these ways:

| damage | repair |
|---|---|
| a header block, a blank, zeros behind it, an index file | this bookie writes it anew from the rest of the log |
| a control record | this bookie appends the current state of the ledger once more |
| an entry | this bookie notes it for repair, which writes another bookie's copy here again |

A new copy supersedes the damaged one. When all damaged entries of a segment have new copies, garbage collection moves
the intact ones and removes the segment.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from operator import methodcaller
from pathlib import Path
from typing import NamedTuple

import numpy as np

from pyreplog._native.ledger_log.entries import CONTROL
from pyreplog.bookie.bookie import Bookie
from pyreplog.bookie.config import BookieConfig
from pyreplog.bookie.entry_log import DiskLog
from pyreplog.bookie.ledger_map import BadRange
from pyreplog.bookie.salvage import LostSegment, LostSegments
from pyreplog.bookie.scrub_report import LastScrub, ScrubReport
from pyreplog.bookie.scrub_state import ScrubFile, SegmentAge, ranges_of
from pyreplog.bookie.segment_check import BadRecord, SegmentCheck
from pyreplog.clock import Clock, SystemClock
from pyreplog.errors import ClosedError, CorruptionError, DiskError, PoisonedError, ReplogError, TrimmedError
from pyreplog.log.files import Files, RealFiles
from pyreplog.plurals import counted

logger = logging.getLogger(__name__)

NoteBadCopies = Callable[[int, Sequence[int]], object]
"""Notes damaged copies of entries of a ledger for repair. Raises errors of the metadata store."""

IDLE_S = 60.0
"""Longest time between two steps, and delay of the next attempt after an error, seconds."""

_RESTART = "restart this bookie: it then repairs the segment, and notes the lost copies"
_HOUR_US = 3_600_000_000
_USED_SHARE = 0.9
"""Share of `scrub_interval_ms` within which all segments are verified; the rest allows for downtime of the bookie."""
_STEP_US = 200_000
_SAVE_US = 60_000_000
_REFRESH_US = 10_000_000
_BURST_S = 60.0


class ScrubProgress(NamedTuple):
    """The progress of a pass over all segments.

    Attributes:
        done_bytes: bytes of segments that the pass has verified.
        total_bytes: bytes of all segments that the pass verifies.
        bad_records: damaged records without a newer copy that the pass has found.
        asked: whether the pass runs at the highest rate, because `scrub_now` was called.
        last_bad_records: damaged records that the last complete pass has found.
        since_complete_s: seconds since the end of the last complete pass; None: there was none.
        damaged_segments: number of segments that have damage now.
    """

    done_bytes: int
    total_bytes: int
    bad_records: int
    asked: bool
    last_bad_records: int
    since_complete_s: float | None
    damaged_segments: int


class Scrubber:
    """Verifies the segments of one bookie in steps, while it serves.

    One thread calls `step`; any thread may call the other methods.

    Args:
        log: log of the bookie.
        directory: directory of the bookie, for the file that keeps the place.
        config: settings of the bookie.
        with_bookie: runs a function with the bookie while no request is handled (LocalBookie.with_bookie).
        note: notes damaged entries for repair.
        files: access to the disk; None: the real one.
        clock: source of time; None: the clock of the machine.

    Attributes:
        verified_bytes: bytes that were verified since the bookie was opened.
        bad_records: damaged records without a newer copy that were found since then.
        mended: header blocks, blanks, index files and control records that were written anew since then.
    """

    def __init__(
        self,
        log: DiskLog,
        directory: Path,
        config: BookieConfig,
        with_bookie: Callable[[Callable[[Bookie], object]], object],
        note: NoteBadCopies,
        *,
        files: Files | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._log, self._config, self._with_bookie, self._note = log.log, config, with_bookie, note
        self._files: Files = files if files is not None else RealFiles()
        self._clock: Clock = clock if clock is not None else SystemClock()
        self._file = ScrubFile(directory, self._log.uuid, self._files, self._clock)
        self._lost = LostSegments(directory, self._files)
        self._lock = threading.Lock()
        self._state = self._file.load()
        self._log.set_damaged(self._state.damaged)
        self._sizes: dict[int, int] = {}
        self._check: SegmentCheck | None = None
        self._began_us = 0
        self._unreported: list[BadRecord] = []
        self._found_bad: list[BadRange] = []  # in the segment that is being verified
        self._from_start = True  # the current segment is verified from its beginning
        self._closed = self._is_dirty = False
        self._asked_rate: int | None = None  # rate of the requested pass; a restart forgets it
        # Numbers of the passes that were requested, began and ended; read without the lock, which a step holds.
        self._requested = self._begun = int(self._state.asked)
        self._ended = 0
        self._ended_us = 0  # end of the last complete pass on the wall clock; computed once
        if self._state.complete_us is not None:
            self._ended_us = self._clock.now_us() - (self._clock.monotonic_us() - self._state.complete_us)
        self._allowance = 0.0
        self._rate = 0.0
        self._stepped_us = self._clock.monotonic_us()
        self._saved_us = self._stepped_us
        self._refreshed_us = self._stepped_us - _REFRESH_US
        self.verified_bytes = self.bad_records = self.mended = 0
        self._oldest_us: int | None = None  # when the segment with the oldest verification was verified, monotonic
        self._note_oldest()
        self.on_request: Callable[[], object] = lambda: None
        """Called by any thread when a pass was requested, so that the next step is due. It must not block."""
        self._publish()

    # ---- for operators --------------------------------------------------------------------------------------

    def scrub_now(self, bytes_per_s: int | None = None) -> None:
        """Begin a pass over all segments. The next steps run it. Does not wait for a step that is under way.

        bytes_per_s: bytes of segments in a second; None: the highest rate, `scrub_bytes_per_s`.
        """
        self._asked_rate = bytes_per_s
        self._requested += 1
        self.on_request()

    @property
    def is_requested(self) -> bool:
        """Whether a pass was requested that no step has begun."""
        return self._requested != self._begun

    def report(self) -> ScrubReport:
        """Return the progress of the current pass after the last step. Does not wait for a step that is under way."""
        return replace(self._report, is_asked=self._requested != self._ended)

    def progress(self) -> ScrubProgress:
        """Return the progress of the current pass."""
        with self._lock:
            state, now_us = self._state, self._clock.monotonic_us()
            return ScrubProgress(
                *self._done_and_total(),
                state.bad,
                state.asked or self.is_requested,
                state.last_bad,
                (now_us - state.complete_us) / 1e6 if state.complete_us is not None else None,
                len(state.damaged),
            )

    def oldest_s(self) -> float:
        """Return the longest time for which a segment was not verified, in seconds."""
        with self._lock:
            self._note_oldest()
            since_us = self._oldest_us
            return 0.0 if since_us is None else (self._clock.monotonic_us() - since_us) / 1e6

    def _note_oldest(self) -> None:
        """Update the time that `verified_since_us` returns."""
        self._oldest_us = min((age.since_us for age in self._state.ages.values()), default=None)

    def verified_since_us(self, previous_us: int = 0) -> int:
        """Return a time after which every segment was verified, or began; microseconds since 1970-01-01 UTC.

        It is the time at the end of the last step. The call does not wait for a step that is under way.

        Args:
            previous_us: result of the last call. It is returned again unless the time moved by more than an hour,
                because each new value is stored in the metadata.

        Returns:
            The time; 0: there is no segment.
        """
        oldest_us = self._oldest_us
        if oldest_us is None:
            return 0
        since_us = self._clock.now_us() - (self._clock.monotonic_us() - oldest_us)
        return previous_us if abs(since_us - previous_us) <= _HOUR_US else max(since_us, 0)

    def damaged(self) -> Mapping[int, Sequence[BadRange]]:
        """Return the damaged records of each segment that has damage, by the base of the segment."""
        with self._lock:
            return dict(self._state.damaged)

    def _publish(self) -> None:
        """Update the result of `report`."""
        state = self._state
        done, total = self._done_and_total()
        damaged, last = len(state.damaged), None
        if state.complete_us is not None:
            last = LastScrub(self._ended_us, state.last_bad, state.last_mended, damaged)
        self._report = ScrubReport(state.asked, done, total, state.bad, state.mended, damaged, last)

    def _done_and_total(self) -> tuple[int, int]:
        """Return the bytes that the pass has verified, and the bytes of all segments that it verifies."""
        state = self._state
        left = sum(size for base, size in self._sizes.items() if self._is_pending(base))
        place = max(state.place[1] if state.place is not None and state.place[0] in self._sizes else 0, 0)
        done = state.done_bytes + min(place, left)
        return done, max(state.done_bytes + left, done)

    # ---- steps ----------------------------------------------------------------------------------------------

    def step(self) -> float:
        """Verify the segments that are due; return the seconds after which the next step is due.

        Errors are logged, and the next step tries again. A step takes about 0.2 seconds at most.
        """
        with self._lock:
            if self._closed:
                return IDLE_S
            try:
                return self._step()
            except ClosedError:
                return IDLE_S
            except (ReplogError, OSError) as error:
                logger.warning("scrub of %s: %s; the next step tries again", self._log.path, error)
                return IDLE_S
            finally:
                self._publish()
                self._note_oldest()

    def run(self) -> None:
        """Run a whole pass over all segments without pauses.

        Raises errors of the log, and errors of the metadata store when damage cannot be noted.
        """
        with self._lock:
            self._requested += 1
            self._refresh(self._clock.monotonic_us())
            while self._state.asked:
                self._verify_next()
                self._end_pass()
            self._save()
            self._publish()
            self._note_oldest()

    def close(self) -> None:
        """Save the state of the scrub. A second call does nothing."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._drop_check()
                self._save()

    def _step(self) -> float:
        now_us = self._clock.monotonic_us()
        if self.is_requested or now_us - self._refreshed_us >= _REFRESH_US:
            self._refresh(now_us)
        self._allowance = min(self._allowance + self._rate * (now_us - self._stepped_us) / 1e6, self._rate * _BURST_S)
        self._stepped_us = now_us
        until_us = now_us + _STEP_US
        while self._allowance > 0 and self._clock.monotonic_us() < until_us:
            more = self._verify_next()
            self._end_pass()
            if not more:
                break
        if self._is_dirty and self._clock.monotonic_us() - self._saved_us >= _SAVE_US:
            self._save()
        if self._allowance > 0 and self._choose() is not None:
            return 0.0
        return min(max(-self._allowance, 1.0) / self._rate, IDLE_S) if self._rate else IDLE_S

    def _refresh(self, now_us: int) -> None:
        """Update the list of segments and the rate; begin the pass that was requested."""
        state = self._state
        self._refreshed_us = now_us
        self._sizes = dict(self._log.commit_log.durable_segments())
        for base in self._sizes.keys() - state.ages.keys():
            state.ages[base] = SegmentAge(now_us, verified=False)
            self._is_dirty = True
        for base in state.ages.keys() - self._sizes.keys():
            del state.ages[base]
            self._is_dirty = True
        for base in [base for base in state.damaged if base not in self._sizes or self._log.is_hollow(base)]:
            del state.damaged[base]
            self._is_dirty = True
        if state.pass_us is None:
            state.pass_us = now_us
        if self.is_requested:
            self._begun = self._requested
            self._drop_check()
            state.place, state.pass_us, state.asked, state.done_bytes, state.bad = None, now_us, True, 0, 0
            state.mended = 0
            # The pass also verifies segments that were verified in this microsecond.
            state.ages = {base: age._replace(verified=False) for base, age in state.ages.items()}
            self._is_dirty = True
        self._rate = self._rate_for(now_us)

    def _rate_for(self, now_us: int) -> float:
        """Return the bytes per second with which every segment is verified within `scrub_interval_ms`."""
        cap = float(self._config.scrub_bytes_per_s)
        if self._state.asked:
            return cap if self._asked_rate is None else float(self._asked_rate)
        if not self._config.scrub_interval_ms or not self._sizes:
            return 0.0
        limit_us = self._config.scrub_interval_ms * 1000 * _USED_SHARE
        ages = self._state.ages
        due = sorted((ages[base].since_us, size) for base, size in self._sizes.items())
        left_s = (np.array([since for since, _ in due], np.float64) + limit_us - now_us) / 1e6
        return min(float((np.cumsum([size for _, size in due]) / np.maximum(left_s, 1e-3)).max()), cap)

    def _is_pending(self, base: int) -> bool:
        """Return whether the current pass has not verified a segment yet."""
        age, pass_us = self._state.ages.get(base), self._state.pass_us
        if age is None or pass_us is None or age.since_us > pass_us:
            return False
        return age.since_us < pass_us or not age.verified

    def _choose(self) -> int | None:
        """Return the base of the segment to verify next; None: there is no segment."""
        if self._check is not None:
            return self._check.base
        ages = self._state.ages  # a coarse clock gives several segments the same time: pending ones come first
        return min(self._sizes, key=lambda base: (*ages[base], base), default=None)

    def _end_pass(self) -> None:
        """End the pass if it has verified all segments."""
        state = self._state
        if not self._sizes and not state.asked:
            return
        if self._check is not None or any(self._is_pending(base) for base in self._sizes):
            return
        now_us = self._clock.monotonic_us()
        state.complete_us, state.last_bad, state.last_mended = now_us, state.bad, state.mended
        self._ended_us = self._clock.now_us()
        state.pass_us, state.asked, state.done_bytes, state.bad, state.mended = now_us, False, 0, 0, 0
        self._ended = self._begun
        self._allowance = min(self._allowance, 0.0)  # the next pass may have a lower rate
        self._refresh(now_us)
        self._save()

    # ---- one segment ----------------------------------------------------------------------------------------

    def _verify_next(self) -> bool:
        """Verify a piece of a segment; return False if there is no segment."""
        base = self._choose()
        if base is None:
            return False
        try:
            check = self._check if self._check is not None else self._open_segment(base)
            self._report_bad_records(check)
            done = check.step()
            self._report_bad_records(check)
        except TrimmedError:
            self._forget_segment(base)
            return True
        except CorruptionError as error:
            self._give_up_segment(base, error)
            return True
        self.verified_bytes += done
        self._allowance -= done
        self._state.place = base, check.resume_place, self._began_us
        self._is_dirty = True
        if check.is_done:
            self._finish_segment(check)
        return True

    def _open_segment(self, base: int) -> SegmentCheck:
        place, self._began_us, self._from_start = 0, self._clock.monotonic_us(), True
        if self._state.place is not None and self._state.place[0] == base:
            _, place, self._began_us = self._state.place
            self._from_start = False
        self._found_bad = []
        self._check = SegmentCheck(self._log.commit_log, self._files, base, place)
        self._allowance -= self._check.index_bytes
        return self._check

    def _drop_check(self) -> None:
        if self._check is not None:
            self._check.close()
            self._check = None
        self._unreported = []

    def _forget_segment(self, base: int) -> None:
        """Forget a segment that was removed."""
        self._drop_check()
        self._state.place = None
        self._sizes.pop(base, None)
        self._refreshed_us -= _REFRESH_US

    def _give_up_segment(self, base: int, error: CorruptionError) -> None:
        """Skip a segment that cannot be verified, and let the next opening salvage it."""
        logger.error("the segment at %d cannot be verified: %s; %s", base, error, _RESTART)
        self._mark_lost(base, str(error))
        self._state.damaged.setdefault(base, ())
        self._state.ages[base] = SegmentAge(self._began_us, verified=True)
        self._state.place = None
        self._drop_check()

    def _finish_segment(self, check: SegmentCheck) -> None:
        """Repair the frame of a segment whose records were verified, and note when it was verified."""
        base, state = check.base, self._state
        damaged = (
            self._repair_frame(check) or bool(self._found_bad) or check.stray_damage > 0 or check.unindexed is not None
        )
        if damaged:
            earlier = () if self._from_start else state.damaged.get(base, ())
            state.damaged[base] = tuple(dict.fromkeys((*earlier, *self._found_bad)))
        elif self._from_start:
            state.damaged.pop(base, None)
        if check.faults:
            logger.error(
                "the segment at %d has %s; its bad records are noted for repair",
                base,
                counted(check.faults, "damaged place"),
            )
        if check.unindexed is not None:
            self._mark_lost(base, "records are damaged, and no index lists them")
            logger.error(
                "the segment at %d has damaged records, and no index that names them (%s); %s",
                base,
                check.unindexed,
                _RESTART,
            )
        state.ages[base] = SegmentAge(self._began_us, verified=True)
        state.done_bytes += self._sizes.get(base, 0)
        state.place = None
        self._drop_check()

    def _mark_lost(self, base: int, reason: str) -> None:
        """Let the next opening salvage a segment. Raises OSError when the disk fails."""
        if not any(segment.base == base and not segment.settled for segment in self._lost.load()):
            self._lost.add([LostSegment(base, reason)])

    def _repair_frame(self, check: SegmentCheck) -> bool:
        """Write the frame of a segment (header block, blank, zeros, index files) anew where it is damaged.

        Returns whether damage is left that this bookie cannot repair.
        """
        log, base, left = self._log.commit_log, check.base, False
        whole = not self._found_bad and not check.stray_damage and check.unindexed is None
        repairs = [(check.bad_frame, log.rewrite_frame), (check.bad_index, log.remake_indexes if whole else None)]
        for fault, repair in repairs:
            if fault is None or repair is None:
                continue
            try:
                repair(base)
            except PoisonedError:
                raise
            except (CorruptionError, DiskError) as error:
                logger.error("the segment at %d cannot be repaired: %s; its damage: %s", base, error, fault)
                left = True
            else:
                logger.warning("the segment at %d was damaged, and is repaired: %s", base, fault)
                self._count_mended()
        return left

    # ---- damaged records ------------------------------------------------------------------------------------

    def _report_bad_records(self, check: SegmentCheck) -> None:
        """Note damaged records for repair. If that fails, the next step tries again before it verifies more."""
        self._unreported += check.take_bad()
        if not self._unreported:
            return
        by_ledger: dict[int, list[int]] = {}
        for record in self._unreported:
            by_ledger.setdefault(record.ledger, []).append(record.entry)
        live = {ledger: self._live(check.base, ledger, sorted(entries)) for ledger, entries in by_ledger.items()}
        for ledger, entries in live.items():
            if entries and ledger < CONTROL:
                self._note(ledger, entries)
        self._append_controls([ledger - CONTROL for ledger, entries in live.items() if entries and ledger >= CONTROL])
        rows = self._log.commit_log.rows_of(check.base)
        for ledger, entries in by_ledger.items():
            known = np.sort(rows.entry[rows.ledger == ledger])
            self._found_bad += ranges_of(ledger, np.array(sorted(entries), np.int64), known)
        bad = sum(map(len, live.values()))
        self.bad_records += bad
        self._state.bad += bad
        ranges = (*self._state.damaged.get(check.base, ()), *self._found_bad)  # reads skip these from now on
        self._state.damaged[check.base] = tuple(dict.fromkeys(ranges))
        self._unreported = []
        self._save()

    def _live(self, base: int, ledger: int, entries: list[int]) -> list[int]:
        """Return the entries without a newer copy on this bookie."""
        try:
            newest = self._log.newest_in(base, ledger, entries[0], entries[-1] + 1)
        except CorruptionError:
            return entries
        return sorted(set(entries).intersection(newest.tolist()))

    def _append_controls(self, ledgers: Sequence[int]) -> None:
        """Append the known control records of ledgers once more."""
        for ledger in ledgers:
            self._with_bookie(methodcaller("append_controls", ledger))
            self._count_mended()
        if ledgers:
            self._log.sync()

    def _count_mended(self) -> None:
        self.mended += 1
        self._state.mended += 1

    # ---- the place ------------------------------------------------------------------------------------------

    def _save(self) -> None:
        """Save the state. If that fails, segments may be verified twice."""
        self._saved_us = self._clock.monotonic_us()
        self._log.set_damaged(self._state.damaged)
        try:
            self._file.save(self._state)
            self._is_dirty = False
        except OSError as error:
            logger.warning("the state of the scrub of %s was not saved: %s", self._log.path, error)
