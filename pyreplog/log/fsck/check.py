"""Verify every byte of a log and describe its damage. Changes nothing; `repair` does.

It works with and without a live writer; with one, up to the end that readers see. Recovery decides whether a bad record
ends the log or is corruption. fsck goes on behind a damage, so that one report names all damage.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from uuid import UUID

from pyreplog._native.log.segment import HEADER_BYTES, Segment
from pyreplog._native.log.sparse import SparseIndex
from pyreplog.errors import CorruptionError, TrimmedError
from pyreplog.log import names, recovery
from pyreplog.log.fsck import derived_files, leftovers, survey
from pyreplog.log.fsck.damage import CHECKPOINT, HEADER, INDEX, MARKER, PAGE, RECORD, SEGMENT, Damage, FsckReport
from pyreplog.log.fsck.locked_segment import copy, map_locked
from pyreplog.log.fsck.survey import Header, LogState
from pyreplog.log.lock import writer_of
from pyreplog.log.opening import as_directory
from pyreplog.log.segments import PREPARED

Progress = Callable[[int, int], object]
"""Called with (bytes verified, entries found intact) so far, after each segment."""

HEADER_USED = 64  # bytes of the header block that are used: the fields and their CRC-32C
_STEP_BYTES = 1 << 20
_ATTEMPTS = 3


def check(path: Path | str, *, progress: Progress | None = None) -> FsckReport:
    """Verify every byte of a log, and describe all damage. Changes nothing.

    A log that another process writes is verified up to the end that readers see.

    Args:
        path: directory of the log.
        progress: called after each segment with the bytes verified and the intact entries so far.

    Returns:
        The state of the log, with all damage.

    Raises:
        NotALogError: the directory holds no log.
        FormatVersionError: a newer version wrote the log.
        CorruptionError: a directory or a device has the name of one of the log's files.

    See docs/cli.md.
    """
    recovery.check_directory(directory := as_directory(path))
    for _ in range(_ATTEMPTS):
        writer, generation = writer_of(directory), survey.generation(directory)
        report = verify(survey.take(directory, writer=writer), progress)
        if generation == survey.generation(directory) and (writer is None) == (writer_of(directory) is None):
            return report
    return replace(report, notes=(*report.notes, "the log was opened or cut while it was checked; check it again"))


def verify(state: LogState, progress: Progress | None = None) -> FsckReport:
    """Verify every byte of a log against its surveyed state."""
    walk = _Walk(state)
    for base in walk.bases:
        walk.visit(base)
        if progress is not None:
            progress(walk.verified, walk.intact)
    walk.check_log()
    return FsckReport(
        path=str(state.directory),
        uuid=str(UUID(bytes=walk.uuid)),
        segment_bytes=walk.size,
        writer=state.writer,
        segments=len(walk.bases),
        indexes=walk.indexes,
        verified_bytes=walk.verified,
        start=walk.start,
        end=walk.entry,
        start_position=state.extent.start,
        end_position=walk.end,
        entries=walk.intact,
        lost=walk.lost,
        torn_bytes=state.extent.torn or walk.torn,
        damages=tuple(replace(d, intact_after=walk.intact - d.intact_before) for d in walk.damages),
        notes=(*walk.notes, *leftovers.describe(state, walk.bases)),
    )


class _Walk:
    """One pass over the segments, the oldest first.

    entry: number of the next entry; None behind a damage, and in a log whose records have their own numbers. end:
    position behind the last intact record or blank.
    """

    def __init__(self, state: LogState) -> None:
        self.state = state
        self.uuid, self.size = state.identity
        self.bases = self._bases_in_use()
        self.damages: list[Damage] = []
        self.notes: list[str] = []
        self.intact = self.lost = self.torn = self.indexes = self.verified = self.end = 0
        self.start = self.entry = self._first_entry()
        self._due_base = state.extent.start
        self._lost_from: int | None = None  # number of the entry at which the current damage begins
        self._unresolved: list[int] = []  # indexes of damages without an intact record behind them so far

    def _bases_in_use(self) -> list[int]:
        """Return the bases of the segments with records of the log, without the prepared segments behind them."""
        start, end = self.state.extent.start, self._end
        bases = [base for base in sorted(self.state.headers) if base >= start]
        if end is not None:
            return [base for base in bases if base < end]
        while bases and bases[-1] >= self._proven and self._is_spare(bases[-1]):
            bases.pop()
        return bases

    def _first_entry(self) -> int | None:
        """Return the number of the log's first entry; None: unknown."""
        first = self.state.headers.get(self.state.extent.start)
        if isinstance(first, Header) and first.first_entry >= 0:
            return first.first_entry
        return 0 if self.state.extent.start == 0 else None

    def _is_spare(self, base: int) -> bool:
        header = self.state.headers[base]
        return isinstance(header, Header) and (header.base != base or header.first_entry == PREPARED)

    @property
    def _end(self) -> int | None:
        """Position of the end of the log; None if it is unknown, or intact records follow it.

        A writer may cut such records when it opens the log, but they were appended, so that fsck reports their damage.
        """
        extent = self.state.extent
        return extent.position if not extent.torn_records else None

    @property
    def _proven(self) -> int:
        checkpoint = self.state.own_checkpoint
        return checkpoint.position if checkpoint is not None else 0

    # ---- damage ---------------------------------------------------------------------------------------------

    def _report(self, part: str, fault: CorruptionError, *, entry: int | None = None, costs: bool = False) -> None:
        self.damages.append(
            Damage(
                part=part,
                path=str(fault.path),
                position=fault.position,
                expected=fault.expected,
                found=fault.found,
                costs_entries=costs,
                entry=entry,
                resumes=None,
                intact_before=self.intact,
                intact_after=0,
            )
        )

    def _break(self, part: str, fault: CorruptionError) -> None:
        """Report a damage that costs entries. Its end is unknown until the next intact record."""
        if self._lost_from is None:
            self._lost_from = self.entry
        self._unresolved.append(len(self.damages))
        self._report(part, fault, entry=self._lost_from, costs=True)
        self.entry = None

    def _resume(self, entry: int | None) -> None:
        """Note that records are intact again from number `entry` on: the end of the unresolved damages."""
        if self._lost_from is not None and entry is not None:
            self.lost += max(entry - self._lost_from, 0)
        for i in self._unresolved:
            self.damages[i] = replace(self.damages[i], resumes=entry)
        self._lost_from, self.entry = None, entry
        self._unresolved.clear()

    def _count_intact(self, segment: Segment, start: int, stop: int, entries: int) -> None:
        """Count the intact records from offset `start` to `stop`; `entries` is the number of their entries."""
        self.intact += entries
        self.verified += stop - start
        self.end = segment.base + stop
        if self.entry is not None:
            self.entry += entries

    # ---- one segment ----------------------------------------------------------------------------------------

    def visit(self, base: int) -> None:
        if base != self._due_base:
            missing = names.segment_path(self.state.directory, self._due_base)
            self._break(
                SEGMENT, CorruptionError(missing, self._due_base, "a segment file", f"none; the next is at {base}")
            )  # fmt: skip
        self._due_base = base + self.size
        header = self.state.headers[base]
        damaged = self._segment_fault(base, header)
        if damaged is not None:
            self._break(*damaged)
            return
        if isinstance(header, Header) and header.file_bytes != self.size:
            self._check_resized(base, header.file_bytes)
            return
        try:
            segment = map_locked(self.state.directory, base)
        except (TrimmedError, CorruptionError) as error:  # the segment has changed since its header was read
            self.notes.append(f"{error} while the log was checked")
            self.entry = None
            return
        self._check_header(segment)
        self._check_records(segment)

    def _segment_fault(self, base: int, header: Header | CorruptionError) -> tuple[str, CorruptionError] | None:
        """Return the damaged part and the fault if a file is not this log's segment at `base`, else None."""
        path = names.segment_path(self.state.directory, base)
        if isinstance(header, CorruptionError):
            return HEADER, header
        if header.uuid != self.uuid:
            expected, actual = f"a segment of log {self.uuid.hex()}", f"one of log {header.uuid.hex()}"
        elif (header.base, header.size) != (base, self.size):
            expected = f"the segment at {base} of {self.size} bytes"
            actual = f"that at {header.base} of {header.size} bytes"
        elif header.first_entry == PREPARED:
            expected, actual = "a segment with records", "one that was only prepared"
        else:
            return None
        return SEGMENT, CorruptionError(path, base, expected, actual)

    def _check_header(self, segment: Segment) -> None:
        """Check the unused part of a header, and that the entries continue those of the preceding segment."""
        unused = segment.bytes_at(HEADER_USED, HEADER_BYTES - HEADER_USED)
        if any(unused):
            at = next(i for i, byte in enumerate(unused) if byte)
            position = segment.base + HEADER_USED + at
            self._report(
                HEADER, CorruptionError(segment.path, position, "zeros up to the first record", f"{unused[at]:#04x}")
            )  # fmt: skip
        first = segment.first_entry if segment.first_entry >= 0 else None
        if first is not None and self.entry is not None and first != self.entry:
            self._break(HEADER, CorruptionError(segment.path, segment.base, f"first entry {self.entry}", f"{first}"))
        self._resume(first)

    # ---- records --------------------------------------------------------------------------------------------

    def _check_resized(self, base: int, file_bytes: int) -> None:
        """Verify the records that a file of a wrong size still has, and report the damage behind them."""
        segment = copy(self.state.directory, base, self.size)
        self._check_header(segment)
        index = SparseIndex(self.size)
        offset, _ = segment.verify(index, HEADER_BYTES, self.size)
        self._count_intact(segment, HEADER_BYTES, offset, index.entries)
        self._break(SEGMENT, CorruptionError(segment.path, base, f"a file of {self.size} bytes", f"{file_bytes} bytes"))

    def _check_records(self, segment: Segment) -> None:
        end = self._end
        stop = segment.size if end is None else min(segment.size, max(end - segment.base, HEADER_BYTES))
        index = SparseIndex(segment.size)
        offset, status = segment.verify(index, HEADER_BYTES, stop)
        self._count_intact(segment, HEADER_BYTES, offset, index.entries)
        if status not in (0, recovery.BLANK):
            self._check_bad_record(segment, offset, status, stop)
            self._check_index(segment, None)
            return
        if status == 0 and offset == segment.size:
            self._break(
                RECORD, CorruptionError(segment.path, self.end, "an end-of-segment blank", "the end of the file")
            )
        sealed = status == recovery.BLANK
        if sealed:
            self._check_blank(segment, offset)
            self._check_index(segment, index)
        self._check_boundary(segment, index, segment.size if sealed else offset)

    def _check_blank(self, segment: Segment, offset: int) -> None:
        entry = segment.first_entry_at(offset)
        if self.entry is not None and entry != self.entry:
            fault = CorruptionError(
                segment.path, segment.base + offset, f"a blank at entry {self.entry}", f"at {entry}"
            )
            self._report(RECORD, fault)

    def _check_bad_record(self, segment: Segment, offset: int, status: int, stop: int) -> None:
        """Decide by the rule of recovery whether a bad record ends the log, or is damage; go on behind a damage."""
        fault: CorruptionError | None = segment.fault(offset, status)
        while fault is not None:
            offset, due = fault.position - segment.base, self.entry
            if self._ends_at(segment, offset):
                self.torn = recovery.torn_records(segment, offset)[1] - offset
                return
            self._break(RECORD, fault)
            at = self._next_intact(segment, offset, stop, due)
            fault = self._pass_intact(segment, at, stop) if at >= 0 else None

    def _ends_at(self, segment: Segment, offset: int) -> bool:
        """Return whether the log may end before a bad record."""
        if self._end is not None or segment.base != self.bases[-1] or self.end < self._proven:
            return False
        if self.state.extent.fault is not None and self.state.extent.fault.position == segment.base + offset:
            return False
        claimed, _, records = recovery.torn_records(segment, offset)
        return records == 0 and (self.entry is None or claimed < self.entry)

    def _next_intact(self, segment: Segment, offset: int, stop: int, due: int | None) -> int:
        """Return the offset of the next intact record behind `offset`, or -1.

        A record with a number below `due` is skipped: it is a copy of a record, within the value of another one.
        """
        while (offset := segment.find_intact(min(offset + 8, stop), stop)) >= 0:
            if due is None or segment.head_at(offset)[1] >= due:
                break
        return offset

    def _pass_intact(self, segment: Segment, offset: int, stop: int) -> CorruptionError | None:
        """Verify intact records from `offset` on; return the fault of the first bad one, None at the end."""
        self._resume(segment.first_entry_at(offset) if segment.first_entry >= 0 else None)
        while offset < stop:
            try:
                batch = segment.scan(offset, stop, until=min(offset + _STEP_BYTES, stop), all_kinds=True)
            except CorruptionError as error:
                return error
            taken = batch.entry_count
            count, until = len(batch), batch.next_position
            if self.entry is not None:
                wrong = batch.entry != self.entry + taken.cumsum() - (taken > 0)
                if wrong.any():
                    count = int(wrong.argmax())
                    until = int(batch.position[count])
            self._count_intact(segment, offset, until - segment.base, int(taken[:count].sum()))
            if count < len(batch):
                return CorruptionError(segment.path, until, f"entry {self.entry}", f"entry {batch.entry[count]}")
            offset = until - segment.base
        return None

    # ---- derived files --------------------------------------------------------------------------------------

    def _check_index(self, segment: Segment, built: SparseIndex | None) -> None:
        try:
            fault = derived_files.index_fault(names.index_path(self.state.directory, segment.base), segment, built)
        except FileNotFoundError:
            return  # the index is not written yet, or was removed with its segment
        self.indexes += 1
        if fault is not None:
            self._report(INDEX, fault)
        fault = derived_files.ledgers_fault(names.ledgers_path(self.state.directory, segment.base), segment, built)
        if fault is not None:
            self._report(INDEX, fault)

    def _check_boundary(self, segment: Segment, index: SparseIndex, end: int) -> None:
        checkpoint = self.state.own_checkpoint
        if checkpoint is None:
            return
        fault = derived_files.checkpoint_fault(self.state.directory, checkpoint, segment, index, end)
        if fault is not None:
            self._report(CHECKPOINT, fault)

    def check_log(self) -> None:
        """Check the parts that concern the whole log: its checkpoint, marker and tail page, and recovery's result."""
        checkpoint, path = self.state.checkpoint, self.state.directory / names.CHECKPOINT
        for slot in derived_files.torn_slots(self.state.directory) if checkpoint is not None else ():
            self.notes.append(f"{names.CHECKPOINT}: slot {slot} is not intact; the other one is used")
        if checkpoint is None:
            actual = "no intact one" if path.exists() else "no file"
            self._report(CHECKPOINT, CorruptionError(path, 0, "an intact checkpoint slot", actual))
        elif self.state.own_checkpoint is None:
            expected = f"the checkpoint of log {self.uuid.hex()} with segments of {self.size} bytes"
            actual = f"that of log {checkpoint.uuid.hex()} with {checkpoint.segment_bytes}"
            self._report(CHECKPOINT, CorruptionError(path, 0, expected, actual))
        if isinstance(self.state.marker, CorruptionError):
            self._report(MARKER, self.state.marker)
        if self.state.page is not None:
            self._report(PAGE, self.state.page)
        fault = self.state.extent.fault
        if fault is not None and str(fault.path) not in {damage.path for damage in self.damages}:
            self._break(SEGMENT, fault)
