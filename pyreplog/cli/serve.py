"""`pyreplog serve`: serve the topics of a cluster, until SIGTERM or Ctrl-C."""

from __future__ import annotations

import argparse
import logging
import ssl
import sys
from pathlib import Path

from pyreplog.cli.shared import metadata_wait, serving, targets, tls
from pyreplog.cli.shared.output import print_json, say
from pyreplog.cluster import Cluster
from pyreplog.errors import OutcomeUnknownError
from pyreplog.metrics import MetricsServer
from pyreplog.net.sockets import address_text
from pyreplog.topic.server.topic_server import TopicServer

logger = logging.getLogger(__name__)

ANSWERS = 0.6
"""Part of the drain time after which the last replies have left; the rest is for storing state."""

CLOSING = 0.9
"""Part of the drain time after which all waiting for others has ended; then embedded bookies sync their logs."""

NAME = "serve"
IS_SERVER = True
HELP = "serve the topics of a cluster, until SIGTERM or Ctrl-C"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    targets.add_target(parser, "directory of a cluster to embed, created if needed; or metadata store of a cluster")
    targets.add_creating(parser)
    parser.add_argument("--listen", metavar="HOST:PORT", default="127.0.0.1:0", help="default 127.0.0.1:0, a free port")
    parser.add_argument(
        "--advertise", metavar="HOST:PORT", help="the address that clients get (default: that of --listen)"
    )
    parser.add_argument(
        "--secret-file", metavar="FILE", type=Path, help="file with the secret that clients, servers and bookies share"
    )
    tls.add_peer_arguments(parser)
    parser.add_argument("--metrics", metavar="[HOST:]PORT", help=serving.METRICS_HELP)
    metadata_wait.add_argument(parser)
    serving.add_drain_argument(parser)


def run(arguments: argparse.Namespace) -> int:
    credentials = serving.ServerCredentials(arguments, is_peer=True, client=_client_tls)
    stop = serving.stopped_by_signals(credentials.reload)
    with (
        metadata_wait.started(
            arguments, stop, lambda: targets.cluster(arguments, credentials.client, credentials.secret)
        ) as cluster,
        _server(arguments, cluster, credentials) as server,
        serving.metrics_server(arguments, cluster.metrics) as metrics,
    ):
        _announce(arguments, server, metrics)
        stop.wait()
        drain = serving.Drain(arguments.drain_s)
        if metrics is not None:
            metrics.close()
        server.drain(drain.remaining_s(ANSWERS))
        try:
            cluster.close(drain.remaining_s(CLOSING))
        except OutcomeUnknownError as error:
            logger.warning("%s", error)  # clients get this outcome, too: no reason to fail
    serving.skip_final_collection()
    return 0


def _client_tls(arguments: argparse.Namespace) -> ssl.SSLContext | None:
    """Return the TLS context for bookies; None: without --tls-ca the certificate is only shown to clients."""
    return None if arguments.tls_ca is None else tls.client_context(arguments)


def _server(arguments: argparse.Namespace, cluster: Cluster, credentials: serving.ServerCredentials) -> TopicServer:
    host, port, advertise = serving.listening(arguments)
    return TopicServer(
        cluster,
        host=host,
        port=port,
        advertise=advertise,
        secret=credentials.secret,
        tls=credentials.server,
    )


def _announce(arguments: argparse.Namespace, server: TopicServer, metrics: MetricsServer | None) -> None:
    metrics_address = None if metrics is None else address_text(metrics.address)
    if arguments.json:
        print_json({"address": server.address, **({} if metrics_address is None else {"metrics": metrics_address})})
    else:
        say(
            f"topics at pyreplog://{server.address}",
            "" if metrics_address is None else f", metrics at {metrics_address}",
            sep="",
        )
        sys.stdout.flush()
