"""`pyreplog fsck`: verify every byte of a log, explain each damage, repair what can be repaired."""

from __future__ import annotations

import argparse
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

import pyreplog
from pyreplog.bookie.identity import IDENTITY
from pyreplog.cli.shared.output import amount, counted, print_fields, print_json, say
from pyreplog.cli.shared.partition_records import damaged_batches
from pyreplog.cli.shared.progress import progress
from pyreplog.errors import CorruptionError, InvalidArgumentError, ReplogError
from pyreplog.log import names
from pyreplog.log.fsck import check as fsck
from pyreplog.log.fsck.damage import Damage, FsckReport
from pyreplog.log.fsck.repair import repair
from pyreplog.log.opening import as_directory
from pyreplog.partition.store.partition_reader import is_partition

NAME = "fsck"
HELP = "verify every byte of a log and report each damage; exit code 4 when something is damaged"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("log", metavar="LOG", help="directory of the log; a writer may have it open")
    parser.add_argument(
        "--repair",
        action="store_true",
        help="move damaged index files and checkpoints to aside/ (new ones are made), and rebuild headers that the "
        "records prove. Nothing is deleted, and no entry is dropped. The log must not be open. Exit code 0 if no "
        "damage is left",
    )
    parser.add_argument(
        "--truncate-at-damage",
        action="store_true",
        help="with --repair: end the log before an entry that cannot be read; the damaged segment and all segments "
        "after it are kept whole in aside/",
    )


def run(arguments: argparse.Namespace) -> int:
    path = as_directory(arguments.log)
    if arguments.truncate_at_damage and not arguments.repair:
        raise InvalidArgumentError("--truncate-at-damage: expected with --repair, found without")
    if arguments.truncate_at_damage and (path.parent / IDENTITY).exists():
        raise InvalidArgumentError(
            f"--truncate-at-damage: {path} is the log of a bookie, and a bookie refuses a log that was cut. Start the "
            "bookie without this: it has damaged entries written again from other bookies (docs/operations.md, A disk "
            "flips bits)"
        )
    with progress("fsck", start=0, total=_size(path)) as shown:
        if arguments.repair:
            done = repair(path, truncate_at_damage=arguments.truncate_at_damage, progress=shown.update)
            before, actions, after = done.before, done.actions, done.after
        else:
            before = after = fsck.check(path, progress=shown.update)
            actions = ()
    inner = _damaged_batches(path) if not before.first_loss else []
    if arguments.json:
        repaired = {"actions": actions, "after": asdict(after)} if arguments.repair else {}
        damaged = {"record_batches": inner} if inner else {}
        print_json({"report": asdict(before), **damaged, **repaired})
    else:
        _print(before)
        for text in inner:
            say(f"damage: {text}")
        for action in actions:
            say(f"repair: {action}")
        if arguments.repair and before.damages:
            say(f"after the repair: {_verdict(after)}")
    return 0 if after.clean and not inner else CorruptionError.exit_code


def _damaged_batches(path: Path) -> list[str]:
    """Describe the record batches in a partition's log that were damaged before they were stored. They cannot be
    repaired here: another replica may have them intact."""
    with suppress(ReplogError), pyreplog.open(path, "r") as log:
        if is_partition(log):
            return [str(error) for error in damaged_batches(log)]
    return []


def _size(path: Path) -> int | None:
    with suppress(OSError):  # no such log, or a segment was removed just now
        return sum(names.segment_path(path, base).stat().st_size for base in names.segment_bases(path))
    return None


def _print(report: FsckReport) -> None:
    writer = "" if report.writer is None else f", open for writing in process {report.writer or 'unknown'}"
    numbers = ""  # entries of many ledgers have no range, and after damage the end may be unknown
    if report.start is not None and report.end is not None:
        numbers = f", numbers {report.start:,} to before {report.end:,}"
    fields = [
        ("log", f"{report.path}, uuid {report.uuid}{writer}"),
        ("entries", f"{report.entries:,} intact{numbers}"),
        (
            "verified",
            f"{amount(report.verified_bytes)} in {counted(report.segments, 'segment')}, "
            + counted(report.indexes, "index file"),
        ),
    ]
    if report.lost:
        fields.append(("unreadable", counted(report.lost, "entry")))
    if report.torn_bytes:
        torn = f"{counted(report.torn_bytes, 'byte')} after position {report.end_position:,}"
        fields.append(("torn tail", f"{torn}; the next writer cuts them and keeps them in {names.ASIDE}/"))
    print_fields(fields)
    for note in report.notes:
        say(f"note: {note}")
    for damage in report.damages:
        say(_explain(damage))
    say(_verdict(report))


def _explain(damage: Damage) -> str:
    text = f"damage: {damage.part} {damage.path} at position {damage.position}: "
    text += f"expected {damage.expected}, found {damage.found}"
    if damage.costs_entries:
        number = "" if damage.entry is None else f" from {damage.entry:,} on"
        until = "" if damage.resumes is None else f", intact again at {damage.resumes:,}"
        if not damage.intact_after:  # else the number of the next one is unknown, as in the log of a bookie
            until = ", nothing intact follows"
        text += f"; entries{number} are unreadable{until} ({damage.intact_before:,} intact before it, "
        text += f"{damage.intact_after:,} after it)"
    else:
        text += "; no entry is lost"
    return text


def _verdict(report: FsckReport) -> str:
    if report.clean:
        return "clean"
    return counted(len(report.damages), "damaged place")
