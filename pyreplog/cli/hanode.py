"""`pyreplog ha master` and `ha replica`: run a node until SIGTERM or Ctrl-C."""

from __future__ import annotations

import argparse
import dataclasses
import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from pyreplog import ha
from pyreplog.cli.shared import serving, settings, tls
from pyreplog.cli.shared.output import print_json, say
from pyreplog.config import DURABILITIES, LogConfig
from pyreplog.errors import InvalidArgumentError, PromotionRefusedError
from pyreplog.ha.config import NodeConfig
from pyreplog.ha.failover import LEASE_S, Failover
from pyreplog.ha.metrics import node_metrics
from pyreplog.ha.node import Node
from pyreplog.ha.protocol.master_machine import ACK_MODES, GroupConfig
from pyreplog.log.replica import is_replica
from pyreplog.metadata.store import MetadataStore
from pyreplog.metadata.url import open_store
from pyreplog.metrics import MetricsServer

logger = logging.getLogger(__name__)

UNREGISTERING = 0.5
"""The part of `--drain-s` until the metadata store must have answered: a lease ends by itself, too."""


# ---- arguments -------------------------------------------------------------------------------------------------


def add_master_arguments(parser: argparse.ArgumentParser) -> None:
    _add_common(parser)
    parser.add_argument("--members", metavar="NAME,...", default="", help="of a new group, this node included")
    parser.add_argument(
        "--sync-replicas", metavar="K", type=int, default=0, help="of a new group: replicas an append waits for (0)"
    )
    parser.add_argument("--force", action="store_true", help="be master though acknowledged records may be missing")


def add_replica_arguments(parser: argparse.ArgumentParser) -> None:
    _add_common(parser)
    parser.add_argument("--master", metavar="HOST:PORT", help="whom to follow (with --metadata: who is registered)")
    parser.add_argument("--observer", action="store_true", help="never counted, master by force only")


def _add_common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("directory", metavar="DIR", help="directory of the log; made if need be")
    parser.add_argument("--name", metavar="NAME", help="as the group knows it (default: that of DIR)")
    parser.add_argument("--listen", metavar="HOST:PORT", default="127.0.0.1:0", help="default 127.0.0.1:0, a free port")
    parser.add_argument(
        "--advertise", metavar="HOST:PORT", help="the address that others are told (default: that of --listen)"
    )
    parser.add_argument(
        "--peer", metavar="NAME=HOST:PORT", action="append", default=[], dest="peers",
        help="where a member is, for elections; may be repeated",
    )  # fmt: skip
    parser.add_argument("--ack", choices=ACK_MODES, help="what a replica must have done (default received)")
    parser.add_argument(
        "--durability", choices=DURABILITIES, help="of the log (default appended; with --ack synced synced)"
    )
    parser.add_argument("--segment-bytes", metavar="N", type=int, help="size of the log's files, when it is made")
    parser.add_argument("--min-in-sync", metavar="N", type=int, help="with fewer caught-up replicas, refuse appends")
    parser.add_argument("--fallback-after-ms", metavar="N", type=int, help="wait no longer for replicas that are gone")
    parser.add_argument("--throttle-bytes-per-s", metavar="N", type=int, help="to one replica")
    settings.add_arguments(parser)
    parser.add_argument("--metadata", metavar="URL", help="fail over by itself: metadata store that the group shares")
    parser.add_argument("--group", metavar="NAME", help="with --metadata: as the group is called there")
    parser.add_argument(
        "--lease-s", metavar="S", type=float, default=LEASE_S, help="without a master for so long, elect"
    )
    parser.add_argument("--secret-file", metavar="FILE", type=Path, help="holds the secret that all nodes share")
    tls.add_peer_arguments(parser)
    parser.add_argument("--metrics", metavar="[HOST:]PORT", help=serving.METRICS_HELP)
    serving.add_drain_argument(parser)
    parser.add_argument("--busy-poll-us", metavar="N", type=int, default=0, help="look so long before going to sleep")


_OPTIONS = {"log", "group", "name", "host", "port", "advertise", "observer"}
"""What of NodeConfig is made of the others, or has an option that always says it."""


def _config(arguments: argparse.Namespace) -> dict[str, Any]:
    """Settings of NodeConfig, from all that sets one."""
    named = ("ack", "durability", "segment_bytes", "min_in_sync", "fallback_after_ms", "throttle_bytes_per_s")
    given = {name: getattr(arguments, name) for name in named if getattr(arguments, name) is not None}
    found = {"ack": "received", **settings.settings(arguments), **given}
    if found["ack"] == "synced":
        found.setdefault("durability", "synced")
    of_log, of_group, of_node = (
        {field.name for field in dataclasses.fields(kind)} for kind in (LogConfig, GroupConfig, NodeConfig)
    )
    settings.check_known(found, of_log | of_group | (of_node - _OPTIONS))
    host, port, advertise = serving.listening(arguments)
    return {
        **{name: value for name, value in found.items() if name not in of_log | of_group},
        "name": arguments.name or Path(arguments.directory).absolute().name,
        "host": host,
        "port": port,
        "advertise": advertise,
        "log": LogConfig(**{name: value for name, value in found.items() if name in of_log}),
        "group": GroupConfig(**{name: value for name, value in found.items() if name in of_group}),
        "observer": getattr(arguments, "observer", False),
    }


def _links(arguments: argparse.Namespace) -> dict[str, Any]:
    """How it is reached by others, and reaches them."""
    return {
        "peers": dict(_peer(text) for text in arguments.peers),
        "secret": arguments.credentials.secret,
        "tls_server": arguments.credentials.server,
        "tls_client": arguments.credentials.client,
        "busy_poll_us": arguments.busy_poll_us,
    }


def _peer(text: str) -> tuple[str, str]:
    name, equals, there = text.partition("=")
    if not name or not equals:
        raise InvalidArgumentError(f"--peer: expected NAME=HOST:PORT, found {text!r}")
    return name, serving.address(*serving.host_and_port("--peer", there))


# ---- running ---------------------------------------------------------------------------------------------------


def run_master(arguments: argparse.Namespace) -> int:
    _check(arguments)
    return _serve(arguments, lambda: _open_master(arguments))


def run_replica(arguments: argparse.Namespace) -> int:
    _check(arguments)
    if arguments.master is None and arguments.metadata is None:
        raise InvalidArgumentError("say whom to follow: --master HOST:PORT, or --metadata URL")
    return _serve(arguments, lambda: _open_replica(arguments, arguments.master))


def _check(arguments: argparse.Namespace) -> None:
    if (arguments.metadata is None) != (arguments.group is None):
        raise InvalidArgumentError("--metadata and --group go together")


def _open_master(arguments: argparse.Namespace) -> Node:
    """With a metadata store one command does for all starts: who may not be master now is what the group makes it."""
    if arguments.metadata is not None and is_replica(Path(arguments.directory)):
        return _open_replica(arguments, None)
    try:
        return ha.open_master(
            arguments.directory, members=[name for name in arguments.members.split(",") if name],
            sync_replicas=arguments.sync_replicas, force=arguments.force, **_links(arguments), **_config(arguments),
        )  # fmt: skip
    except PromotionRefusedError as refused:
        if arguments.metadata is None:
            raise
        logger.warning("%s", refused)
    return _open_replica(arguments, None)


def _open_replica(arguments: argparse.Namespace, master: str | None) -> Node:
    return ha.open_replica(arguments.directory, master=master, **_links(arguments), **_config(arguments))


def _serve(arguments: argparse.Namespace, open_node: Callable[[], Node]) -> int:
    arguments.credentials = serving.ServerCredentials(arguments, is_peer=True)
    stop = serving.stopped_by_signals(arguments.credentials.reload)
    with (
        open_node() as node,
        serving.metrics_server(arguments, partial(node_metrics, node)) as metrics,
        _failover(arguments, node) as store,
    ):
        _announce(arguments, node, metrics)
        stop.wait()
        drain = serving.Drain(arguments.drain_s)
        if store is not None:
            store.end_calls_by(drain.deadline(UNREGISTERING))
    serving.skip_final_collection()
    return 0


@contextmanager
def _failover(arguments: argparse.Namespace, node: Node) -> Iterator[MetadataStore | None]:
    """Yields the store that it uses."""
    if arguments.metadata is None:
        yield None
        return
    with open_store(arguments.metadata) as store, Failover(node, store, arguments.group, lease_s=arguments.lease_s):
        yield store


def _announce(arguments: argparse.Namespace, node: Node, metrics: MetricsServer | None) -> None:
    at = None if metrics is None else serving.address(*metrics.address)
    if arguments.json:
        said = {"node": node.name, "role": node.role, "address": node.address, "term": str(node.term)}
        print_json(said | ({} if at is None else {"metrics": at}))
    else:
        say(f"{node.role} {node.name} at {node.address}", "" if at is None else f", metrics at {at}", sep="")
        sys.stdout.flush()
