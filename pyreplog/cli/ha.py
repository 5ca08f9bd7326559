"""`pyreplog ha`: run the nodes of a replica group, use it, show their state, change their roles and members."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from pyreplog.cli import ha_client, ha_node, ha_rocketmq
from pyreplog.cli.shared import serving, tls
from pyreplog.cli.shared.output import amount, counted, print_fields, print_json, say
from pyreplog.cli.shared.parsers import add_actions
from pyreplog.errors import InvalidArgumentError
from pyreplog.ha.remote_node import RemoteNode

NAME = "ha"
IS_SERVER = True
HELP = "run the nodes of a replica group, append to it and read it, show nodes, promote one"

_RUNNING = (
    ("master", "run a master", ha_node.add_master_arguments, ha_node.run_master),
    ("replica", "run a replica", ha_node.add_replica_arguments, ha_node.run_replica),
    ("rocketmq-slave", "copy a RocketMQ broker's commit log", ha_rocketmq.add_slave_arguments, ha_rocketmq.run_slave),
    ("rocketmq-master", "feed RocketMQ slaves", ha_rocketmq.add_master_arguments, ha_rocketmq.run_master),
)
_USING = (
    ("append", "append to a group, through its master", ha_client.add_append_arguments, ha_client.run_append),
    ("read", "print the committed entries of a group", ha_client.add_read_arguments, ha_client.run_read),
)
_ASKING = (
    ("status", "show the state of a node"),
    ("promote", "make a replica the master; refused if it may lack acknowledged records"),
    ("follow", "have a node follow another master; a master becomes a replica"),
    ("members", "show or change the members of a master's group"),
)

_ALONE = ", by a master without replicas: a promotion may take entries back"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    add_actions(actions, (*_RUNNING, *_USING))
    for name, text in _ASKING:
        action = actions.add_parser(name, help=text, description=text)
        action.add_argument("address", metavar="HOST:PORT", help="the node")
        action.add_argument(
            "--secret-file", metavar="FILE", type=Path, help="file with the secret that all nodes share"
        )
        tls.add_client_arguments(action)
        _add_action_arguments(action, name)
        action.set_defaults(action=_ask, asked=name)


def _add_action_arguments(action: argparse.ArgumentParser, name: str) -> None:
    if name == "promote":
        action.add_argument("--force", action="store_true", help="even if acknowledged records may be lost")
    elif name == "follow":
        action.add_argument("--master", metavar="HOST:PORT", required=True, help="the master to follow")
    elif name == "members":
        change = action.add_mutually_exclusive_group()
        change.add_argument("--add", metavar="NAME", help="add a member")
        change.add_argument("--remove", metavar="NAME", help="remove a member")
        change.add_argument(
            "--sync-replicas", metavar="K", type=int, help="number of replicas that an append waits for"
        )
        action.add_argument("--force", action="store_true", help="change at once, without members that are lost")


def run(arguments: argparse.Namespace) -> int:
    return int(arguments.action(arguments))


def _ask(arguments: argparse.Namespace) -> int:
    secret, context = serving.secret(arguments.secret_file), tls.client_context(arguments)
    with RemoteNode(arguments.address, secret=secret, tls=context) as node:
        answer = _done(node, arguments)
    if arguments.json:
        print_json(answer)
    elif arguments.asked == "members":
        print_fields(_members(answer))
    else:
        if loss := answer.get("possible_loss"):
            say(f"possible loss: {loss}")
        print_fields(_described(answer))
    return 0


def _done(node: RemoteNode, arguments: argparse.Namespace) -> dict[str, Any]:
    action = arguments.asked
    if action == "promote":
        return node.ask("promote", force=arguments.force)
    if action == "follow":
        return node.ask("follow", master=arguments.master)
    if action == "members" and arguments.add is not None:
        return node.ask("add-member", name=arguments.add, force=arguments.force)
    if action == "members" and arguments.remove is not None:
        return node.ask("remove-member", name=arguments.remove, force=arguments.force)
    if action == "members" and arguments.sync_replicas is not None:
        return node.ask("sync-replicas", count=arguments.sync_replicas, force=arguments.force)
    if action == "members" and arguments.force:
        raise InvalidArgumentError("--force: expected with --add, --remove or --sync-replicas, found without")
    return node.status()


# ---- for people ------------------------------------------------------------------------------------------------


def _described(status: dict[str, Any]) -> list[tuple[str, object]]:
    fields: list[tuple[str, object]] = [
        ("node", status["name"]),
        ("role", status["role"] + (", alone: appends do not wait for replicas" if status.get("asynchronous") else "")),
        ("term", status["term"]),
        ("log", status["log"] or "none yet"),
        ("entries", _entries(status["start"], status["received"]["entry"])),
        ("on disk", f"before {status['synced']['entry']:,}"),
        ("committed", f"before {status['committed']['entry']:,}" + (_ALONE if status["unreplicated"] else "")),
    ]
    if "master" in status:
        fields.append(("master", status["master"] or "not known"))
        fields.append(("stream", "runs" if status["streaming"] else status["trouble"]))
    replicas = [(f"replica {replica['name']}", _replica(replica)) for replica in status.get("replicas", [])]
    return [*fields, *replicas, *_members(status)]


def _entries(start: int, end: int) -> str:
    return f"{start:,} to {end - 1:,}" if end > start else "none"


def _replica(replica: dict[str, Any]) -> str:
    role = "observer, " if replica["observer"] else ""
    level = "in sync" if replica["in_sync"] else "behind"
    lag = f"{amount(replica['lag_bytes'])} and {replica['lag_ms']} ms behind"
    return f"{role}{replica['state']}, {level}, {lag}, {amount(replica['bytes_per_s'])}/s"


def _members(status: dict[str, Any]) -> list[tuple[str, object]]:
    members = status["members"]
    if members is None:
        return [("members", "not known")]
    rows: list[tuple[str, object]] = [("members", _quorum(members))]
    if members["former"] is not None:
        rows.append(("until known", _quorum(members["former"])))
    return rows


def _quorum(quorum: dict[str, Any]) -> str:
    return f"{', '.join(quorum['names'])}; an append waits for {counted(quorum['sync_replicas'], 'replica')}"
