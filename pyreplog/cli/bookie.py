"""`pyreplog bookie`: run a storage node until SIGTERM or Ctrl-C."""

from __future__ import annotations

import argparse
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

from pyreplog.bookie.config import BOOKIE_DURABILITIES, BookieConfig
from pyreplog.bookie.node import BookieNode
from pyreplog.cli.clusters import VARIABLE
from pyreplog.cli.output import print_json
from pyreplog.errors import InvalidArgumentError
from pyreplog.ledger.ledgermetadata import LEDGERS, LedgerMetadata, State, metadata_key
from pyreplog.metadata.store import MetadataStore
from pyreplog.metadata.url import open_store
from pyreplog.net.handshake import Secret

NAME = "bookie"
HELP = "run a storage node until SIGTERM or Ctrl-C"

_KEEP_S = 1.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("directory", metavar="DIR", help="directory of the bookie; made if need be")
    parser.add_argument("--metadata", metavar="URL", help=f"metadata store of the cluster (default: ${VARIABLE})")
    parser.add_argument("--listen", metavar="HOST:PORT", default="127.0.0.1:0", help="default 127.0.0.1:0, a free port")
    parser.add_argument("--name", metavar="NAME", help="as the cluster knows it (default: that of DIR)")
    parser.add_argument("--rack", metavar="RACK", default="", help="copies are spread over racks")
    parser.add_argument("--durability", choices=BOOKIE_DURABILITIES, default="synced", help="of what needs no sync")
    parser.add_argument("--segment-bytes", metavar="N", type=int, default=BookieConfig.segment_bytes)
    parser.add_argument("--secret-file", metavar="FILE", type=Path, help="holds the secret that clients share")
    parser.add_argument("--replace", action="store_true", help="take the name of a bookie whose data are lost")
    parser.add_argument(
        "--drain-s", metavar="S", type=float, default=10.0, help="time for the last answers (default 10)"
    )
    parser.add_argument("--busy-poll-us", metavar="N", type=int, default=0, help="look so long before going to sleep")


def run(arguments: argparse.Namespace) -> int:
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    with open_store(_url(arguments)) as store, _node(arguments, store) as node:
        if arguments.json:
            print_json({"bookie": node.identity.id, "address": node.address})
        else:
            print(f"bookie {node.identity.id} at {node.address}", flush=True)
        while not stop.wait(_KEEP_S):
            node.keep()
        node.drain(arguments.drain_s)
    return 0


def _url(arguments: argparse.Namespace) -> str:
    url = arguments.metadata or os.environ.get(VARIABLE)
    if not url:
        raise InvalidArgumentError(f"say which metadata store: --metadata URL or ${VARIABLE}")
    return str(url)


def _node(arguments: argparse.Namespace, store: MetadataStore) -> BookieNode:
    host, _, port = arguments.listen.rpartition(":")
    if not host or not port.isdecimal():
        raise InvalidArgumentError(f"--listen: expected HOST:PORT, found {arguments.listen!r}")
    secret = None
    if arguments.secret_file is not None:
        secret = Secret(arguments.secret_file.read_bytes().rstrip(b"\r\n"))
    return BookieNode(
        arguments.directory,
        arguments.name or Path(arguments.directory).absolute().name,
        store,
        BookieConfig(durability=arguments.durability, segment_bytes=arguments.segment_bytes),
        open_ledgers=lambda bookie: _open_ledgers(store, bookie),
        key_of=metadata_key,
        host=host.strip("[]"),
        port=int(port),
        rack=arguments.rack,
        make_new=arguments.replace,
        secret=secret,
        busy_poll_us=arguments.busy_poll_us,
    )


def _open_ledgers(store: MetadataStore, bookie: str) -> Iterator[int]:
    """Ledgers whose end is not known and may lie on this bookie."""
    for name in store.list(LEDGERS):
        found = store.get(f"{LEDGERS}/{name}")
        if found is not None:
            metadata = LedgerMetadata.decode(found.value)
            if metadata.state is not State.CLOSED and bookie in metadata.last_fragment.ensemble:
                yield metadata.ledger
