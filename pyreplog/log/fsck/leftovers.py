"""Descriptions of the files in a log directory that hold no entries of the log."""

from __future__ import annotations

from pyreplog.log import names
from pyreplog.log.fsck.survey import LogState
from pyreplog.log.truncation import Truncation

_PRODUCERS = ".producers"
"""Suffix of the producer snapshots of a partition, next to its segments (`partition/store/producer_snapshot.py`)."""
_KNOWN = {
    names.LOCK, names.TAIL, names.CHECKPOINT, names.TRUNCATION, names.ASIDE, names.REPLICA, names.TERMS, names.MEMBERS,
    names.CURSORS, names.CLEANED, names.INCARNATION,
}  # fmt: skip


def describe(state: LogState, bases: list[int]) -> list[str]:
    """Describe the leftover files of a log, one line each. bases: of the segments in use."""
    lines: list[str] = []
    if isinstance(state.marker, Truncation):
        lines.append(
            f"{names.TRUNCATION}: the next opening for writing cuts the log at position {state.marker.position}"
        )
    if state.extent.torn_records:
        lines.append(
            f"{names.ASIDE}/: the next opening for writing ends the log at position {state.extent.position}, and keeps "
            f"{state.extent.torn_records:,} intact records that follow the damage in this directory"
        )
    if state.writer is not None:
        return lines  # an open log has prepared and spare segments, and they change meanwhile
    here = state.directory
    paths = (names.segment_path, names.index_path, names.ledgers_path)
    used = {path(here, base).name for base in bases for path in paths}
    used |= {names.segment_path(here, base).with_suffix(_PRODUCERS).name for base in bases}
    file_names = sorted(path.name for path in here.iterdir())
    lines += [f"{name}: {_describe_file(name)}" for name in file_names if name not in used | _KNOWN]
    aside = here / names.ASIDE
    if aside.is_dir():
        kept = len(list(aside.iterdir()))
        lines.append(f"{names.ASIDE}/: keeps {kept} set{'' if kept == 1 else 's'} of bytes that were cut or replaced")
    return lines


def _describe_file(name: str) -> str:
    if name.startswith(("spare-", "fresh-")) and name.endswith(".seg"):
        return "a spare segment, removed at the next opening for writing"
    if name.endswith(".new"):
        return "an incomplete file that a crash left behind"
    if name.endswith(".log"):
        return "a segment after the end of the log, removed (its records set aside) at the next opening for writing"
    if name.endswith((".idx", ".led")):
        return "an index whose segment is not in use"
    if name.endswith(_PRODUCERS):
        return "a snapshot of a partition's producers whose segment is not in use"
    return "not a file of this log"
