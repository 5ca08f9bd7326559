"""`pyreplog serve`: answer for the topics of a cluster, until SIGTERM or Ctrl-C."""

from __future__ import annotations

import argparse
import ssl
import sys
from pathlib import Path

from pyreplog.cli.shared import serving, targets, tls
from pyreplog.cli.shared.output import print_json
from pyreplog.metrics import MetricsServer
from pyreplog.topic.cluster import Cluster
from pyreplog.topic.remote.serving import TopicServer

NAME = "serve"
HELP = "answer for the topics of a cluster, until SIGTERM or Ctrl-C"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    targets.add_target(parser, "directory of a cluster to embed, made if need be; or metadata store of a cluster")
    targets.add_making(parser)
    parser.add_argument("--listen", metavar="HOST:PORT", default="127.0.0.1:0", help="default 127.0.0.1:0, a free port")
    parser.add_argument(
        "--advertise", metavar="HOST:PORT", help="the address that clients are told (default: that of --listen)"
    )
    parser.add_argument(
        "--secret-file", metavar="FILE", type=Path, help="holds the secret that clients, servers and bookies share"
    )
    tls.add_peer_arguments(parser)
    parser.add_argument("--metrics", metavar="[HOST:]PORT", help=serving.METRICS_HELP)
    parser.add_argument(
        "--drain-s", metavar="S", type=float, default=10.0, help="time for the last answers (default 10)"
    )


def run(arguments: argparse.Namespace) -> int:
    stop = serving.stopped_by_signals()
    with (
        targets.cluster(arguments, _client_tls(arguments)) as cluster,
        _server(arguments, cluster) as server,
        serving.metrics_server(arguments, cluster.metrics) as metrics,
    ):
        _announce(arguments, server, metrics)
        stop.wait()
        if metrics is not None:
            metrics.close()
        server.drain(arguments.drain_s)
    return 0


def _client_tls(arguments: argparse.Namespace) -> ssl.SSLContext | None:
    """For bookies: our certificate is for clients alone, unless bookies' are to be verified, too."""
    return None if arguments.tls_ca is None else tls.client_context(arguments)


def _server(arguments: argparse.Namespace, cluster: Cluster) -> TopicServer:
    host, port, advertise = serving.listening(arguments)
    return TopicServer(
        cluster,
        host=host,
        port=port,
        advertise=advertise,
        secret=serving.secret(arguments.secret_file),
        tls=tls.server_context(arguments),
    )


def _announce(arguments: argparse.Namespace, server: TopicServer, metrics: MetricsServer | None) -> None:
    at = None if metrics is None else serving.address(*metrics.address)
    if arguments.json:
        print_json({"address": server.address, **({} if at is None else {"metrics": at})})
    else:
        print(f"topics at pyreplog://{server.address}", "" if at is None else f", metrics at {at}", sep="")
        sys.stdout.flush()
