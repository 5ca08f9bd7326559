"""`pyreplog cursor`: the cursors of a log, which keep what their readers have not done; move or remove one."""

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
HELP = "list the cursors of a log, which keep what their readers have not done; move or remove one"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("log", metavar="LOG", help="directory of the log; a writer may have it open")
    parser.add_argument("name", metavar="NAME", nargs="?", help="the cursor to be moved or removed")
    change = parser.add_mutually_exclusive_group()
    change.add_argument("--seek", metavar="ENTRY", type=int, help="the first entry that is not done; make the cursor")
    change.add_argument("--delete", action="store_true", help="remove the cursor: the log keeps nothing for it")


def run(arguments: argparse.Namespace) -> int:
    if (arguments.seek is not None or arguments.delete) != (arguments.name is not None):
        raise InvalidArgumentError("cursor: expected NAME together with --seek ENTRY or --delete, or none of them")
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
    return f"at entry {row['entry']:,}, {counted(row['lag'], 'entry')} to do, holds {amount(row['bytes'])} of the log"


def _change(log: LogReader, arguments: argparse.Namespace) -> None:
    if arguments.delete and arguments.name not in log.cursors():
        raise InvalidArgumentError(f"{arguments.log}: there is no cursor {arguments.name}")
    with log.cursor(arguments.name) as cursor:
        if arguments.delete:
            cursor.delete()
        else:
            cursor.seek(arguments.seek)


def cursors(log: LogReader) -> list[dict[str, Any]]:
    """The cursors of a log. lag: entries that are not done; bytes: of the log behind the cursor."""
    checkpoint = checkpoints.load(log.path)
    places = {} if checkpoint is None else cursor_places(log.path, checkpoint.uuid)
    return [
        {
            "name": name, "entry": place.entry, "position": place.position, "lag": max(log.end - place.entry, 0),
            "bytes": max(log.end_position - place.position, 0),
        }
        for name, place in sorted(places.items())
    ]  # fmt: skip
