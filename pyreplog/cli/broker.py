"""`pyreplog broker`: run a broker of partitions until SIGTERM or Ctrl-C."""

from __future__ import annotations

import argparse
import dataclasses
import ssl
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pyreplog.cli.shared import metadata_option, metadata_wait, serving, settings, tls
from pyreplog.cli.shared.output import print_json, say
from pyreplog.errors import InvalidArgumentError
from pyreplog.metadata.store import MetadataStore
from pyreplog.metadata.url import open_store
from pyreplog.metrics import MetricsServer
from pyreplog.net.sockets import address_text
from pyreplog.partition.broker import Broker
from pyreplog.partition.config import BrokerConfig
from pyreplog.partition.metrics import broker_metrics

NAME = "broker"
IS_SERVER = True
HELP = "run a broker of partitions until SIGTERM or Ctrl-C"

HANDOVER = 0.5
"""Part of the drain time for others to take over the partitions that it leads; then the logs are synced and closed."""

CLOSING = 0.9
"""Part of the drain time within which the metadata store must have answered; a registration also expires."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("directory", metavar="DIR", help="directory of the broker; created if needed")
    metadata_option.add_argument(parser)
    parser.add_argument("--listen", metavar="HOST:PORT", default="127.0.0.1:0", help="default 127.0.0.1:0, a free port")
    parser.add_argument(
        "--advertise", metavar="HOST:PORT", help="the address that brokers and clients get (default: that of --listen)"
    )
    parser.add_argument("--name", metavar="NAME", help="name in the cluster (default: that of DIR)")
    parser.add_argument(
        "--rack", metavar="RACK", default="", help="rack of the broker; replicas are placed on different racks"
    )
    settings.add_arguments(parser)
    parser.add_argument(
        "--secret-file", metavar="FILE", type=Path, help="file with the secret that brokers and clients share"
    )
    tls.add_peer_arguments(parser)
    parser.add_argument("--metrics", metavar="[HOST:]PORT", help=serving.METRICS_HELP)
    parser.add_argument("--replace", action="store_true", help="take over the name of a broker whose data are lost")
    metadata_wait.add_argument(parser)
    serving.add_drain_argument(parser)


def run(arguments: argparse.Namespace) -> int:
    credentials = serving.ServerCredentials(arguments, is_peer=True)
    stop = serving.stopped_by_signals(credentials.reload)
    with (
        metadata_wait.started(arguments, stop, lambda: _opened(arguments, credentials)) as (store, broker),
        serving.metrics_server(arguments, lambda: broker_metrics(broker)) as metrics,
    ):
        _announce(arguments, broker, metrics)
        stop.wait()
        drain = serving.Drain(arguments.drain_s)
        store.end_calls_by(drain.deadline(CLOSING))
        if metrics is not None:
            metrics.close()
        broker.close()
    serving.skip_final_collection()
    return 0


@contextmanager
def _opened(
    arguments: argparse.Namespace, credentials: serving.ServerCredentials
) -> Iterator[tuple[MetadataStore, Broker]]:
    with (
        open_store(metadata_option.url(arguments)) as store,
        _broker(arguments, store, _tls(credentials), credentials) as broker,
    ):
        yield store, broker


def _broker(
    arguments: argparse.Namespace, store: MetadataStore, contexts: tuple[ssl.SSLContext, ssl.SSLContext] | None,
    credentials: serving.ServerCredentials,
) -> Broker:  # fmt: skip
    host, port, advertise = serving.listening(arguments)
    return Broker(
        Path(arguments.directory), arguments.name or Path(arguments.directory).absolute().name, store,
        config=_config(arguments), host=host, port=port, address=advertise or "", secret=credentials.secret,
        tls=contexts, rack=arguments.rack, replaces=arguments.replace,
    )  # fmt: skip


def _config(arguments: argparse.Namespace) -> BrokerConfig:
    """Return the settings. The time of `--drain-s` bounds that of the handover."""
    config = BrokerConfig.of(settings.settings(arguments))
    return dataclasses.replace(config, stop_ms=min(config.stop_ms, int(arguments.drain_s * HANDOVER * 1000)))


def _tls(credentials: serving.ServerCredentials) -> tuple[ssl.SSLContext, ssl.SSLContext] | None:
    """Return the contexts of a broker, which is a server and a client of the others."""
    server, client = credentials.server, credentials.client
    if server is None and client is None:
        return None
    if server is None or client is None:
        raise InvalidArgumentError("--tls-cert and --tls-ca: expected both, since a broker connects to the others")
    return server, client


def _announce(arguments: argparse.Namespace, broker: Broker, metrics: MetricsServer | None) -> None:
    metrics_address = None if metrics is None else address_text(metrics.address)
    if arguments.json:
        print_json(
            {
                "broker": str(broker.member),
                "address": broker.address,
                **({} if metrics_address is None else {"metrics": metrics_address}),
            }
        )
    else:
        say(
            f"broker {broker.member} at {broker.address}",
            "" if metrics_address is None else f", metrics at {metrics_address}",
            sep="",
        )
        sys.stdout.flush()
