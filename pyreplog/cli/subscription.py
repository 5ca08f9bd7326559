"""`pyreplog subscription`: create, list, show and delete the subscriptions of a topic."""

from __future__ import annotations

import argparse
from typing import Any

from pyreplog.cli.shared import starts, targets
from pyreplog.cli.shared.output import print_json, say
from pyreplog.cli.shared.parsers import add_actions
from pyreplog.cli.topics import topic_publish, topic_stats
from pyreplog.cursors.subscription_config import SUBSCRIPTION_TYPES

NAME = "subscription"
HELP = "create, list, show and delete the subscriptions of a topic"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    add_actions(actions, _ACTIONS)


def _add_create(parser: argparse.ArgumentParser) -> None:
    targets.add_subscription_arguments(parser)
    parser.add_argument(
        "--from", metavar=starts.METAVAR, default="latest", dest="start", help="where it begins (default: latest)"
    )
    parser.add_argument("--type", choices=SUBSCRIPTION_TYPES, default="exclusive", help="default exclusive")
    topic_publish.add_properties(parser, "property of the subscription")


def _add_delete(parser: argparse.ArgumentParser) -> None:
    targets.add_subscription_arguments(parser)
    parser.add_argument("--force", action="store_true", help="also if it has consumers")
    targets.add_yes(parser)


def run(arguments: argparse.Namespace) -> int:
    return int(arguments.action(arguments))


def _create(arguments: argparse.Namespace) -> int:
    start: Any = starts.parse(arguments.start)  # a topic with partitions refuses an offset
    properties = topic_publish.properties(arguments)
    with targets.topic(arguments) as topic:
        topic.create_subscription(arguments.subscription, start=start, type=arguments.type, properties=properties)
    return 0


def _list(arguments: argparse.Namespace) -> int:
    with targets.topic(arguments) as topic:
        names = topic.subscriptions()
    if arguments.json:
        print_json(names)
    else:
        for name in names:
            say(name)
    return 0


def _delete(arguments: argparse.Namespace) -> int:
    targets.check_yes(arguments, f"subscription {arguments.subscription} with its acknowledgements")
    with targets.topic(arguments) as topic:
        topic.delete_subscription(arguments.subscription, force=arguments.force)
    return 0


_ACTIONS = (
    ("create", "create a subscription, which retains messages until they are acknowledged", _add_create, _create),
    ("list", "list the names of all subscriptions of a topic", targets.add_topic_arguments, _list),
    (
        "stats",
        "show backlog, rates and consumers of a subscription",
        targets.add_subscription_arguments,
        topic_stats.run_subscription,
    ),
    ("delete", "delete a subscription with its acknowledgements", _add_delete, _delete),
)
