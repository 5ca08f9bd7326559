"""Repair of a damaged log: rebuild damaged files that can be rebuilt; move others to `aside/`, never delete them.

| damage | repair |
|---|---|
| index file | moved to `aside/`; rebuilt from its segment when it is next needed |
| checkpoint | moved to `aside/`; a new one proves no records, so that the next opening verifies the whole log |
| marker of a truncation | moved to `aside/`: the truncation was never acknowledged |
| segment header | rebuilt if the log's other files give all of its fields and the records then verify |
| record, or a segment missing, foreign or of a wrong size | none, except with `truncate_at_damage` |

Entry numbers are dense and readers rely on it, so that a bad record cannot be left out: the log continues behind it, or
it ends before it. A truncation keeps the damaged segment and all later ones in `aside/`.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

from pyreplog._native.log.segment import HEADER_BYTES
from pyreplog._native.log.sparse import SparseIndex
from pyreplog.log import names, truncation
from pyreplog.log.checkpoint import Checkpoint, CheckpointFile
from pyreplog.log.files import Files, RealFiles
from pyreplog.log.fsck import check as fsck
from pyreplog.log.fsck import survey
from pyreplog.log.fsck.check import HEADER_USED
from pyreplog.log.fsck.damage import CHECKPOINT, HEADER, INDEX, MARKER, RECORD, SEGMENT, Damage, FsckReport
from pyreplog.log.fsck.locked_segment import copy, map_locked
from pyreplog.log.fsck.rebuild import rebuild_header
from pyreplog.log.fsck.survey import Header, LogState
from pyreplog.log.lock import WriterLock
from pyreplog.log.opening import as_directory
from pyreplog.log.segments import PREPARED
from pyreplog.log.truncation import Truncation

BLANK_BYTES = 32  # size of the blank, for which the records of a segment leave room


@dataclass(frozen=True)
class RepairReport:
    """The result of a repair.

    Attributes:
        before: state of the log before the repair.
        actions: descriptions of the actions, one line each.
        after: state of the log after the repair.
    """

    before: FsckReport
    actions: tuple[str, ...]
    after: FsckReport


def repair(
    path: Path | str, *, truncate_at_damage: bool = False, progress: fsck.Progress | None = None,
    files: Files | None = None,
) -> RepairReport:  # fmt: skip
    """Repair a damaged log.

    Damaged files that can be rebuilt are rebuilt. Others are moved to `aside/`, and never deleted. The call holds the
    lock of the log's writer.

    Args:
        path: directory of the log.
        truncate_at_damage: end the log before the first damage that costs entries.
        progress: called after each segment with the bytes verified and the intact entries so far.
        files: access to the disk, which tests replace; None: the files of the operating system.

    Returns:
        The actions, and the state of the log before and after.

    Raises:
        LockedError: another process has the log open for writing.
        NotALogError: the directory holds no log.
        FormatVersionError: a newer version wrote the log.
        OSError: the disk failed.

    See docs/cli.md.
    """
    directory = as_directory(path)
    survey.take(directory, writer=None)  # raises NotALogError before a lock file is created
    lock = WriterLock(directory)
    try:
        before = fsck.verify(survey.take(directory, writer=None), progress)
        work = _RepairRun(directory, files if files is not None else RealFiles())
        after = work.repair_files(before, progress) if before.damages else before
        if truncate_at_damage and after.first_loss is not None:
            work.truncate(after.first_loss)
            after = work.verify(progress)
    finally:
        lock.release()
    return RepairReport(before, tuple(work.actions), after)


class _RepairRun:
    """The repairs of one run, which share a folder in `aside/`."""

    def __init__(self, directory: Path, files: Files) -> None:
        self.directory, self.files = directory, files
        self.folder = directory / names.ASIDE / f"repair-{time.time_ns():020d}"
        self.actions: list[str] = []

    def verify(self, progress: fsck.Progress | None) -> FsckReport:
        return fsck.verify(survey.take(self.directory, writer=None), progress)

    def repair_files(self, report: FsckReport, progress: fsck.Progress | None) -> FsckReport:
        """Repair damage that costs no entries, and headers; return the state of the log afterwards."""
        for damage in report.damages:
            path = Path(damage.path)
            if damage.part in (INDEX, CHECKPOINT, MARKER) and path.exists():
                self._move_aside(path)
            elif damage.part == HEADER:
                self._rebuild_header(path, damage, due=damage.entry if damage is report.first_loss else None)
        if any(damage.part == CHECKPOINT for damage in report.damages) and report.start is not None:
            self._make_checkpoint(report.start_position, report.start)
        return self.verify(progress) if self.actions else report

    # ---- moving aside ---------------------------------------------------------------------------------------

    def _aside_path(self, name: str) -> Path:
        """Return the path of a file in the folder, which is created for the first one."""
        self.files.make_directory(self.folder)
        return self.folder / name

    def _sync_aside(self) -> None:
        """Make the folder durable, before files whose copies it has are changed or removed."""
        if self.folder.exists():
            self.files.sync_directory(self.folder)

    def _move_aside(self, path: Path) -> None:
        self.files.link(path, self._aside_path(path.name))
        self._sync_aside()
        self.files.remove(path)
        self.files.sync_directory(self.directory)
        self.actions.append(f"moved {path.name} to {self._folder_name}")

    @property
    def _folder_name(self) -> str:
        return str(self.folder.relative_to(self.directory))

    def _make_checkpoint(self, start: int, entry: int) -> None:
        """Write a checkpoint at the start of the log, so that the next opening verifies the whole log."""
        state = survey.take(self.directory, writer=None)
        checkpoint = _checkpoint_at(state, start=start, position=start, entry=entry, epoch=1 + _highest_epoch(state))
        CheckpointFile(self.directory, self.files, checkpoint).close()
        self.actions.append("made a checkpoint by which nothing is proven: the next opening verifies the whole log")

    # ---- headers --------------------------------------------------------------------------------------------

    def _rebuild_header(self, path: Path, damage: Damage, *, due: int | None) -> None:
        state, base = survey.take(self.directory, writer=None), int(path.stem)
        header: bytes | None = None
        if not isinstance(state.headers[base], Header):
            header = rebuild_header(state, base, due=due)
        elif not damage.costs_entries:  # otherwise the first entry is wrong: another segment is missing or foreign
            header = bytes(HEADER_BYTES - HEADER_USED)  # the unused part
        if header is not None:
            self._write_header(path, header)
            self.actions.append(f"made the header of {path.name} again; the old one is in {self._folder_name}")

    def _write_header(self, path: Path, header: bytes) -> None:
        """Write the last bytes of a header, after copying the old header into the folder."""
        fd = self.files.open(path, writable=True)
        try:
            self.files.write_new_synced(self._aside_path(f"{path.name}.header"), os.pread(fd, HEADER_BYTES, 0))
            self._sync_aside()
            self.files.write(fd, header, HEADER_BYTES - len(header))
            self.files.sync(fd)
        finally:
            os.close(fd)

    # ---- cutting --------------------------------------------------------------------------------------------

    def truncate(self, loss: Damage) -> None:
        """Truncate the log before a damage; the damaged segment and all later ones are kept in the folder."""
        state = survey.take(self.directory, writer=None)
        cut = self._cut_before(state, loss)
        if cut is None:
            self.actions.append(f"nothing intact lies before position {loss.position}: nothing was cut")
            return
        base = cut.position // state.identity[1] * state.identity[1]
        self._sync_before(state, base)
        later = [other for other in state.headers if other > base]
        for kept in (base, *later):
            self._keep(state, kept)
        self._sync_aside()
        self._cut(state, cut)
        self.actions.append(
            f"cut the log at position {cut.position}, entry {cut.entry}; all from there on is in {self._folder_name}"
        )

    def _cut_before(self, state: LogState, loss: Damage) -> Truncation | None:
        """Return the truncation before a damage; None if no record before it is intact.

        The new end is at a bad record. For a segment of a wrong size it is behind the last intact record of its file,
        for another damaged segment behind the last record of the preceding segment.
        """
        size, base = state.identity[1], int(Path(loss.path).stem)
        epoch = 1 + _highest_epoch(state)
        if loss.part == RECORD and loss.position - base <= size - BLANK_BYTES:
            return Truncation(loss.position, loss.entry or 0, epoch)
        header = state.headers.get(base)
        if isinstance(header, Header) and header.file_bytes != size and loss.part == SEGMENT:
            before = copy(self.directory, base, size)
        elif isinstance(state.headers.get(base - size), Header):
            before = map_locked(self.directory, base - size)
        else:
            return None
        index = SparseIndex(size)
        offset, _ = before.verify(index, HEADER_BYTES, size)
        return Truncation(before.base + offset, max(before.first_entry, 0) + index.entries, epoch)

    def _sync_before(self, state: LogState, base: int) -> None:
        """Sync the segments before the cut, since the new checkpoint says that their records are on disk."""
        proven = state.own_checkpoint.position if state.own_checkpoint is not None else 0
        for kept in sorted(state.headers):
            if proven < kept + state.identity[1] and kept < base:
                fd = self.files.open(names.segment_path(self.directory, kept), writable=True)
                try:
                    self.files.sync(fd)
                finally:
                    os.close(fd)

    def _keep(self, state: LogState, base: int) -> None:
        """Link a segment's files into the folder, so that they stay when the segment is removed."""
        header = state.headers[base]
        if isinstance(header, Header) and header.first_entry == PREPARED:
            return
        for path in (names.segment_path(self.directory, base), names.index_path(self.directory, base)):
            if path.exists():
                self.files.link(path, self._aside_path(path.name))

    def _cut(self, state: LogState, cut: Truncation) -> None:
        """Truncate the log as `CommitLog.truncate` does; after a crash the next opening finishes the truncation."""
        last = state.own_checkpoint or _checkpoint_at(
            state, start=state.extent.start, position=cut.position, entry=cut.entry, epoch=cut.epoch
        )
        checkpoint = CheckpointFile(self.directory, self.files, last)
        try:
            truncation.announce(self.directory, self.files, cut)
            truncation.publish_cut_offline(self.directory, state.identity[0], cut)
            truncation.apply(self.directory, self.files, cut, checkpoint)
            truncation.publish_cut_offline(self.directory, state.identity[0], cut)
        finally:
            checkpoint.close()


def _highest_epoch(state: LogState) -> int:
    epochs = [header.epoch for header in state.headers.values() if isinstance(header, Header)]
    return max([*epochs, state.own_checkpoint.epoch if state.own_checkpoint is not None else 0])


def _checkpoint_at(state: LogState, *, start: int, position: int, entry: int, epoch: int) -> Checkpoint:
    uuid, size = state.identity
    return Checkpoint(
        uuid=uuid, segment_bytes=size, start=start, position=position, entry=entry, epoch=epoch, clean=False
    )
