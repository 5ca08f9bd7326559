"""`pyreplog stat`: what a log holds, who writes it, and how far it is on disk."""

from __future__ import annotations

import argparse
import uuid
from pathlib import Path
from typing import Any

import pyreplog
from pyreplog.cli.shared.output import amount, moment, print_fields, print_json
from pyreplog.errors import CorruptionError
from pyreplog.log import LogReader, names
from pyreplog.log import checkpoint as checkpoints
from pyreplog.log.lock import writer_of
from pyreplog.log.opening import as_directory

NAME = "stat"
HELP = "show what a log holds, who writes it, and how far it is on disk"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("log", metavar="LOG", help="directory of the log")


def run(arguments: argparse.Namespace) -> int:
    path = as_directory(arguments.log)
    with pyreplog.open(path, "r") as log:
        found = stat(path, log)
    if arguments.json:
        print_json(found)
    else:
        print_fields(_lines(found))
    return 0


def stat(path: Path, log: LogReader) -> dict[str, Any]:
    """A moment of a log. Times in microseconds since the epoch, sizes and positions in bytes.

    synced_end: number of the first entry that is not known to be on disk. writer: process that has the log open.
    """
    checkpoint = checkpoints.load(path)
    if checkpoint is None:
        raise CorruptionError(path / names.CHECKPOINT, 0, "an intact checkpoint", "none; see what fsck says")
    start, end = log.start, log.end
    bases = names.segment_bases(path)
    return {
        "path": str(path),
        "uuid": str(uuid.UUID(bytes=checkpoint.uuid)),
        "writer": writer_of(path),
        "start": start,
        "end": end,
        "synced_end": int(log.tail.synced_entry) if log.live else checkpoint.entry,
        "start_position": log.start_position,
        "end_position": log.end_position,
        "checkpoint_position": checkpoint.position,
        "clean": checkpoint.clean,
        "epoch": checkpoint.epoch,
        "first_time": log.get(start).timestamp if start < end else None,
        "last_time": log.get(end - 1).timestamp if start < end else None,
        "segments": sum(base < max(log.end_position, 1) for base in bases),
        "segment_bytes": checkpoint.segment_bytes,
        "disk_bytes": sum(file.stat().st_blocks * 512 for file in path.rglob("*") if file.is_file()),
        "set_aside": sorted(str(folder.relative_to(path)) for folder in (path / names.ASIDE).glob("*")),
    }


def _lines(found: dict[str, Any]) -> list[tuple[str, object]]:
    count, length = found["end"] - found["start"], found["end_position"] - found["start_position"]
    lines: list[tuple[str, object]] = [
        ("log", f"{found['path']}, uuid {found['uuid']}"),
        ("writer", "none" if found["writer"] is None else f"process {found['writer']}"),
        ("entries", f"{count:,}, numbers {found['start']:,} to before {found['end']:,}"),
        ("synced", f"to before {found['synced_end']:,}" + (", closed cleanly" if found["clean"] else "")),
        ("positions", f"{found['start_position']:,} to {found['end_position']:,} ({amount(length)})"),
        ("segments", f"{found['segments']:,} of {amount(found['segment_bytes'])}"),
        ("on disk", f"{amount(found['disk_bytes'])}, segments prepared ahead included"),
    ]
    if found["first_time"] is not None:
        lines.append(("appended", f"{moment(found['first_time'])} to {moment(found['last_time'])}"))
    if found["set_aside"]:
        lines.append(("set aside", ", ".join(found["set_aside"])))
    return lines
