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
from pyreplog.cli.shared import metadata_wait, serving, settings, tls
from pyreplog.cli.shared.output import print_json, say
from pyreplog.config import DURABILITIES, LogConfig
from pyreplog.errors import InvalidArgumentError, PromotionRefusedError
from pyreplog.ha.config import NodeConfig
from pyreplog.ha.failover import LEASE_MS, Failover
from pyreplog.ha.metrics import node_metrics
from pyreplog.ha.node import Node
from pyreplog.ha.protocol.master_machine import ACK_MODES, GroupConfig
from pyreplog.log.replica import is_replica
from pyreplog.metadata.store import MetadataStore
from pyreplog.metadata.url import open_store
from pyreplog.metrics import MetricsServer
from pyreplog.net.sockets import address_text

logger = logging.getLogger(__name__)

UNREGISTERING = 0.5
"""Part of `--drain-s` within which the metadata store must have answered; a lease also expires."""


# ---- arguments -------------------------------------------------------------------------------------------------


def add_master_arguments(parser: argparse.ArgumentParser) -> None:
    _add_common(parser)
    parser.add_argument("--members", metavar="NAME,...", default="", help="members of a new group, this node included")
    parser.add_argument(
        "--sync-replicas",
        metavar="K",
        type=int,
        default=0,
        help="of a new group: number of replicas that an append waits for (0)",
    )
    parser.add_argument(
        "--force", action="store_true", help="become master even if acknowledged records may be missing"
    )


def add_replica_arguments(parser: argparse.ArgumentParser) -> None:
    _add_common(parser)
    parser.add_argument(
        "--master", metavar="HOST:PORT", help="the master to follow (with --metadata: the registered one)"
    )
    parser.add_argument("--observer", action="store_true", help="never a member; becomes master only by force")


def _add_common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("directory", metavar="DIR", help="directory of the log; created if needed")
    parser.add_argument("--name", metavar="NAME", help="name in the group (default: that of DIR)")
    parser.add_argument("--listen", metavar="HOST:PORT", default="127.0.0.1:0", help="default 127.0.0.1:0, a free port")
    parser.add_argument(
        "--advertise", metavar="HOST:PORT", help="the address that other nodes get (default: that of --listen)"
    )
    parser.add_argument(
        "--peer", metavar="NAME=HOST:PORT", action="append", default=[], dest="peers",
        help="address of a member, for elections; may be repeated",
    )  # fmt: skip
    parser.add_argument(
        "--ack", choices=ACK_MODES, help="what a replica must do before it acknowledges (default received)"
    )
    parser.add_argument(
        "--durability", choices=DURABILITIES, help="durability of the log (default appended; with --ack synced: synced)"
    )
    parser.add_argument("--segment-bytes", metavar="N", type=int, help="size of the files of a new log")
    parser.add_argument("--min-in-sync", metavar="N", type=int, help="refuse appends with fewer replicas in sync")
    parser.add_argument(
        "--fallback-after-ms",
        metavar="N",
        type=int,
        help="milliseconds after which appends do not wait for lost replicas",
    )
    parser.add_argument("--throttle-bytes-per-s", metavar="N", type=int, help="limit for one replica")
    settings.add_arguments(parser)
    parser.add_argument(
        "--metadata", metavar="URL", help="fail over automatically: metadata store that the group shares"
    )
    parser.add_argument("--group", metavar="NAME", help="with --metadata: name of the group")
    parser.add_argument(
        "--lease-ms",
        metavar="N",
        type=int,
        default=LEASE_MS,
        help="milliseconds without a master after which one is elected",
    )
    parser.add_argument("--secret-file", metavar="FILE", type=Path, help="file with the secret that all nodes share")
    tls.add_peer_arguments(parser)
    parser.add_argument("--metrics", metavar="[HOST:]PORT", help=serving.METRICS_HELP)
    metadata_wait.add_argument(parser)
    serving.add_drain_argument(parser)
    parser.add_argument("--busy-poll-us", metavar="N", type=int, default=0, help="microseconds to poll before sleeping")


_OPTIONS = {"log", "group", "name", "host", "port", "advertise", "observer"}
"""Fields of NodeConfig that are made from others, or always set by an option."""


def _config(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the settings of NodeConfig, from all arguments and files that set one."""
    options = ("ack", "durability", "segment_bytes", "min_in_sync", "fallback_after_ms", "throttle_bytes_per_s")
    set_options = {name: getattr(arguments, name) for name in options if getattr(arguments, name) is not None}
    merged = {"ack": "received", **settings.settings(arguments), **set_options}
    if merged["ack"] == "synced":
        merged.setdefault("durability", "synced")
    log_fields, group_fields, node_fields = (
        {field.name for field in dataclasses.fields(kind)} for kind in (LogConfig, GroupConfig, NodeConfig)
    )
    settings.check_known(merged, log_fields | group_fields | (node_fields - _OPTIONS))
    host, port, advertise = serving.listening(arguments)
    return {
        **{name: value for name, value in merged.items() if name not in log_fields | group_fields},
        "name": arguments.name or Path(arguments.directory).absolute().name,
        "host": host,
        "port": port,
        "advertise": advertise,
        "log": LogConfig(**{name: value for name, value in merged.items() if name in log_fields}),
        "group": GroupConfig(**{name: value for name, value in merged.items() if name in group_fields}),
        "observer": getattr(arguments, "observer", False),
    }


def _links(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the settings of how other nodes reach this one, and how it reaches them."""
    return {
        "peers": dict(_peer(text) for text in arguments.peers),
        "secret": arguments.credentials.secret,
        "tls_server": arguments.credentials.server,
        "tls_client": arguments.credentials.client,
        "busy_poll_us": arguments.busy_poll_us,
    }


def _peer(text: str) -> tuple[str, str]:
    name, equals, peer_address = text.partition("=")
    if not name or not equals:
        raise InvalidArgumentError(f"--peer: expected NAME=HOST:PORT, found {text!r}")
    return name, address_text(serving.host_and_port("--peer", peer_address))


# ---- running ---------------------------------------------------------------------------------------------------


def run_master(arguments: argparse.Namespace) -> int:
    _check(arguments)
    return _serve(arguments, lambda: _open_master(arguments))


def run_replica(arguments: argparse.Namespace) -> int:
    _check(arguments)
    if arguments.master is None and arguments.metadata is None:
        raise InvalidArgumentError("no master to follow: expected --master HOST:PORT, or --metadata URL")
    return _serve(arguments, lambda: _open_replica(arguments, arguments.master))


def _check(arguments: argparse.Namespace) -> None:
    if (arguments.metadata is None) != (arguments.group is None):
        raise InvalidArgumentError("--metadata, --group: expected both or neither, found one of them")


def _open_master(arguments: argparse.Namespace) -> Node:
    """Open a master. With a metadata store, one that may not be master now becomes what the group makes of it.

    So one command serves for all starts.
    """
    if arguments.metadata is not None and is_replica(Path(arguments.directory)):
        return _open_replica(arguments, None)
    try:
        return ha.open_master(
            arguments.directory, members=[name for name in arguments.members.split(",") if name],
            sync_replicas=arguments.sync_replicas, force=arguments.force, **_links(arguments), **_config(arguments),
        )  # fmt: skip
    except PromotionRefusedError as error:
        if arguments.metadata is None:
            raise
        logger.warning("%s", error)
    return _open_replica(arguments, None)


def _open_replica(arguments: argparse.Namespace, master: str | None) -> Node:
    return ha.open_replica(arguments.directory, master=master, **_links(arguments), **_config(arguments))


def _serve(arguments: argparse.Namespace, open_node: Callable[[], Node]) -> int:
    arguments.credentials = serving.ServerCredentials(arguments, is_peer=True)
    stop = serving.stopped_by_signals(arguments.credentials.reload)
    with (
        open_node() as node,
        serving.metrics_server(arguments, partial(node_metrics, node)) as metrics,
        _failover(arguments, stop, node) as store,
    ):
        _announce(arguments, node, metrics)
        stop.wait()
        drain = serving.Drain(arguments.drain_s)
        if store is not None:
            store.end_calls_by(drain.deadline(UNREGISTERING))
    serving.skip_final_collection()
    return 0


@contextmanager
def _failover(arguments: argparse.Namespace, stop: serving.Stop, node: Node) -> Iterator[MetadataStore | None]:
    """Run the failover, and yield the metadata store that it uses."""
    if arguments.metadata is None:
        yield None
        return
    with (
        metadata_wait.started(arguments, stop, lambda: open_store(arguments.metadata)) as store,
        Failover(node, store, arguments.group, lease_ms=arguments.lease_ms),
    ):
        yield store


def _announce(arguments: argparse.Namespace, node: Node, metrics: MetricsServer | None) -> None:
    metrics_address = None if metrics is None else address_text(metrics.address)
    if arguments.json:
        fields = {"node": node.name, "role": node.role, "address": node.address, "term": str(node.term)}
        print_json(fields | ({} if metrics_address is None else {"metrics": metrics_address}))
    else:
        say(
            f"{node.role} {node.name} at {node.address}",
            "" if metrics_address is None else f", metrics at {metrics_address}",
            sep="",
        )
        sys.stdout.flush()
