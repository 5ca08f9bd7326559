"""`pyreplog kafka`: run a broker for Kafka clients in one process until SIGTERM or Ctrl-C."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyreplog.cli.shared import kafka_listener, serving, settings
from pyreplog.cli.shared.output import print_json, say
from pyreplog.kafka import EmbeddedKafka, KafkaConfig, Server
from pyreplog.kafka.embedded import LISTENER_SETTINGS, SEGMENT_BYTES
from pyreplog.metrics import Metric, MetricsServer
from pyreplog.net.sockets import address_text
from pyreplog.partition.config import BrokerConfig

if TYPE_CHECKING:
    from pyreplog.topic.client.remote.client import Client

NAME = "kafka"
IS_SERVER = True
HELP = "run a broker for Kafka clients, with its metadata, in one process until SIGTERM or Ctrl-C"

LISTEN = "127.0.0.1:9092"

HANDOVER = 0.5
"""As of `pyreplog broker`."""

CLOSING = 0.9
"""As of `pyreplog broker`."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("directory", metavar="DIR", help="directory of the records and the metadata; created if needed")
    parser.add_argument("--listen", metavar="HOST:PORT", default=LISTEN, help=f"default {LISTEN}; port 0: a free one")
    parser.add_argument(
        "--advertise", metavar="HOST:PORT", help="the address that clients get (default: that of --listen)"
    )
    settings.add_arguments(parser)
    kafka_listener.add_arguments(parser)
    kafka_listener.add_topics_arguments(parser)
    parser.add_argument("--metrics", metavar="[HOST:]PORT", help=serving.METRICS_HELP)
    serving.add_drain_argument(parser)


def run(arguments: argparse.Namespace) -> int:
    credentials = kafka_listener.ListenerCredentials(arguments)
    servers: list[Server] = []
    stop = serving.stopped_by_signals(lambda: credentials.reload(servers))
    with (
        kafka_listener.connected_topics(arguments) as topics,
        _opened(arguments, credentials, topics) as kafka,
        serving.metrics_server(arguments, lambda: _metrics(kafka)) as metrics,
    ):
        servers.extend(kafka.servers.values())
        _announce(arguments, kafka, metrics)
        stop.wait()
        drain = serving.Drain(arguments.drain_s)
        kafka.store.end_calls_by(drain.deadline(CLOSING))
        if metrics is not None:
            metrics.close()
        kafka.close()
    serving.skip_final_collection()
    return 0


def _metrics(kafka: EmbeddedKafka) -> Iterator[Metric]:
    from pyreplog.kafka.metrics import kafka_metrics  # most brokers have no metrics server, and start sooner without
    from pyreplog.partition.metrics import broker_metrics

    for name, server in kafka.servers.items():
        yield from broker_metrics(kafka.brokers[name])
        yield from kafka_metrics(server)


def _opened(
    arguments: argparse.Namespace, credentials: kafka_listener.ListenerCredentials, topics: Client | None
) -> EmbeddedKafka:  # fmt: skip
    host, port, advertise = serving.listening(arguments)
    for_broker, for_listener = kafka_listener.split_settings(settings.settings(arguments))
    broker_config = BrokerConfig.of({"segment_bytes": SEGMENT_BYTES, **for_broker})
    stop_ms = min(broker_config.stop_ms, int(arguments.drain_s * HANDOVER * 1000))
    return EmbeddedKafka(
        arguments.directory, config=KafkaConfig.of({**LISTENER_SETTINGS, **for_listener}),
        broker_config=dataclasses.replace(broker_config, stop_ms=stop_ms), host=host, port=port,
        advertised=advertise or "", tls=credentials.tls, users=credentials.users, topics=topics,
    )  # fmt: skip


def _announce(arguments: argparse.Namespace, kafka: EmbeddedKafka, metrics: MetricsServer | None) -> None:
    metrics_address = None if metrics is None else address_text(metrics.address)
    if arguments.json:
        values = {"bootstrap": kafka.bootstrap_servers, "metadata": kafka.metadata_url}
        print_json(values if metrics_address is None else {**values, "metrics": metrics_address})
    else:
        say(
            f"Kafka at {kafka.bootstrap_servers}, metadata in {kafka.metadata_url}",
            "" if metrics_address is None else f", metrics at {metrics_address}",
            sep="",
        )
        sys.stdout.flush()
