"""`pyreplog cursor`: list the cursors of a log, which retain unread entries; move or remove one."""

from __future__ import annotations

import argparse
from typing import Any

import pyreplog
from pyreplog.cli.shared.output import amount, counted, print_fields, print_json, say
from pyreplog.errors import InvalidArgumentError
from pyreplog.log import LogReader
from pyreplog.log import checkpoint as checkpoints
from pyreplog.log.log_cursor import cursor_places

NAME = "cursor"
HELP = "list the cursors of a log, which retain the entries that their readers have not processed; move or remove one"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("log", metavar="LOG", help="directory of the log; a writer may have it open")
    parser.add_argument("name", metavar="NAME", nargs="?", help="the cursor to move or remove")
    change = parser.add_mutually_exclusive_group()
    change.add_argument(
        "--seek", metavar="ENTRY", type=int, help="move to the first entry to process; create the cursor if needed"
    )
    change.add_argument("--delete", action="store_true", help="remove the cursor: the log retains nothing for it")


def run(arguments: argparse.Namespace) -> int:
    if (arguments.seek is not None or arguments.delete) != (arguments.name is not None):
        raise InvalidArgumentError("cursor: expected NAME together with --seek ENTRY or --delete, or neither")
    with pyreplog.open(arguments.log, "r") as log:
        if arguments.name is not None:
            _change(log, arguments)
        rows = cursors(log)
    if arguments.json:
        print_json(rows)
    elif not rows:
        say(f"{arguments.log} has no cursors")
    else:
        print_fields((row["name"], _text(row)) for row in rows)
    return 0


def _text(row: dict[str, Any]) -> str:
    return f"at entry {row['entry']:,}, {counted(row['lag'], 'entry')} to process, retains {amount(row['bytes'])}"


def _change(log: LogReader, arguments: argparse.Namespace) -> None:
    if arguments.delete and arguments.name not in log.cursors():
        raise InvalidArgumentError(f"{arguments.log}: the log has no cursor {arguments.name}")
    with log.cursor(arguments.name) as cursor:
        if arguments.delete:
            cursor.delete()
        else:
            cursor.seek(arguments.seek)


def cursors(log: LogReader) -> list[dict[str, Any]]:
    """Return the cursors of a log. lag: entries that are not processed; bytes: bytes of the log after the cursor."""
    checkpoint = checkpoints.load(log.path)
    places = {} if checkpoint is None else cursor_places(log.path, checkpoint.uuid)
    return [
        {
            "name": name, "entry": place.entry, "position": place.position, "lag": max(log.end - place.entry, 0),
            "bytes": max(log.end_position - place.position, 0),
        }
        for name, place in sorted(places.items())
    ]  # fmt: skip
