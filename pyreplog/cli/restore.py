"""`pyreplog restore`: make a log from a backup."""

from __future__ import annotations

import argparse
from dataclasses import asdict

from pyreplog.cli.shared.output import counted, print_json, say
from pyreplog.cli.shared.progress import progress
from pyreplog.log.backup import manifest
from pyreplog.log.backup.restoring import restore

NAME = "restore"
HELP = "make a log from a backup; entries, numbers and positions stay, and the log gets a new identity"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("backup", metavar="BACKUP", help="directory of the backup")
    parser.add_argument("target", metavar="TARGET", help="directory for the log: new or empty")


def run(arguments: argparse.Namespace) -> int:
    total = sum(piece.bytes for piece in manifest.load(arguments.backup).pieces)
    with progress("restore", start=0, total=total) as shown:
        restored = restore(arguments.backup, arguments.target, progress=shown.update)
    if arguments.json:
        print_json(asdict(restored))
    else:
        entries = f"{counted(restored.entries, 'entry')}, numbers {restored.start:,} to before {restored.end:,}"
        say(f"{entries}, in {arguments.target}")
    return 0
