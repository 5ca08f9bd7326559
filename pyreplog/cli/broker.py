"""`pyreplog broker`: run a broker of partitions until SIGTERM or Ctrl-C."""

from __future__ import annotations

import argparse
import dataclasses
import ssl
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from pyreplog.cli.shared import kafka_listener, metadata_option, metadata_wait, serving, settings, tls
from pyreplog.cli.shared.output import print_json, say
from pyreplog.errors import ConfigError, InvalidArgumentError
from pyreplog.kafka import KafkaConfig, Server
from pyreplog.kafka.metrics import kafka_metrics
from pyreplog.metadata.store import MetadataStore
from pyreplog.metadata.url import open_store
from pyreplog.metrics import Metric, MetricsServer
from pyreplog.net.sockets import address_text
from pyreplog.partition.broker import Broker
from pyreplog.partition.config import BrokerConfig
from pyreplog.partition.metrics import broker_metrics

NAME = "broker"
IS_SERVER = True
HELP = "run a broker of partitions until SIGTERM or Ctrl-C"

KAFKA = "kafka-"
"""How the names of the options of the Kafka listener begin."""

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
    parser.add_argument("--kafka", metavar="HOST:PORT", help="let Kafka clients talk to the broker, at this address")
    parser.add_argument(
        "--kafka-advertise", metavar="HOST:PORT", help="the address that Kafka clients get (default: that of --kafka)"
    )
    kafka_listener.add_arguments(parser, KAFKA)
    kafka_listener.add_topics_arguments(parser, KAFKA)
    parser.add_argument("--metrics", metavar="[HOST:]PORT", help=serving.METRICS_HELP)
    parser.add_argument("--replace", action="store_true", help="take over the name of a broker whose data are lost")
    metadata_wait.add_argument(parser)
    serving.add_drain_argument(parser)


def run(arguments: argparse.Namespace) -> int:
    credentials = serving.ServerCredentials(arguments, is_peer=True)
    clients = _kafka_credentials(arguments)
    servers: list[Server] = []

    def reload() -> None:
        if clients.has_files:
            clients.reload(servers)
        if credentials.has_files or not clients.has_files:
            credentials.reload()

    stop = serving.stopped_by_signals(reload)
    with (
        metadata_wait.started(arguments, stop, lambda: _opened(arguments, credentials, clients)) as opened,
        serving.metrics_server(arguments, lambda: _metrics(opened)) as metrics,
    ):
        servers.extend([] if opened.server is None else [opened.server])
        _announce(arguments, opened, metrics)
        stop.wait()
        drain = serving.Drain(arguments.drain_s)
        opened.store.end_calls_by(drain.deadline(CLOSING))
        if metrics is not None:
            metrics.close()
        if opened.server is not None:
            opened.server.close()
        opened.broker.close()
    serving.skip_final_collection()
    return 0


class _Opened(NamedTuple):
    """What runs. server: of Kafka clients; None: they have none."""

    store: MetadataStore
    broker: Broker
    server: Server | None


def _metrics(opened: _Opened) -> Iterator[Metric]:
    yield from broker_metrics(opened.broker)
    if opened.server is not None:
        yield from kafka_metrics(opened.server)


def _kafka_credentials(arguments: argparse.Namespace) -> kafka_listener.ListenerCredentials:
    """Return the credentials of Kafka clients. Raises InvalidArgumentError: there are options of no listener."""
    credentials = kafka_listener.ListenerCredentials(arguments, KAFKA)
    others = (arguments.kafka_advertise, arguments.kafka_topics)
    if arguments.kafka is None and (credentials.has_files or any(option is not None for option in others)):
        raise InvalidArgumentError("--kafka-...: expected with --kafka HOST:PORT, found without")
    return credentials


@contextmanager
def _opened(
    arguments: argparse.Namespace, credentials: serving.ServerCredentials, clients: kafka_listener.ListenerCredentials
) -> Iterator[_Opened]:
    for_broker, for_listener = kafka_listener.split_settings(settings.settings(arguments))
    config = _config(arguments, for_broker)
    if arguments.kafka is None and for_listener:
        raise ConfigError("kafka: expected settings of a listener with --kafka HOST:PORT, found them without")
    kafka_config = KafkaConfig.of(for_listener)
    kafka_address = None if arguments.kafka is None else serving.listening(arguments, KAFKA)
    with ExitStack() as stack:
        store = stack.enter_context(open_store(metadata_option.url(arguments)))
        broker = stack.enter_context(_broker(arguments, config, store, _tls(credentials), credentials))
        server = None
        if kafka_address is not None:
            host, port, advertise = kafka_address
            topics = stack.enter_context(kafka_listener.connected_topics(arguments, KAFKA))
            server = Server(
                broker, config=kafka_config, host=host, port=port, advertised=advertise or "", tls=clients.tls,
                users=clients.users, topics=topics,
            )  # fmt: skip
            stack.enter_context(server)
        yield _Opened(store, broker, server)


def _broker(
    arguments: argparse.Namespace, config: BrokerConfig, store: MetadataStore,
    contexts: tuple[ssl.SSLContext, ssl.SSLContext] | None, credentials: serving.ServerCredentials,
) -> Broker:  # fmt: skip
    host, port, advertise = serving.listening(arguments)
    return Broker(
        Path(arguments.directory), arguments.name or Path(arguments.directory).absolute().name, store,
        config=config, host=host, port=port, address=advertise or "", secret=credentials.secret,
        tls=contexts, rack=arguments.rack, replaces=arguments.replace,
    )  # fmt: skip


def _config(arguments: argparse.Namespace, values: dict[str, Any]) -> BrokerConfig:
    """Return the settings. The time of `--drain-s` bounds that of the handover."""
    config = BrokerConfig.of(values)
    return dataclasses.replace(config, stop_ms=min(config.stop_ms, int(arguments.drain_s * HANDOVER * 1000)))


def _tls(credentials: serving.ServerCredentials) -> tuple[ssl.SSLContext, ssl.SSLContext] | None:
    """Return the contexts of a broker, which is a server and a client of the others."""
    server, client = credentials.server, credentials.client
    if server is None and client is None:
        return None
    if server is None or client is None:
        raise InvalidArgumentError("--tls-cert and --tls-ca: expected both, since a broker connects to the others")
    return server, client


def _announce(arguments: argparse.Namespace, opened: _Opened, metrics: MetricsServer | None) -> None:
    values = {"broker": str(opened.broker.member), "address": opened.broker.address}
    if opened.server is not None:
        values["kafka"] = opened.server.advertised
    if metrics is not None:
        values["metrics"] = address_text(metrics.address)
    if arguments.json:
        print_json(values)
    else:
        more = "".join(f", {name} at {values[name]}" for name in ("kafka", "metrics") if name in values)
        say(f"broker {values['broker']} at {values['address']}{more}")
        sys.stdout.flush()
