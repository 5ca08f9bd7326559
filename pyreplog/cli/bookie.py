"""`pyreplog bookie`: run a storage node until SIGTERM or Ctrl-C."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
from contextlib import nullcontext
from pathlib import Path

from pyreplog.bookie.config import BOOKIE_DURABILITIES, BookieConfig
from pyreplog.bookie.node import BookieNode
from pyreplog.cli import settings, tls
from pyreplog.cli.clusters import VARIABLE
from pyreplog.cli.output import print_json
from pyreplog.errors import InvalidArgumentError
from pyreplog.ledger.ledgermetadata import metadata_key
from pyreplog.ledger.stored import open_ledgers
from pyreplog.metadata.store import MetadataStore
from pyreplog.metadata.url import open_store
from pyreplog.metrics import MetricsServer
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
    parser.add_argument("--durability", choices=BOOKIE_DURABILITIES, help="of what needs no sync (default synced)")
    parser.add_argument("--segment-bytes", metavar="N", type=int, help="size of the log's files, when it is made")
    settings.add_arguments(parser)
    parser.add_argument("--secret-file", metavar="FILE", type=Path, help="holds the secret that clients share")
    tls.add_server_arguments(parser)
    parser.add_argument("--metrics", metavar="[HOST:]PORT", help="serve Prometheus there (default host 127.0.0.1)")
    parser.add_argument("--replace", action="store_true", help="take the name of a bookie whose data are lost")
    parser.add_argument(
        "--drain-s", metavar="S", type=float, default=10.0, help="time for the last answers (default 10)"
    )
    parser.add_argument("--busy-poll-us", metavar="N", type=int, default=0, help="look so long before going to sleep")


def run(arguments: argparse.Namespace) -> int:
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    with (
        open_store(_url(arguments)) as store,
        _node(arguments, store) as node,
        _metrics(arguments, node) as metrics,
    ):
        _announce(arguments, node, metrics)
        while not stop.wait(_KEEP_S):
            node.keep()
        if metrics is not None:
            metrics.close()
        node.drain(arguments.drain_s)
    return 0


def _announce(arguments: argparse.Namespace, node: BookieNode, metrics: MetricsServer | None) -> None:
    at = None if metrics is None else _address(*metrics.address)
    if arguments.json:
        print_json({"bookie": node.identity.id, "address": node.address, **({} if at is None else {"metrics": at})})
    else:
        print(f"bookie {node.identity.id} at {node.address}", "" if at is None else f", metrics at {at}", sep="")
        sys.stdout.flush()


def _metrics(arguments: argparse.Namespace, node: BookieNode) -> MetricsServer | nullcontext[None]:
    if arguments.metrics is None:
        return nullcontext()
    host, port = _host_and_port("--metrics", arguments.metrics, host="127.0.0.1")
    return MetricsServer([node.metrics], host=host, port=port)


def _address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _host_and_port(option: str, text: str, *, host: str = "") -> tuple[str, int]:
    """host: the one that need not be said. InvalidArgumentError."""
    name, _, port = text.rpartition(":")
    name = name.strip("[]") or host
    if not name or not port.isdecimal() or int(port) > 65535:
        raise InvalidArgumentError(f"{option}: expected HOST:PORT, found {text!r}")
    return name, int(port)


def _config(arguments: argparse.Namespace) -> BookieConfig:
    named = {"durability": arguments.durability, "segment_bytes": arguments.segment_bytes}
    given = {name: value for name, value in named.items() if value is not None}
    return BookieConfig.of({**settings.settings(arguments), **given})


def _url(arguments: argparse.Namespace) -> str:
    url = arguments.metadata or os.environ.get(VARIABLE)
    if not url:
        raise InvalidArgumentError(f"say which metadata store: --metadata URL or ${VARIABLE}")
    return str(url)


def _node(arguments: argparse.Namespace, store: MetadataStore) -> BookieNode:
    host, port = _host_and_port("--listen", arguments.listen)
    if host in ("0.0.0.0", "::"):
        raise InvalidArgumentError(f"--listen {arguments.listen}: clients are told it; name an address they can reach")
    secret = None
    if arguments.secret_file is not None:
        secret = Secret(arguments.secret_file.read_bytes().rstrip(b"\r\n"))
    return BookieNode(
        arguments.directory,
        arguments.name or Path(arguments.directory).absolute().name,
        store,
        _config(arguments),
        open_ledgers=lambda bookie: open_ledgers(store, bookie),
        key_of=metadata_key,
        host=host,
        port=port,
        rack=arguments.rack,
        make_new=arguments.replace,
        secret=secret,
        tls=tls.server_context(arguments),
        busy_poll_us=arguments.busy_poll_us,
    )
