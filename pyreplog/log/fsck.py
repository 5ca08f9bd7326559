"""Verify every byte of a log and explain what is damaged; changes nothing (`repair` does).

Works on a log nobody has open, and beside a live writer, up to what readers may see. What ends the log and what is
corruption is recovery's verdict; fsck goes on behind a damage, so that one report names all.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from uuid import UUID

from pyreplog._native.segment import HEADER_BYTES, Segment, encode_header
from pyreplog._native.sparse import SparseIndex
from pyreplog.errors import CorruptionError, TrimmedError
from pyreplog.log import leftovers, names, recovery, sidefiles, survey
from pyreplog.log.damage import CHECKPOINT, HEADER, INDEX, MARKER, RECORD, SEGMENT, Damage, Report
from pyreplog.log.hold import hold
from pyreplog.log.segments import PREPARED
from pyreplog.log.survey import Header, Survey

Progress = Callable[[int, int], object]
"""Called with (bytes verified, bytes in all)."""

_HEADER_USED = 64  # bytes of the header block that its CRC-32C covers, or is
_NUMBERED_MAX = 2  # record kinds up to this one are entries
_STEP_BYTES = 1 << 20
_ATTEMPTS = 3


def check(path: Path | str, *, progress: Progress | None = None) -> Report:
    """Verify the log in directory `path`; read-only. Errors: NotALogError, FormatVersionError."""
    directory = Path(path)
    for _ in range(_ATTEMPTS):
        writer, generation = survey.writer_of(directory), survey.generation(directory)
        report = verify(survey.take(directory, writer=writer), progress)
        if generation == survey.generation(directory) and (writer is None) == (survey.writer_of(directory) is None):
            return report
    return replace(report, notes=(*report.notes, "the log was opened or cut while it was checked; check it again"))


def verify(seen: Survey, progress: Progress | None = None) -> Report:
    """Compare what a log says about itself with all of its bytes."""
    walk = _Walk(seen)
    total = len(walk.bases) * walk.size
    for number, base in enumerate(walk.bases):
        if progress is not None:
            progress(number * walk.size, total)
        walk.visit(base)
    if progress is not None:
        progress(total, total)
    walk.check_log()
    first = seen.headers[walk.bases[0]] if walk.bases else None
    return Report(
        path=str(seen.directory),
        uuid=str(UUID(bytes=walk.uuid)),
        segment_bytes=walk.size,
        writer=seen.writer,
        segments=len(walk.bases),
        indexes=walk.indexes,
        verified_bytes=walk.verified,
        start=first.first_entry if isinstance(first, Header) else None,
        end=walk.entry,
        start_position=walk.bases[0] if walk.bases else 0,
        end_position=walk.end,
        entries=walk.intact,
        lost=walk.lost,
        torn_bytes=seen.end.torn or walk.torn,
        damages=tuple(replace(d, intact_after=walk.intact - d.intact_before) for d in walk.damages),
        notes=(*walk.notes, *leftovers.describe(seen, walk.bases)),
    )


class _Walk:
    """One pass over the segments, the oldest first.

    entry: number of the next entry; None behind a damage, and in a log whose records carry their own numbers.
    end: position after the last intact record or blank.
    """

    def __init__(self, seen: Survey) -> None:
        self.seen = seen
        self.uuid, self.size = seen.identity
        self.bases = self._bases_in_use()
        self.damages: list[Damage] = []
        self.notes: list[str] = []
        self.intact = self.lost = self.torn = self.indexes = self.verified = self.end = 0
        self.entry: int | None = 0 if self.bases[:1] == [0] else None
        self._due_base = self.bases[0] if self.bases else 0
        self._broke_at: int | None = None  # number that was due where the damage at hand began
        self._unresolved: list[int] = []  # damages behind which nothing intact was met yet

    def _bases_in_use(self) -> list[int]:
        """Segments that hold records of the log; prepared ones may lie behind them."""
        end, bases = self.seen.end.position, sorted(self.seen.headers)
        if end is not None:
            return [base for base in bases if base < end]
        while bases and bases[-1] >= max(self._proven, 1) and not self._holds_records(bases[-1]):
            bases.pop()
        return bases

    def _holds_records(self, base: int) -> bool:
        header = self.seen.headers[base]
        return isinstance(header, Header) and header.base == base and header.first_entry != PREPARED

    @property
    def _proven(self) -> int:
        return self.seen.checkpoint.position if self.seen.checkpoint is not None else 0

    # ---- damage ---------------------------------------------------------------------------------------------

    def _report(self, part: str, fault: CorruptionError, *, entry: int | None = None, costs: bool = False) -> None:
        self.damages.append(
            Damage(
                part=part, path=str(fault.path), position=fault.position, expected=fault.expected, found=fault.found,
                costs_entries=costs, entry=entry, resumes=None, intact_before=self.intact, intact_after=0,
            )  # fmt: skip
        )

    def _break(self, part: str, fault: CorruptionError) -> None:
        """Damage that costs entries: where it ends is unknown until an intact record is met."""
        if self._broke_at is None:
            self._broke_at = self.entry
        self._unresolved.append(len(self.damages))
        self._report(part, fault, entry=self._broke_at, costs=True)
        self.entry = None

    def _resume(self, entry: int | None) -> None:
        """Intact again, at number `entry`."""
        if self._broke_at is not None and entry is not None:
            self.lost += max(entry - self._broke_at, 0)
        for i in self._unresolved:
            self.damages[i] = replace(self.damages[i], resumes=entry)
        self._broke_at, self.entry = None, entry
        self._unresolved.clear()

    def _passed(self, segment: Segment, start: int, stop: int, entries: int) -> None:
        """Offsets from `start` to `stop` hold intact records, `entries` of them numbered."""
        self.intact += entries
        self.verified += stop - start
        self.end = segment.base + stop
        if self.entry is not None:
            self.entry += entries

    # ---- one segment ----------------------------------------------------------------------------------------

    def visit(self, base: int) -> None:
        if base != self._due_base:
            missing = names.segment_path(self.seen.directory, self._due_base)
            self._break(
                SEGMENT, CorruptionError(missing, self._due_base, "a segment file", f"none; the next is at {base}")
            )  # fmt: skip
        self._due_base = base + self.size
        damaged = self._misfit(base, self.seen.headers[base])
        if damaged is not None:
            self._break(*damaged)
            return
        try:
            segment = hold(self.seen.directory, base)
        except TrimmedError as error:
            self.notes.append(f"{error} while the log was checked")
            return
        self._check_header(segment)
        self._check_records(segment)

    def _misfit(self, base: int, header: Header | CorruptionError) -> tuple[str, CorruptionError] | None:
        """Why a file is not this log's segment at `base`."""
        path = names.segment_path(self.seen.directory, base)
        if isinstance(header, CorruptionError):
            return HEADER, CorruptionError(path, base + header.position, header.expected, header.found)
        expected, found = f"a segment of log {self.uuid.hex()}", f"one of log {header.uuid.hex()}"
        if header.uuid == self.uuid:
            expected = f"the segment at {base} of {self.size} bytes"
            found = f"that at {header.base} of {header.size} bytes"
        if expected[-32:] == found[-32:] and header.file_bytes != self.size:
            expected, found = f"a file of {self.size} bytes", f"{header.file_bytes} bytes"
        return None

    def _check_header(self, segment: Segment) -> None:
        made = encode_header(segment.uuid, segment.base, segment.size, segment.first_entry, segment.epoch)
        found = segment.bytes_at(0, HEADER_BYTES)
        if made[_HEADER_USED:] != found[_HEADER_USED:]:
            at = next(i for i in range(_HEADER_USED, HEADER_BYTES) if found[i])
            fault = CorruptionError(segment.path, segment.base + at, "zeros up to the first record", f"{found[at]:#04x}")
            self._report(HEADER, fault)
        first = segment.first_entry if segment.first_entry >= 0 else None
        if first is not None and self.entry is not None and first != self.entry:
            self._break(HEADER, CorruptionError(segment.path, segment.base + 40, f"first entry {self.entry}", f"{first}"))
        self._resume(first)
