"""`pyreplog topic`: create, fill, read, show, change and delete topics."""

from __future__ import annotations

import argparse
import dataclasses
from typing import Any

from pyreplog.cli.shared import settings, starts, targets
from pyreplog.cli.shared.output import print_fields, print_json, say
from pyreplog.cli.shared.parsers import IntermixedParser, add_actions
from pyreplog.cli.topics import topic_consume, topic_publish, topic_redrive, topic_stats
from pyreplog.errors import TopicExistsError
from pyreplog.topic.client.partitions.partitioned_handle import PartitionedHandle
from pyreplog.topic.client.remote.remote_topic import RemotePartitionedTopic
from pyreplog.topic.model.config import TopicConfig
from pyreplog.topic.model.positions import PartitionOffset
from pyreplog.topic.owner.partitioned_topic import PartitionedTopic

NAME = "topic"
HELP = "create, fill, read, show, change and delete topics"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True, parser_class=IntermixedParser)
    add_actions(actions, _ACTIONS)


def run(arguments: argparse.Namespace) -> int:
    return int(arguments.action(arguments))


# ---- arguments -------------------------------------------------------------------------------------------------


def _add_create(parser: argparse.ArgumentParser) -> None:
    targets.add_topic_arguments(parser)
    targets.add_creating(parser)
    parser.add_argument(
        "--partitions",
        metavar="N",
        type=int,
        help="number of partitions; a larger number adds partitions to an existing topic",
    )
    settings.add_arguments(parser)


def _add_set(parser: argparse.ArgumentParser) -> None:
    targets.add_topic_arguments(parser)
    parser.add_argument(
        "settings",
        metavar="NAME=VALUE",
        nargs="*",
        help="settings to change (default: show all); the value none removes a bound",
    )
    parser.set_defaults(config=None)


def _add_seek(parser: argparse.ArgumentParser) -> None:
    targets.add_subscription_arguments(parser)
    parser.add_argument("start", metavar=starts.METAVAR, help="where it continues; earlier messages are acknowledged")


def _add_skip(parser: argparse.ArgumentParser) -> None:
    targets.add_subscription_arguments(parser)
    parser.add_argument("messages", metavar="N", type=int, help="number of messages")


def _add_delete(parser: argparse.ArgumentParser) -> None:
    targets.add_topic_arguments(parser)
    parser.add_argument(
        "--force", action="store_true", help="also if a cluster that the topic is replicated to lacks messages"
    )
    targets.add_yes(parser)


# ---- actions ---------------------------------------------------------------------------------------------------


def _create(arguments: argparse.Namespace) -> int:
    wanted = _settings(arguments)
    with targets.opened(arguments) as place:
        if arguments.topic in targets.names(place) and arguments.partitions is None:
            raise TopicExistsError(arguments.topic, "it exists already")
        place.topic(arguments.topic, partitions=arguments.partitions, create=True, **wanted)
    if arguments.json:
        print_json({"topic": arguments.topic, "partitions": arguments.partitions})
    return 0


def _list(arguments: argparse.Namespace) -> int:
    with targets.opened(arguments) as place:
        names = targets.names(place)
    if arguments.json:
        print_json(names)
    else:
        for name in names:
            say(name)
    return 0


def _set(arguments: argparse.Namespace) -> int:
    wanted = _settings(arguments)
    with targets.topic(arguments) as topic:
        if wanted:
            topic.configure(**wanted)
        configs = [vars(part.config) for part in _parts(topic)]
        has_parts = isinstance(topic, PartitionedHandle)
    if arguments.json:
        print_json({"parts": {str(at): config for at, config in enumerate(configs)}} if has_parts else configs[0])
    elif not wanted:
        print_fields((name, _joined([str(config[name]).lower() for config in configs])) for name in configs[0])
    return 0


def _parts(topic: targets.AnyTopic) -> list[targets.OneTopic]:
    if isinstance(topic, PartitionedTopic | RemotePartitionedTopic):
        return [topic.partition(at) for at in range(topic.partitions)]
    return [topic]


def _joined(values: list[str]) -> str:
    """Return the values of a setting in all partitions; once, if they are equal."""
    if len(set(values)) == 1:
        return values[0]
    return ", ".join(f"{value} (partition {at})" for at, value in enumerate(values))


def _settings(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return fields of TopicConfig. TOML has no null, for which the text none is used."""
    bounds = {field.name for field in dataclasses.fields(TopicConfig) if "None" in str(field.type)}
    values = settings.settings(arguments)
    return {name: None if value == "none" and name in bounds else value for name, value in values.items()}


def _seek(arguments: argparse.Namespace) -> int:
    start = starts.parse(arguments.start)
    if isinstance(start, int):
        with targets.one(arguments) as topic_or_partition:
            moved: int | list[PartitionOffset] = topic_or_partition.seek(arguments.subscription, start)
    else:
        with targets.topic(arguments) as topic:
            moved = topic.seek(arguments.subscription, start)
    if arguments.json:
        print_json(
            {"offset": moved} if isinstance(moved, int) else {"offsets": {str(at): offset for at, offset in moved}}
        )
    elif isinstance(moved, int):
        say(f"{arguments.subscription} continues at offset {moved:,}")
    else:
        for partition, offset in moved:
            say(f"{arguments.subscription} continues at offset {offset:,} of partition {partition}")
    return 0


def _skip(arguments: argparse.Namespace) -> int:
    with targets.one(arguments) as topic:
        topic.skip(arguments.subscription, arguments.messages)
    return 0


def _clear(arguments: argparse.Namespace) -> int:
    with targets.topic(arguments) as topic:
        topic.clear(arguments.subscription)
    return 0


def _trim(arguments: argparse.Namespace) -> int:
    with targets.topic(arguments) as topic:
        starts_at: int | list[PartitionOffset] = topic.trim()
    if arguments.json:
        print_json(
            {"offset": starts_at}
            if isinstance(starts_at, int)
            else {"offsets": {str(at): offset for at, offset in starts_at}}
        )
    elif isinstance(starts_at, int):
        say(f"{arguments.topic} begins at offset {starts_at:,}")
    else:
        for partition, offset in starts_at:
            say(f"partition {partition} of {arguments.topic} begins at offset {offset:,}")
    return 0


def _delete(arguments: argparse.Namespace) -> int:
    targets.check_yes(arguments, f"topic {arguments.topic} with its messages and subscriptions")
    with targets.topic(arguments) as topic:
        topic.delete(force=arguments.force)
    return 0


_ACTIONS = (
    ("create", "create a topic", _add_create, _create),
    ("list", "list the names of all topics and partitions", targets.add_arguments, _list),
    ("publish", "publish arguments, or lines of a file", topic_publish.add_arguments, topic_publish.run),
    ("consume", "print messages, and acknowledge them", topic_consume.add_arguments, topic_consume.run),
    ("stats", "show backlogs, rates and consumers", targets.add_topic_arguments, topic_stats.run),
    ("stats-internal", "show ledgers and cursors", targets.add_topic_arguments, topic_stats.run_internal),
    ("seek", "move a subscription", _add_seek, _seek),
    ("skip", "acknowledge the next messages of a subscription", _add_skip, _skip),
    ("clear", "acknowledge all messages of a subscription", targets.add_subscription_arguments, _clear),
    (
        "redrive",
        "send dead letters back to the topics that they come from",
        topic_redrive.add_arguments,
        topic_redrive.run,
    ),
    ("trim", "drop the ledgers that nothing retains, now", targets.add_topic_arguments, _trim),
    ("delete", "delete a topic with its messages and subscriptions", _add_delete, _delete),
    ("set", "change settings of a topic, or show them", _add_set, _set),
)
