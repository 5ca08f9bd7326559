"""`pyreplog geo`: replicate topics to other clusters, and show the progress."""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path
from typing import Any

from pyreplog.cli.shared import serving, settings, targets, tls
from pyreplog.cli.shared.output import amount, duration, print_fields, print_json, say
from pyreplog.cli.shared.parsers import add_actions
from pyreplog.cli.shared.tables import Table, print_tables
from pyreplog.clock import SystemClock
from pyreplog.cluster import Cluster
from pyreplog.errors import InvalidArgumentError, NoSuchSubscriptionError, NoSuchTopicError, ReplogError
from pyreplog.geo.acks.subscription_position import SubscriptionPosition
from pyreplog.geo.geo_replication import decode_position, decode_readiness, decode_status, no_such_position
from pyreplog.geo.planned_handover import HandoverStatus
from pyreplog.geo.policies import names_of
from pyreplog.geo.policy import ReplicationPolicy
from pyreplog.geo.replicator_status import ReplicatorStatus
from pyreplog.geo.subscription_readiness import SubscriptionReadiness
from pyreplog.ledger.embedded import METADATA

NAME = "geo"
HELP = "replicate topics to other clusters"

EXIT_NOT_READY = 10
"""Exit code of `geo readiness` without an alarm, when a subscription is not ready, or that is unknown."""
EXIT_ALARM = 11
"""Exit code of `geo status` and `geo readiness` when a person has to solve a problem, as of `cluster health`."""

_LISTS = {"targets", "replicated_from"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    clusters = actions.add_parser("cluster", help="other clusters", description="add, list and remove other clusters")
    cluster_actions = clusters.add_subparsers(title="actions", metavar="ACTION", required=True)
    add_actions(cluster_actions, _CLUSTER_ACTIONS)
    add_actions(actions, _ACTIONS)


def run(arguments: argparse.Namespace) -> int:
    return int(arguments.action(arguments))


# ---- arguments -------------------------------------------------------------------------------------------------


def _add_target(parser: argparse.ArgumentParser) -> None:
    targets.add_target(parser, "directory of a cluster, or its metadata store")
    parser.add_argument("--secret-file", metavar="FILE", type=Path, help="file with the secret of servers and bookies")
    tls.add_client_arguments(parser)


def _add_cluster(parser: argparse.ArgumentParser) -> None:
    _add_target(parser)
    parser.add_argument("name", metavar="NAME", help="name of the other cluster in policies")
    parser.add_argument("url", metavar="URL", help=f"its topic servers: {targets.SCHEME}host:port,host:port")
    for option, text in (
        ("secret-file", "file with the secret of its servers"),
        ("tls-ca", "use TLS; CA certificates for its servers"),
        ("tls-cert", "certificate of this cluster's servers, for servers there that require one"),
        ("tls-key", "private key of that certificate"),
    ):
        parser.add_argument(
            f"--remote-{option}", metavar="FILE", type=Path, help=f"{text}; each server here reads its own file"
        )
    parser.add_argument("--uuid", help="id of the other cluster, if none of its servers can be reached now")


def _add_cluster_remove(parser: argparse.ArgumentParser) -> None:
    _add_target(parser)
    parser.add_argument("name", metavar="NAME", help="name of the other cluster")
    parser.add_argument("--force", action="store_true", help="also if policies name it")


def _add_name(parser: argparse.ArgumentParser) -> None:
    _add_target(parser)
    parser.add_argument("name", metavar="TOPIC", help="name of the topic, or a prefix of names")
    parser.add_argument("--prefix", action="store_true", help="TOPIC is a prefix; '' is the prefix of all topics")


def _add_set(parser: argparse.ArgumentParser) -> None:
    _add_name(parser)
    parser.add_argument(
        "settings", metavar="NAME=VALUE", nargs="+",
        help="settings of the policy; targets=a,b are the clusters; the value none removes a bound",
    )  # fmt: skip
    parser.set_defaults(config=None)


def _add_show(parser: argparse.ArgumentParser) -> None:
    _add_target(parser)
    parser.add_argument(
        "topic", metavar="TOPIC", nargs="?", help="show the policy that holds for a topic (default: all policies)"
    )


def _add_status(parser: argparse.ArgumentParser) -> None:
    targets.add_arguments(parser)
    parser.add_argument("topic", metavar="TOPIC", nargs="?", help="name of a topic (default: all)")


def _add_readiness(parser: argparse.ArgumentParser) -> None:
    _add_status(parser)
    parser.epilog = (
        f"Exit code 0: all subscriptions are ready, and their targets connected. {EXIT_NOT_READY}: one is not, or that "
        f"is unknown. {EXIT_ALARM}: there is an alarm. 2: no replicated subscription was found."
    )


def _add_topic(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("topic", metavar="TOPIC", help="name of a topic; a partitioned one stands for all partitions")


def _add_subscription(parser: argparse.ArgumentParser) -> None:
    _add_topic(parser)
    parser.add_argument("subscription", metavar="SUBSCRIPTION", help="name of a replicated subscription")


def _add_seconds(parser: argparse.ArgumentParser, option: str, default: int, text: str) -> None:
    parser.add_argument(
        option, metavar="SECONDS", type=float, default=float(default), help=f"{text} (default: {default})"
    )


def _add_where(parser: argparse.ArgumentParser) -> None:
    targets.add_arguments(parser)
    _add_subscription(parser)


def _add_order(parser: argparse.ArgumentParser) -> None:
    _add_target(parser)
    _add_topic(parser)
    parser.add_argument("--to", metavar="CLUSTER", help="the target (default: all targets of the policy)")


def _add_handover(parser: argparse.ArgumentParser) -> None:
    _add_target(parser)
    _add_subscription(parser)
    parser.add_argument("to", metavar="CLUSTER", help="name of the cluster whose consumers are to go on")
    _add_seconds(parser, "--timeout-s", 60, "time after which the handover is cancelled if the home has not moved")
    _add_seconds(parser, "--grace-s", 10, "time for consumers to acknowledge their messages, which are then taken away")


def _add_take_over(parser: argparse.ArgumentParser) -> None:
    _add_target(parser)
    _add_subscription(parser)
    parser.add_argument("--any-cluster", action="store_true", help="let all clusters deliver it, not this one alone")
    _add_seconds(parser, "--timeout-s", 30, "time to wait for the owner of the topic")
    targets.add_yes(parser)


def _add_resync(parser: argparse.ArgumentParser) -> None:
    _add_target(parser)
    _add_topic(parser)
    parser.add_argument("--to", metavar="CLUSTER", required=True, help="the target")
    targets.add_yes(parser)


# ---- clusters --------------------------------------------------------------------------------------------------


def _open(arguments: argparse.Namespace) -> Cluster:
    """Open the cluster. This process uses no topics, and so replicates none.

    Of a directory only the metadata store is opened, since a server may have the directory open.
    """
    target = arguments.target
    if targets.is_directory(arguments):
        path = Path(target) / METADATA
        if not path.exists():
            raise InvalidArgumentError(f"{target} holds no cluster")
        target = f"sqlite:{path}"
    secret = serving.secret(arguments.secret_file)
    return Cluster.connect(target, secret=secret, tls=tls.client_context(arguments))


def _cluster_add(arguments: argparse.Namespace) -> int:
    with _open(arguments) as cluster:
        added = cluster.geo.add_cluster(
            arguments.name, arguments.url, secret_file=arguments.remote_secret_file, tls_ca=arguments.remote_tls_ca,
            tls_cert=arguments.remote_tls_cert, tls_key=arguments.remote_tls_key, uuid=arguments.uuid,
        )  # fmt: skip
    if arguments.json:
        print_json({"name": arguments.name, **_cluster(added)})
    else:
        say(f"{arguments.name} is the cluster {added.uuid} at {added.url}")
    return 0


def _cluster_list(arguments: argparse.Namespace) -> int:
    with _open(arguments) as cluster:
        clusters = cluster.geo.clusters()
    if arguments.json:
        print_json({name: _cluster(known) for name, known in clusters.items()})
    else:
        rows = [(name, known.uuid, known.url, known.secret_file or "") for name, known in sorted(clusters.items())]
        print_tables([Table(("cluster", "uuid", "servers", "secret file"), rows)])
    return 0


def _cluster(cluster: Any) -> dict[str, Any]:
    return {item.name: getattr(cluster, item.name) for item in dataclasses.fields(cluster) if item.name != "kept"}


def _cluster_remove(arguments: argparse.Namespace) -> int:
    with _open(arguments) as cluster:
        cluster.geo.remove_cluster(arguments.name, force=arguments.force)
    if arguments.json:
        print_json({"removed": arguments.name})
    return 0


# ---- policies --------------------------------------------------------------------------------------------------


def _set(arguments: argparse.Namespace) -> int:
    wanted = _settings(arguments)
    with _open(arguments) as cluster:
        policy = cluster.geo.set_policy(arguments.name, prefix=arguments.prefix, **wanted)
    _print_policy(arguments, policy)
    return 0


def _settings(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return fields of ReplicationPolicy. In a list, commas separate the names."""
    bounds = {item.name for item in dataclasses.fields(ReplicationPolicy) if "None" in str(item.type)}
    values: dict[str, Any] = {}
    for name, value in settings.settings(arguments).items():
        if value == "none" and name in bounds:
            values[name] = None
        elif name in _LISTS and not isinstance(value, list):
            values[name] = tuple(part for part in str(value).split(",") if part)
        else:
            values[name] = value
    return values


def _unset(arguments: argparse.Namespace) -> int:
    with _open(arguments) as cluster:
        existed = cluster.geo.remove_policy(arguments.name, prefix=arguments.prefix)
    if not existed:
        kind = "prefix" if arguments.prefix else "topic"
        raise NoSuchTopicError(arguments.name, f"no policy was set for this {kind}: `geo show` lists all")
    if arguments.json:
        print_json({"removed": arguments.name, "prefix": arguments.prefix})
    return 0


def _show(arguments: argparse.Namespace) -> int:
    with _open(arguments) as cluster:
        if arguments.topic is not None:
            policy = cluster.geo.policy(arguments.topic)
            if policy is None and not arguments.json:
                say(f"no policy holds for {arguments.topic}")
            else:
                _print_policy(arguments, policy, is_shown=True)
            return 0
        policies = cluster.geo.policies()
    if arguments.json:
        print_json([{"name": row.name, "prefix": row.is_prefix, **vars(row.policy)} for row in policies])
    else:
        rows = [
            (row.name + "*" * row.is_prefix, ", ".join(row.policy.targets), row.policy.direction, row.policy.start,
             row.policy.forward)
            for row in policies
        ]  # fmt: skip
        print_tables([Table(("topics", "targets", "direction", "start", "forward"), rows)])
    return 0


def _print_policy(arguments: argparse.Namespace, policy: ReplicationPolicy | None, *, is_shown: bool = False) -> None:
    if arguments.json:
        print_json(None if policy is None else vars(policy))
    elif policy is not None and is_shown:
        print_fields((name, _value(value)) for name, value in vars(policy).items())


def _value(value: object) -> str:
    return ", ".join(value) if isinstance(value, tuple) else str(value).lower()


# ---- orders and state ------------------------------------------------------------------------------------------


def _pause(arguments: argparse.Namespace) -> int:
    with _open(arguments) as cluster:
        cluster.geo.pause(arguments.topic, arguments.to)
    return 0


def _resume(arguments: argparse.Namespace) -> int:
    with _open(arguments) as cluster:
        cluster.geo.resume(arguments.topic, arguments.to)
    return 0


def _resync(arguments: argparse.Namespace) -> int:
    if not arguments.yes:
        raise InvalidArgumentError(
            f"messages of {arguments.topic} that {arguments.to} lacks and this cluster no longer stores would be noted "
            "there as lost: confirm it with --yes"
        )
    with _open(arguments) as cluster:
        cluster.geo.resync(arguments.topic, arguments.to)
    return 0


def _handover(arguments: argparse.Namespace) -> int:
    context, secret = tls.client_context(arguments), serving.secret(arguments.secret_file)
    with _open(arguments) as cluster:
        rows = cluster.geo.handover(
            arguments.topic, arguments.subscription, arguments.to, timeout=arguments.timeout_s, grace=arguments.grace_s,
            secret=secret, tls=context,
        )  # fmt: skip
    _say_moved(arguments, rows, f"its home is {arguments.to}")
    return 0


def _take_over(arguments: argparse.Namespace) -> int:
    if not arguments.yes:
        raise InvalidArgumentError(
            f"messages of {arguments.subscription} are delivered again if their acknowledgements in another cluster "
            "have not arrived here, and both clusters deliver until that one learns of it: confirm it with --yes"
        )
    context, secret = tls.client_context(arguments), serving.secret(arguments.secret_file)
    with _open(arguments) as cluster:
        rows = cluster.geo.take_over(
            arguments.topic, arguments.subscription, any_cluster=arguments.any_cluster, timeout=arguments.timeout_s,
            secret=secret, tls=context,
        )  # fmt: skip
    _say_moved(arguments, rows, "all clusters deliver it" if arguments.any_cluster else "its home is this cluster")
    return 0


def _say_moved(arguments: argparse.Namespace, rows: list[HandoverStatus], text: str) -> None:
    if arguments.json:
        print_json([dataclasses.asdict(row) for row in rows])
    else:
        for row in rows:
            say(f"{row.topic}, {row.subscription}: {text}")


def _status(arguments: argparse.Namespace) -> int:
    """Ask one server for its own replications, or all servers of a cluster."""
    if arguments.target.startswith(targets.SCHEME):
        with targets.client(arguments, arguments.target) as client:
            rows = [decode_status(row) for row in client.geo_status()]
        rows = [row for row in rows if arguments.topic is None or arguments.topic in names_of(row.topic)]
    else:
        context, secret = tls.client_context(arguments), serving.secret(arguments.secret_file)
        with _open(arguments) as cluster:
            rows = cluster.geo.status(arguments.topic, everywhere=True, secret=secret, tls=context)
    now_us = SystemClock().now_us()
    if arguments.json:
        more = [{"skipped": dict(row.skipped), "age_s": _age_s(row, now_us)} for row in rows]
        print_json([{**dataclasses.asdict(row), **fields} for row, fields in zip(rows, more, strict=True)])
    else:
        print_tables([_table(rows, now_us)])
        for row in rows:
            if row.alarm:
                say(f"alarm: {row.topic} to {row.target}: {row.alarm}")
            elif row.error:
                say(f"{row.topic} to {row.target}: {row.error}")
    return EXIT_ALARM if any(row.alarm for row in rows) else 0


def _readiness(arguments: argparse.Namespace) -> int:
    """Ask one server for its own topics, or all servers of a cluster."""
    if arguments.target.startswith(targets.SCHEME):
        with targets.client(arguments, arguments.target) as client:
            rows = [decode_readiness(row) for row in client.geo_readiness()]
        rows = [row for row in rows if arguments.topic is None or arguments.topic in names_of(row.topic)]
    else:
        context, secret = tls.client_context(arguments), serving.secret(arguments.secret_file)
        with _open(arguments) as cluster:
            rows = cluster.geo.readiness(arguments.topic, everywhere=True, secret=secret, tls=context)
    if arguments.json:
        print_json([{**dataclasses.asdict(row), "state": row.state} for row in rows])
    else:
        cells = [(row.topic, row.subscription, row.target, row.state, *_counts(row)) for row in rows]
        header = ("topic", "subscription", "target", "fail-over", "would lose", "would repeat", "expired here")
        print_tables([Table(header, cells, frozenset(place for place, row in enumerate(rows) if row.alarm))])
        for row in rows:
            if row.alarm:
                say(f"alarm: {row.topic}, {row.subscription} to {row.target}: {row.alarm}")
            elif row.error:
                say(f"{row.topic}, {row.subscription} to {row.target}: {row.error}")
    if not rows:
        raise _nothing_replicated(arguments)
    if any(row.alarm for row in rows):
        return EXIT_ALARM
    return 0 if all(row.is_ready and not row.error for row in rows) else EXIT_NOT_READY


def _nothing_replicated(arguments: argparse.Namespace) -> ReplogError:
    """Return the error of an answer without rows: a script must not take it for ready."""
    where = "that this server has open" if arguments.target.startswith(targets.SCHEME) else "of this cluster"
    found = f"no replicated subscription was found among the topics {where}: `geo show` lists the policies"
    if arguments.topic is None:
        return InvalidArgumentError(f"{arguments.target}: {found}")
    return NoSuchSubscriptionError(arguments.topic, found)


def _counts(row: SubscriptionReadiness) -> tuple[str, str, str]:
    """Return the counts of messages; "-" if nobody counted them."""
    if not (row.is_known or row.is_current or row.lost or row.repeated or row.revived):
        return "-", "-", "-"
    return _lost(row), f"{row.repeated:,}", f"{row.revived:,}"


def _lost(row: SubscriptionReadiness) -> str:
    """Return how many messages would be lost; of these, those that only other clusters can send to the target."""
    return f"{row.lost:,}" + (f" ({row.unreachable:,} unreachable)" if row.unreachable else "")


def _where(arguments: argparse.Namespace) -> int:
    """Ask one server for its own topics, or all servers of a cluster."""
    topic, subscription = arguments.topic, arguments.subscription
    if arguments.target.startswith(targets.SCHEME):
        with targets.client(arguments, arguments.target) as client:
            rows = [decode_position(row) for row in client.geo_where(topic, subscription)]
        if not rows:
            raise no_such_position(topic, subscription)
    else:
        context, secret = tls.client_context(arguments), serving.secret(arguments.secret_file)
        with _open(arguments) as cluster:
            rows = cluster.geo.where(topic, subscription, everywhere=True, secret=secret, tls=context)
    if arguments.json:
        print_json([dataclasses.asdict(row) for row in rows])
        return 0
    cells = [
        (row.topic, row.at or "this one", row.origin or "this one", "-" if row.below is None else f"{row.below:,}",
         f"{row.beyond:,}", "-" if row.end is None else f"{row.end:,}", _doubt(row))
        for row in rows
    ]  # fmt: skip
    print_tables([Table(("topic", "cluster", "messages of", "acknowledged below", "beyond", "has up to", ""), cells)])
    for name in sorted({row.topic for row in rows if row.home is not None}):
        home = next(row.home for row in rows if row.topic == name)
        say(f"{name}, {subscription}: consumers of {home or 'this cluster'} alone get messages")
    return 0


def _doubt(row: SubscriptionPosition) -> str:
    """Return why a position may be outdated; "": it is not."""
    return row.error or ("" if row.is_known else "it has not reported its position yet")


def _age_s(row: ReplicatorStatus, now_us: int) -> float | None:
    return None if row.oldest_unsent_us is None else max(now_us - row.oldest_unsent_us, 0) / 1e6


def _table(rows: list[ReplicatorStatus], now_us: int) -> Table:
    cells = []
    for row in rows:
        age_s = _age_s(row, now_us)
        cells.append(
            (row.topic, row.target, row.state, "-" if row.stored is None else f"{row.stored:,}", f"{row.end:,}",
             f"{row.unsent_messages:,}", amount(row.unsent_bytes), "-" if age_s is None else duration(age_s))
        )  # fmt: skip
    header = ("topic", "target", "state", "stored", "end", "unsent", "bytes", "age")
    return Table(header, cells, frozenset(place for place, row in enumerate(rows) if row.alarm))


_CLUSTER_ACTIONS = (
    ("add", "add another cluster, or change its servers and files", _add_cluster, _cluster_add),
    ("list", "list the other clusters", _add_target, _cluster_list),
    ("remove", "stop sending to a cluster; its messages stay", _add_cluster_remove, _cluster_remove),
)
_ACTIONS = (
    ("set", "set the policy of a topic or a prefix", _add_set, _set),
    ("unset", "remove the policy of a topic or a prefix", _add_name, _unset),
    ("show", "show policies", _add_show, _show),
    ("status", "show unsent messages by target, and alarms", _add_status, _status),
    (
        "readiness",
        "show how many messages a fail-over of subscriptions would lose or repeat",
        _add_readiness,
        _readiness,
    ),
    ("where", "show the positions of a replicated subscription, by cluster and origin", _add_where, _where),
    ("pause", "stop sending a topic; its messages are kept", _add_order, _pause),
    ("resume", "send again, after pause", _add_order, _resume),
    (
        "handover",
        "let consumers of another cluster go on with a subscription, without repeated messages",
        _add_handover,
        _handover,
    ),
    ("take-over", "deliver a subscription here, because its home cluster is lost", _add_take_over, _take_over),
    ("resync", "go on after histories diverged, or a target was detached", _add_resync, _resync),
)
