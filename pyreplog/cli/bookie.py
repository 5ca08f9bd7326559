"""`pyreplog bookie`: run a storage node until SIGTERM or Ctrl-C."""

from __future__ import annotations

import argparse
import ssl
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pyreplog.autorecovery.auto_recovery import AutoRecovery
from pyreplog.autorecovery.bookie_operations import BookieOperations
from pyreplog.autorecovery.metrics import auto_recovery_metrics
from pyreplog.bookie.config import BOOKIE_DURABILITIES, BookieConfig
from pyreplog.bookie.identity import replaced_bookie
from pyreplog.bookie.node import BookieNode
from pyreplog.cli.cluster_bookies import print_forecast
from pyreplog.cli.shared import metadata_option, metadata_wait, serving, settings, tls
from pyreplog.cli.shared.output import print_json, say
from pyreplog.clock import SystemClock
from pyreplog.errors import InvalidArgumentError
from pyreplog.ledger.cluster import LedgerCluster
from pyreplog.ledger.ledger_store import StoredLedgers
from pyreplog.metadata.store import MetadataStore
from pyreplog.metadata.url import open_store
from pyreplog.metrics import Metric, MetricsServer
from pyreplog.net.sockets import address_text

NAME = "bookie"
IS_SERVER = True
HELP = "run a bookie, a storage node of a cluster, until SIGTERM or Ctrl-C"

UNREGISTERING = 0.25
"""Part of the drain time within which the metadata store must have answered; a registration also expires."""

ANSWERS = 0.9
"""Part of the drain time after which the last replies have left; then the log is synced."""

_KEEP_S = 1.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("directory", metavar="DIR", help="directory of the bookie; created if needed")
    metadata_option.add_argument(parser)
    parser.add_argument("--listen", metavar="HOST:PORT", default="127.0.0.1:0", help="default 127.0.0.1:0, a free port")
    parser.add_argument(
        "--advertise", metavar="HOST:PORT", help="the address that clients get (default: that of --listen)"
    )
    parser.add_argument("--name", metavar="NAME", help="name in the cluster (default: that of DIR)")
    parser.add_argument(
        "--rack", metavar="RACK", default="", help="rack of the bookie; copies are placed on different racks"
    )
    parser.add_argument(
        "--durability", choices=BOOKIE_DURABILITIES, help="durability of entries that need no sync (default synced)"
    )
    parser.add_argument("--segment-bytes", metavar="N", type=int, help="size of the files of a new log")
    settings.add_arguments(parser)
    parser.add_argument("--secret-file", metavar="FILE", type=Path, help="file with the secret that clients share")
    tls.add_server_arguments(parser)
    parser.add_argument("--metrics", metavar="[HOST:]PORT", help=serving.METRICS_HELP)
    parser.add_argument(
        "--older-metadata",
        action="store_true",
        help="go on with metadata from a backup: ledgers created since then are lost (see docs/operations.md)",
    )
    parser.add_argument("--replace", action="store_true", help="take over the name of a bookie whose data are lost")
    parser.add_argument("--yes", action="store_true", help="with --replace: also if entries are lost with it")
    parser.add_argument(
        "--autorecovery", action="store_true", help="also be an auditor and a worker (see `pyreplog autorecovery run`)"
    )
    parser.add_argument(
        "--tls-ca", metavar="FILE", type=Path, help="with --autorecovery: certificates that signed those of bookies"
    )
    metadata_wait.add_argument(parser)
    serving.add_drain_argument(parser)
    parser.add_argument("--busy-poll-us", metavar="N", type=int, default=0, help="microseconds to poll before sleeping")


def run(arguments: argparse.Namespace) -> int:
    credentials = serving.ServerCredentials(arguments, is_peer=True, client=_client_tls)
    stop = serving.stopped_by_signals(credentials.reload)
    with (
        metadata_wait.started(arguments, stop, lambda: _opened(arguments, credentials)) as (store, node, recovery),
        serving.metrics_server(arguments, lambda: _metrics(node, recovery)) as metrics,
    ):
        _announce(arguments, node, metrics)
        while not stop.wait(_KEEP_S):
            node.maintain()
        drain = serving.Drain(arguments.drain_s)
        store.end_calls_by(drain.deadline(UNREGISTERING))
        if metrics is not None:
            metrics.close()
        if recovery is not None:
            recovery.close()
        node.drain(drain.remaining_s(ANSWERS))
    serving.skip_final_collection()
    return 0


def _check_replacement(arguments: argparse.Namespace) -> None:
    """Say what is lost with the bookie whose name an empty directory takes. Raises LastCopyError: entries, unasked."""
    with open_store(metadata_option.url(arguments)) as store:
        bookie = replaced_bookie(Path(arguments.directory), _name(arguments), store)
    if bookie is None:
        return
    say(f"replacing bookie {bookie}: reading the metadata of all ledgers", file=sys.stderr)
    with LedgerCluster.connect(metadata_option.url(arguments)) as cluster:
        operations = BookieOperations(cluster.runtime, SystemClock())
        forecast = operations.forecast_replacement(bookie, accept_loss=arguments.yes)
        registered = next((each for each in cluster.runtime.bookie_statuses() if each.bookie == bookie), None)
    print_forecast(forecast, "are", file=sys.stderr)
    if registered is not None:  # for a while after a kill, too
        say(f"  it is still registered: if it runs at {registered.address}, stop it", file=sys.stderr)


@contextmanager
def _opened(
    arguments: argparse.Namespace, credentials: serving.ServerCredentials
) -> Iterator[tuple[MetadataStore, BookieNode, AutoRecovery | None]]:
    if arguments.replace:
        _check_replacement(arguments)
    with (
        open_store(metadata_option.url(arguments)) as store,
        _node(arguments, store, credentials) as node,
        _auto_recovery(arguments, credentials) as recovery,
    ):
        yield store, node, recovery


def _client_tls(arguments: argparse.Namespace) -> ssl.SSLContext | None:
    """Return the TLS context for connections to other bookies; without --tls-ca there is none."""
    if not arguments.autorecovery and arguments.tls_ca is not None:
        raise InvalidArgumentError("--tls-ca goes with --autorecovery")
    return None if arguments.tls_ca is None else tls.client_context(arguments)


@contextmanager
def _auto_recovery(
    arguments: argparse.Namespace, credentials: serving.ServerCredentials
) -> Iterator[AutoRecovery | None]:
    """Run an auditor and a worker beside the bookie, if the arguments ask for it."""
    if not arguments.autorecovery:
        yield None
        return
    connected = LedgerCluster.connect(metadata_option.url(arguments), secret=credentials.secret, tls=credentials.client)
    with connected as cluster, AutoRecovery(cluster, SystemClock()) as recovery:
        recovery.start()
        yield recovery


def _metrics(node: BookieNode, recovery: AutoRecovery | None) -> list[Metric]:
    return [*node.metrics(), *(() if recovery is None else auto_recovery_metrics(recovery))]


def _announce(arguments: argparse.Namespace, node: BookieNode, metrics: MetricsServer | None) -> None:
    metrics_address = None if metrics is None else address_text(metrics.address)
    if arguments.json:
        print_json(
            {
                "bookie": node.identity.id,
                "address": node.address,
                **({} if metrics_address is None else {"metrics": metrics_address}),
            }
        )
    else:
        say(
            f"bookie {node.identity.id} at {node.address}",
            "" if metrics_address is None else f", metrics at {metrics_address}",
            sep="",
        )
        sys.stdout.flush()


def _config(arguments: argparse.Namespace) -> BookieConfig:
    options = {"durability": arguments.durability, "segment_bytes": arguments.segment_bytes}
    set_options = {name: value for name, value in options.items() if value is not None}
    return BookieConfig.of({**settings.settings(arguments), **set_options})


def _name(arguments: argparse.Namespace) -> str:
    return arguments.name or Path(arguments.directory).absolute().name


def _node(arguments: argparse.Namespace, store: MetadataStore, credentials: serving.ServerCredentials) -> BookieNode:
    host, port, advertise = serving.listening(arguments)
    return BookieNode(
        arguments.directory,
        _name(arguments),
        store,
        _config(arguments),
        ledgers=StoredLedgers(store),
        host=host,
        port=port,
        advertise=advertise,
        rack=arguments.rack,
        make_new=arguments.replace,
        older_metadata=arguments.older_metadata,
        secret=credentials.secret,
        tls=credentials.server,
        busy_poll_us=arguments.busy_poll_us,
    )
