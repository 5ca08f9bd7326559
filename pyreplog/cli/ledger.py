"""`pyreplog ledger`: create, fill, read, recover, repair and delete ledgers."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from typing import Any, BinaryIO

from pyreplog.cli import cat
from pyreplog.cli.shared import cluster_options
from pyreplog.cli.shared.output import counted, moment, print_fields, print_json, say
from pyreplog.errors import InvalidArgumentError, UnreadableError
from pyreplog.ledger.cluster import LedgerCluster
from pyreplog.ledger.ledger_handle import Ledger
from pyreplog.ledger.ledger_metadata import LedgerMetadata

NAME = "ledger"
HELP = "create, fill, read, recover, repair and delete ledgers"

EXIT_COPIES_LEFT = 9
"""Exit code of `repair` if some copies wait for bookies that do not answer; all others were written."""

_BATCH_LINES = 512


def add_arguments(parser: argparse.ArgumentParser) -> None:
    cluster_options.add_arguments(parser)
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    for name, text, run in (
        ("create", "create a ledger with the lines of standard input, and close it", _create),
        ("list", "list the ids of all ledgers", _list),
        ("read", "print the entries of a ledger; ends its writer if it has one", _read),
        ("tail", "print entries as they are confirmed, while the writer goes on", _tail),
        ("info", "show quorums, fragments and state", _info),
        ("recover", "end the writer of a ledger and find its last entry", _recover),
        ("repair", "write copies that readers found missing or damaged", _repair),
        ("delete", "delete a ledger", _delete),
    ):
        action = actions.add_parser(name, help=text, description=text)
        action.set_defaults(action=run)
        _add_action_arguments(action, name)


def _add_action_arguments(action: argparse.ArgumentParser, name: str) -> None:
    if name == "repair":
        action.add_argument(
            "ledger",
            metavar="LEDGER",
            type=int,
            nargs="?",
            help="check all copies of this ledger (default: repair those that were noted)",
        )
    elif name == "delete":
        action.add_argument("ledger", metavar="LEDGER", help="id of the ledger; with --force, or the name of its key")
        action.add_argument("--force", action="store_true", help="also if its metadata cannot be read")
    elif name not in ("create", "list"):
        action.add_argument("ledger", metavar="LEDGER", type=int, help="id of the ledger")
    if name == "recover":
        action.add_argument(
            "--force", action="store_true", help="treat entries that bookies in limbo lack as never written"
        )
    if name not in ("list", "info", "delete"):
        cluster_options.add_password(action)
    if name in ("read", "tail"):
        action.add_argument("--from", metavar="N", type=int, default=0, dest="start", help="first entry (default 0)")
        cat.add_printing(action)
    if name == "read":
        action.add_argument("--to", metavar="N", type=int, dest="stop", help="entry to stop before (default: the end)")
    if name == "tail":
        action.add_argument("--timeout", metavar="S", type=float, help="end after so many seconds without entries")
    if name == "create":
        action.add_argument("--ensemble", metavar="E", type=int, default=3, help="number of bookies (default 3)")
        action.add_argument("--write-quorum", metavar="QW", type=int, help="copies of each entry (default: E)")
        action.add_argument(
            "--ack-quorum", metavar="QA", type=int, help="copies that confirm an entry (default: a majority)"
        )
        action.add_argument("--durability", choices=("synced", "appended"), default="synced")


def run(arguments: argparse.Namespace) -> int:
    with cluster_options.cluster(arguments, create=arguments.action is _create) as cluster:
        return int(arguments.action(cluster, arguments))


# ---- actions ---------------------------------------------------------------------------------------------------


def _create(cluster: LedgerCluster, arguments: argparse.Namespace) -> int:
    with cluster.create_ledger(
        arguments.ensemble, arguments.write_quorum, arguments.ack_quorum,
        durability=arguments.durability, password=cluster_options.password(arguments),
    ) as ledger:  # fmt: skip
        _fill(ledger)
    if arguments.json:
        print_json(_described(ledger.metadata))
    else:
        say(f"ledger {ledger.id}: {counted(ledger.last_add_confirmed + 1, 'entry')}")
    return 0


def _fill(ledger: Ledger) -> None:
    for lines in _batches(sys.stdin.buffer):
        ledger.submit_batch(lines)


def _batches(source: BinaryIO) -> Iterator[list[bytes]]:
    """Yield lines, some hundreds at a time."""
    remainder = b""
    while block := source.read(1 << 18):
        *lines, remainder = (remainder + block).split(b"\n")
        for start in range(0, len(lines), _BATCH_LINES):
            yield lines[start : start + _BATCH_LINES]
    if remainder:
        yield [remainder]


def _list(cluster: LedgerCluster, arguments: argparse.Namespace) -> int:
    ledgers = cluster.ledgers()
    if arguments.json:
        print_json(ledgers)
    else:
        for ledger in ledgers:
            say(ledger)
    return 0


def _read(cluster: LedgerCluster, arguments: argparse.Namespace) -> int:
    records = cat.printer(arguments)
    with cluster.open_ledger(arguments.ledger, password=cluster_options.password(arguments)) as reader:
        for batch in reader.read(arguments.start, arguments.stop):
            records.print(batch)
    return 0


def _tail(cluster: LedgerCluster, arguments: argparse.Namespace) -> int:
    records = cat.printer(arguments)
    with cluster.open_ledger(arguments.ledger, password=cluster_options.password(arguments), recover=False) as reader:
        for batch in reader.follow_batches(arguments.start, timeout=arguments.timeout):
            records.print(batch)
            records.flush()
    return 0


def _info(cluster: LedgerCluster, arguments: argparse.Namespace) -> int:
    description = _described(cluster.ledger_metadata(arguments.ledger))
    if arguments.json:
        print_json(description)
        return 0
    lines = [
        (name.replace("_", " "), value) for name, value in description.items() if name not in ("fragments", "custom")
    ]
    lines += [(f"fragment {first}", ", ".join(ensemble)) for first, ensemble in description["fragments"]]
    print_fields([*lines, *description["custom"].items()])
    return 0


def _described(metadata: LedgerMetadata) -> dict[str, Any]:
    """Return a description of a ledger for people and programs, with times as ISO 8601."""
    return {
        "ledger": metadata.ledger, "state": str(metadata.state), "ensemble": metadata.ensemble_size,
        "write_quorum": metadata.write_quorum, "ack_quorum": metadata.ack_quorum, "durability": metadata.durability,
        "last_entry": metadata.last_entry, "length": metadata.length, "messages": metadata.messages,
        "created": moment(metadata.created_us),
        "fragments": [[first, list(members)] for first, members in metadata.fragments],
        "custom": dict(metadata.custom),
    }  # fmt: skip


def _recover(cluster: LedgerCluster, arguments: argparse.Namespace) -> int:
    password = cluster_options.password(arguments)
    with cluster.open_ledger(arguments.ledger, password=password, force=arguments.force) as reader:
        if arguments.json:
            print_json(_described(reader.metadata))
        else:
            say(f"ledger {reader.id} is closed: {counted(len(reader), 'entry')}")
    return 0


def _repair(cluster: LedgerCluster, arguments: argparse.Namespace) -> int:
    done, left = cluster.repair(arguments.ledger, password=cluster_options.password(arguments))
    if arguments.json:
        print_json({"repaired": done, "left": [[*repair, str(error)] for repair, error in left.items()]})
    else:
        say(f"{counted(len(done), 'copy')} repaired")
        for repair, error in left.items():
            say(f"entry {repair.entry} of ledger {repair.ledger} on {repair.bookie}: {error}")
    refused = [error.exit_code for error in left.values() if not isinstance(error, UnreadableError)]
    if left and not refused:
        say("run the command again when these bookies answer", file=sys.stderr)
    return next(iter(refused), EXIT_COPIES_LEFT if left else 0)


def _delete(cluster: LedgerCluster, arguments: argparse.Namespace) -> int:
    if arguments.force:
        cluster.delete_garbled(arguments.ledger)
    elif arguments.ledger.isdecimal():
        cluster.delete_ledger(int(arguments.ledger))
    else:
        raise InvalidArgumentError(f"ledger: expected an id of 0 or more, found {arguments.ledger}")
    return 0
