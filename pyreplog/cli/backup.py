"""`pyreplog backup`: a consistent copy of a log, live or not."""

from __future__ import annotations

import argparse
from dataclasses import asdict

import pyreplog
from pyreplog.cli.shared.output import amount, counted, print_json, say
from pyreplog.cli.shared.progress import progress
from pyreplog.log.backup.copying import backup
from pyreplog.log.opening import as_directory

NAME = "backup"
HELP = "copy a log, open or not, into a directory from which `restore` makes a log"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("log", metavar="LOG", help="directory of the log; a writer may have it open")
    parser.add_argument("target", metavar="TARGET", help="directory for the backup: new or empty")


def run(arguments: argparse.Namespace) -> int:
    path = as_directory(arguments.log)
    with pyreplog.open(path, "r") as log:
        total = log.end_position - log.start_position
    with progress("backup", start=0, total=total) as shown:
        manifest = backup(path, arguments.target, progress=shown.update)
    if arguments.json:
        print_json(asdict(manifest))
    else:
        size = amount(sum(piece.bytes for piece in manifest.pieces))
        entries = f"{counted(manifest.entries, 'entry')}, numbers {manifest.start:,} to before {manifest.end:,}"
        say(f"{entries}, {size} in {arguments.target}")
    return 0
