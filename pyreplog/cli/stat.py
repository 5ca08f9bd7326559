"""`pyreplog stat`: the content of a log, its writer, and how far it is synced."""

from __future__ import annotations

import argparse
import uuid
from pathlib import Path
from typing import Any

import pyreplog
from pyreplog.cli.shared.output import amount, moment, print_fields, print_json
from pyreplog.cli.shared.partition_records import partition_fields, partition_reader
from pyreplog.disk_usage import size_on_disk
from pyreplog.errors import CorruptionError
from pyreplog.log import LogReader, names
from pyreplog.log import checkpoint as checkpoints
from pyreplog.log.lock import writer_of
from pyreplog.log.opening import as_directory

NAME = "stat"
HELP = "show the content of a log, its writer, and how far it is synced"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("log", metavar="LOG", help="directory of the log")


def run(arguments: argparse.Namespace) -> int:
    path = as_directory(arguments.log)
    with pyreplog.open(path, "r") as log:
        fields = stat(path, log)
        reader = partition_reader(log)
        if reader is not None:
            fields["partition"] = partition_fields(log, reader)
    if arguments.json:
        print_json(fields)
    else:
        print_fields(_lines(fields))
    return 0


def stat(path: Path, log: LogReader) -> dict[str, Any]:
    """Return the state of a log at one moment, with times in microseconds since 1970, and sizes and positions in bytes.

    synced_end: number of the first entry that is not known to be on disk. writer: process that has the log open.
    """
    checkpoint = checkpoints.load(path)
    if checkpoint is None:
        raise CorruptionError(path / names.CHECKPOINT, 0, "an intact checkpoint", "none; run fsck")
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
        "disk_bytes": size_on_disk(path),
        "set_aside": sorted(str(folder.relative_to(path)) for folder in (path / names.ASIDE).glob("*")),
    }


def _lines(fields: dict[str, Any]) -> list[tuple[str, object]]:
    count, length = fields["end"] - fields["start"], fields["end_position"] - fields["start_position"]
    lines: list[tuple[str, object]] = [
        ("log", f"{fields['path']}, uuid {fields['uuid']}"),
        ("writer", "none" if fields["writer"] is None else f"process {fields['writer']}"),
        ("entries", f"{count:,}, numbers {fields['start']:,} to before {fields['end']:,}"),
        ("synced", f"to before {fields['synced_end']:,}" + (", closed cleanly" if fields["clean"] else "")),
        ("positions", f"{fields['start_position']:,} to {fields['end_position']:,} ({amount(length)})"),
        ("segments", f"{fields['segments']:,} of {amount(fields['segment_bytes'])}"),
        ("on disk", f"{amount(fields['disk_bytes'])}, prepared segments included"),
    ]
    if fields["first_time"] is not None:
        lines.append(("appended", f"{moment(fields['first_time'])} to {moment(fields['last_time'])}"))
    if "partition" in fields:
        lines += _partition_lines(fields["partition"])
    if fields["set_aside"]:
        lines.append(("set aside", ", ".join(fields["set_aside"])))
    return lines


def _partition_name(fields: dict[str, Any]) -> str:
    if fields["topic_id"] is None:  # a copy, as from a backup
        return "of an unknown topic: the name of the directory does not contain it"
    return f"{fields['partition']} of topic {fields['topic_id']}"


def _partition_lines(fields: dict[str, Any]) -> list[tuple[str, object]]:
    known = "" if fields["high_watermark_known"] else ", unknown: all of the log is shown"
    last = fields["epochs"][-1] if fields["epochs"] else None
    epochs = len(fields["epochs"])
    counts = f"{fields['batches']:,} with {fields['records']:,} records, and {fields['markers']:,} markers"
    return [
        ("partition", _partition_name(fields)),
        ("committed", f"high watermark {fields['high_watermark']:,}{known}"),
        ("stable", f"last stable offset {fields['last_stable_offset']:,}"),
        ("epochs", "none" if last is None else f"{epochs:,}, the last one {last['epoch']} of {last['leader']}"),
        ("producers", f"{len(fields['producers']):,}, aborted transactions {fields['aborted_transactions']:,}"),
        ("batches", counts),
    ]
