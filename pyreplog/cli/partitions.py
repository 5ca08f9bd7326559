"""`pyreplog partitions`: create, show, change, move and delete topics of partitions."""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyreplog.cli.shared import metadata_option, serving, targets, tls
from pyreplog.cli.shared.output import print_fields, print_json, say
from pyreplog.cli.shared.parsers import add_actions
from pyreplog.cli.shared.tables import Table, print_tables
from pyreplog.clock import SystemClock
from pyreplog.errors import (
    ConfigError,
    InvalidArgumentError,
    NoSuchTopicError,
    PartitionUnavailableError,
)
from pyreplog.metadata.store import MetadataStore
from pyreplog.metadata.url import open_store, sqlite_file
from pyreplog.partition.client.partition_client import PartitionClient
from pyreplog.partition.client.partition_producer import ProducerConfig
from pyreplog.partition.metadata.broker_registration import BrokerAvailability, available_key
from pyreplog.partition.metadata.partition_changes import (
    ElectionType,
    PartitionResult,
    elect_leaders,
    list_reassignments,
    read_brokers,
    read_states,
    reassign_partitions,
)
from pyreplog.partition.metadata.topic_metadata import (
    TopicMetadata,
    alter_topic,
    create_partitions,
    create_topic,
    delete_topic,
    find_topic,
    list_topics,
)
from pyreplog.partition.metadata.topic_settings import TopicSettings, format_setting, parse_setting
from pyreplog.partition.partition_status import PartitionStatus
from pyreplog.partition.protocol.error_codes import ErrorCode
from pyreplog.partition.topic_partition import TopicPartition

NAME = "partitions"
HELP = "create, show, change, move and delete topics of partitions"

EXIT_REFUSED = 6
"""Exit code if an order was refused for some partitions; the others were carried out."""

TIMEOUT_S = 10.0
_POLL_S = 0.02
_NUMBER = re.compile(r"[0-9]{1,5}")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    metadata_option.add_argument(parser)
    parser.add_argument(
        "--timeout", metavar="S", type=serving.seconds, default=TIMEOUT_S,
        help=f"seconds to wait for a broker's answer, or for leaders (default {TIMEOUT_S:g})",
    )  # fmt: skip
    parser.add_argument("--secret-file", metavar="FILE", type=Path, help="file with the secret that the brokers share")
    tls.add_client_arguments(parser)
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    add_actions(actions, _ACTIONS)


def run(arguments: argparse.Namespace) -> int:
    return int(arguments.action(arguments))


# ---- arguments -------------------------------------------------------------------------------------------------


def _add_nothing(_: argparse.ArgumentParser) -> None:
    pass


def _add_topic(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("topic", metavar="TOPIC", help="name of the topic")


def _add_describe(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("topics", metavar="TOPIC", nargs="*", help="names of topics (default: all)")
    parser.add_argument("--no-offsets", action="store_true", help="ask no broker for offsets")


def _add_create(parser: argparse.ArgumentParser) -> None:
    _add_topic(parser)
    parser.add_argument("--partitions", metavar="N", type=int, default=1, help="number of partitions (default 1)")
    parser.add_argument(
        "--replicas", metavar="N", type=int, help="replicas of each partition (default: 3, or as there are brokers)"
    )
    _add_settings(parser)


def _add_settings(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--set", metavar="NAME=VALUE", action="append", default=[], dest="settings",
        help="a setting, by Kafka's name; may be repeated",
    )  # fmt: skip


def _add_alter(parser: argparse.ArgumentParser) -> None:
    _add_topic(parser)
    parser.add_argument("--partitions", metavar="N", type=int, help="number of partitions, which only grows")
    _add_settings(parser)


def _add_delete(parser: argparse.ArgumentParser) -> None:
    _add_topic(parser)
    targets.add_yes(parser)


def _add_reassign(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "topic", metavar="TOPIC", nargs="?", help="name of the topic (default: show reassignments that are under way)"
    )
    parser.add_argument(
        "targets", metavar="PARTITION=BROKER,...", nargs="*", help="its replicas then, the preferred leader first"
    )
    parser.add_argument("--cancel", action="store_true", help="cancel what is under way for the topic")


def _add_elect(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("topic", metavar="TOPIC", nargs="?", help="name of the topic (default: all)")
    parser.add_argument("numbers", metavar="PARTITION", nargs="*", help="numbers of partitions (default: all)")
    parser.add_argument(
        "--unclean", action="store_true", help="let a replica lead that may lack records, where no other can"
    )
    parser.add_argument("--yes", action="store_true", help="confirm that --unclean may lose records")


def _settings(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return settings by Kafka's names; None: the default. Raises ConfigError."""
    values: dict[str, Any] = {}
    defaults = TopicSettings().values()
    for item in arguments.settings:
        name, equals, text = item.partition("=")
        if not equals or not name:
            raise ConfigError(f"--set: expected NAME=VALUE, found {item!r}")
        values[name] = parse_setting(name, text) if text != "default" or name not in defaults else None
        if values[name] is None and text != "default" and defaults[name] is not None:
            raise ConfigError(f"{name}: expected a number or 'default', found {text!r}: this bound cannot be removed")
    return values


def _number(text: str) -> int:
    if _NUMBER.fullmatch(text) is None:
        raise InvalidArgumentError(f"expected the number of a partition, found {text!r}")
    return int(text)


# ---- the metadata store ----------------------------------------------------------------------------------------


def _url(arguments: argparse.Namespace) -> str:
    url = metadata_option.url(arguments)
    file = sqlite_file(url)
    if file is not None and not file.exists():
        raise InvalidArgumentError(f"{url}: there is no metadata store")
    return url


@contextmanager
def _store(arguments: argparse.Namespace) -> Iterator[MetadataStore]:
    with open_store(_url(arguments)) as store:
        yield store


def _topic(store: MetadataStore, name: str) -> TopicMetadata:
    topic = find_topic(store, name)
    if topic is None or topic.is_deleted:
        raise NoSuchTopicError(name, "there is no such topic")
    return topic


def _topics(store: MetadataStore) -> list[str]:
    topics = {name: find_topic(store, name) for name in list_topics(store)}
    return [name for name, topic in topics.items() if topic is not None and not topic.is_deleted]


def _wait_for_leaders(store: MetadataStore, name: str, topic: TopicMetadata, timeout_s: float) -> None:
    """Wait until all partitions have leaders. Raises PartitionUnavailableError."""
    deadline_s = time.monotonic() + timeout_s
    while True:
        led = [state for _, state in read_states(store, [name]) if state.leader]
        if len(led) == topic.partitions:
            return
        if time.monotonic() > deadline_s:
            text = f"it is created, and {topic.partitions - len(led)} partitions have no leader after {timeout_s:g} s"
            raise PartitionUnavailableError(name, "", text)
        time.sleep(_POLL_S)


# ---- actions ---------------------------------------------------------------------------------------------------


def _list(arguments: argparse.Namespace) -> int:
    with _store(arguments) as store:
        names = _topics(store)
    if arguments.json:
        print_json(names)
    else:
        for name in names:
            say(name)
    return 0


def _brokers(arguments: argparse.Namespace) -> int:
    rows = []
    with _store(arguments) as store:
        for name, registration in sorted(read_brokers(store).items()):
            stored = store.get(available_key(name))
            living = None if stored is None else BrokerAvailability.decode(stored.value)
            state = "dead" if registration.is_fenced else "stopping" if registration.is_stopping else "alive"
            rows.append({
                "broker": name, "incarnation": registration.incarnation, "state": state,
                "address": "" if living is None else living.address,
                "kafka": "" if living is None else living.kafka_address,
            })  # fmt: skip
    if arguments.json:
        print_json(rows)
    else:
        header = ("broker", "incarnation", "state", "address", "kafka")
        marked = frozenset(at for at, row in enumerate(rows) if row["state"] != "alive")
        print_tables([Table(header, [tuple(str(value) or "-" for value in row.values()) for row in rows], marked)])
    return 0


def _describe(arguments: argparse.Namespace) -> int:
    config = ProducerConfig(timeout_s=max(arguments.timeout, 0.001))
    with PartitionClient.connect(
        _url(arguments), secret=serving.secret(arguments.secret_file), tls=tls.client_context(arguments), config=config
    ) as client:
        topics = arguments.topics or _topics(client.store)
        for name in topics:
            _topic(client.store, name)
        rows = client.overview(topics, asks_leaders=not arguments.no_offsets).partitions
    if arguments.json:
        print_json([row.to_dict() for row in rows])
        return 0
    header = (
        "topic", "partition", "leader", "epoch", "ISR", "not in sync", "start", "high watermark", "lag", "replica lag",
    )  # fmt: skip
    marked = frozenset(at for at, row in enumerate(rows) if row.leader is None or row.out_of_sync)
    print_tables([Table(header, [_cells(row) for row in rows], marked)])
    return 0


def _cells(row: PartitionStatus) -> tuple[str, ...]:
    numbers = ("-" if number is None else str(number) for number in (row.start, row.high_watermark, row.uncommitted))
    lags = [f"{each.broker}:{each.lag}" for each in row.replicas if each.lag]
    return (
        row.topic, str(row.partition), row.leader or "-", str(row.epoch), ",".join(row.isr) or "-",
        ",".join(row.out_of_sync) or "-", *numbers, ",".join(lags) or "-",
    )  # fmt: skip


def _create(arguments: argparse.Namespace) -> int:
    settings = _settings(arguments)
    with _store(arguments) as store:
        alive = sum(not broker.is_fenced for broker in read_brokers(store).values())
        factor = arguments.replicas if arguments.replicas is not None else max(min(3, alive), 1)
        created = create_topic(
            store, arguments.topic, partitions=arguments.partitions, replication_factor=factor,
            now_us=SystemClock().now_us(),
            settings={name: value for name, value in settings.items() if value is not None},
        )  # fmt: skip
        _wait_for_leaders(store, arguments.topic, created, arguments.timeout)
    if arguments.json:
        print_json({"topic": arguments.topic, "partitions": created.partitions, "replicas": factor})
    return 0


def _alter(arguments: argparse.Namespace) -> int:
    settings = _settings(arguments)
    with _store(arguments) as store:
        topic = _topic(store, arguments.topic)
        if settings:
            topic = alter_topic(store, arguments.topic, settings)
        if arguments.partitions is not None:
            topic = create_partitions(store, arguments.topic, arguments.partitions)
    values = {"partitions": topic.partitions, **topic.config.values()}
    if arguments.json:
        print_json({"topic": arguments.topic, **values})
    elif not settings and arguments.partitions is None:
        print_fields((name, format_setting(value)) for name, value in values.items())
    return 0


def _delete(arguments: argparse.Namespace) -> int:
    targets.check_yes(arguments, f"topic {arguments.topic} with its records")
    with _store(arguments) as store:
        delete_topic(store, arguments.topic)
    if arguments.json:
        print_json({"topic": arguments.topic})
    return 0


def _reassign(arguments: argparse.Namespace) -> int:
    with _store(arguments) as store:
        if arguments.topic is None:
            return _show_reassignments(arguments, store)
        _topic(store, arguments.topic)
        if bool(arguments.targets) == arguments.cancel:
            raise InvalidArgumentError("expected PARTITION=BROKER,... of the topic, or --cancel")
        wanted: dict[TopicPartition, Sequence[str] | None] = {}
        for item in arguments.targets:
            number, equals, brokers = item.partition("=")
            if not equals or not brokers:
                raise InvalidArgumentError(f"expected PARTITION=BROKER,..., found {item!r}")
            partition = TopicPartition(arguments.topic, _number(number))
            if partition in wanted:
                raise InvalidArgumentError(f"expected each partition once, found {partition} twice")
            wanted[partition] = brokers.split(",")
        if arguments.cancel:
            wanted = dict.fromkeys(list_reassignments(store, [arguments.topic]))
        return _print_results(arguments, reassign_partitions(store, wanted))


def _show_reassignments(arguments: argparse.Namespace, store: MetadataStore) -> int:
    under_way = list_reassignments(store)
    if arguments.json:
        print_json([{**partition._asdict(), **order._asdict()} for partition, order in under_way.items()])
        return 0
    header = ("topic", "partition", "replicas", "adding", "removing")
    rows = []
    for name, order in under_way.items():
        lists = (",".join(names) or "-" for names in (order.target, order.adding, order.removing))
        rows.append((name.topic, str(name.partition), *lists))
    print_tables([Table(header, rows)])
    return 0


def _elect(arguments: argparse.Namespace) -> int:
    if arguments.unclean and not arguments.yes:
        raise InvalidArgumentError("--unclean may lose records that were acknowledged: confirm it with --yes")
    kind = ElectionType.UNCLEAN if arguments.unclean else ElectionType.PREFERRED
    with _store(arguments) as store:
        chosen = None
        if arguments.topic is not None:
            topic = _topic(store, arguments.topic)
            numbers = [*map(_number, arguments.numbers)] or range(topic.partitions)
            chosen = [TopicPartition(arguments.topic, number) for number in numbers]
        return _print_results(arguments, elect_leaders(store, kind, chosen))


def _print_results(arguments: argparse.Namespace, results: Mapping[TopicPartition, PartitionResult]) -> int:
    """Print the outcomes, and return the exit code."""
    fine = (ErrorCode.NONE, ErrorCode.ELECTION_NOT_NEEDED)
    if arguments.json:
        print_json([
            {**partition._asdict(), "error": None if result.code is ErrorCode.NONE else result.code.name,
             "message": result.message}
            for partition, result in results.items()
        ])  # fmt: skip
    else:
        for partition, result in results.items():
            say(f"{partition}: {'done' if result.code is ErrorCode.NONE else f'{result.code.name}: {result.message}'}")
    return 0 if all(result.code in fine for result in results.values()) else EXIT_REFUSED


_ACTIONS = (
    ("list", "list the names of all topics", _add_nothing, _list),
    ("brokers", "show the brokers", _add_nothing, _brokers),
    ("describe", "show leaders, in-sync replicas and offsets of partitions", _add_describe, _describe),
    ("create", "create a topic, and wait for its leaders", _add_create, _create),
    ("alter", "change settings and the number of partitions of a topic, or show them", _add_alter, _alter),
    ("delete", "delete a topic with its records", _add_delete, _delete),
    ("reassign", "move replicas to other brokers, cancel moves, or show those under way", _add_reassign, _reassign),
    ("elect", "let the preferred leaders lead, or replicas that may lack records", _add_elect, _elect),
)
