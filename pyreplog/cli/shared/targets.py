"""What holds topics, as commands are told: the directory of an embedded cluster, a metadata store, or a server."""

from __future__ import annotations

import argparse
import re
import ssl
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from pyreplog.cli.shared import serving, tls
from pyreplog.cluster import Cluster
from pyreplog.errors import InvalidArgumentError, TopicOwnedError
from pyreplog.ledger.embedded import METADATA
from pyreplog.net.handshake import Secret
from pyreplog.topic.client.partitions.partitioned_handle import PartitionedHandle
from pyreplog.topic.client.remote.client import Client, connect
from pyreplog.topic.client.remote.remote_topic import RemotePartitionedTopic, RemoteTopic
from pyreplog.topic.model.routing import partition_name
from pyreplog.topic.owner.ownership import LEASE_S
from pyreplog.topic.owner.partitioned_topic import PartitionedTopic
from pyreplog.topic.owner.topic import Topic

BOOKIES = 3
SCHEME = "pyreplog://"

_URL = re.compile(r"[a-z]+:")

OneTopic = Topic | RemoteTopic
AnyTopic = OneTopic | PartitionedTopic | RemotePartitionedTopic


# ---- arguments -------------------------------------------------------------------------------------------------


def add_target(parser: argparse.ArgumentParser, text: str) -> None:
    parser.add_argument("target", metavar="TARGET", help=f"{text}: zk://host:port/root or sqlite:PATH")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """TARGET, and how to get at it."""
    add_target(parser, f"a server of topics: {SCHEME}host:port; directory of a cluster; or a cluster's metadata store")
    parser.add_argument("--secret-file", metavar="FILE", type=Path, help="holds the secret of servers and bookies")
    tls.add_client_arguments(parser)


def add_topic_arguments(parser: argparse.ArgumentParser) -> None:
    """TARGET and TOPIC."""
    add_arguments(parser)
    parser.add_argument("topic", metavar="TOPIC", help="name of the topic")


def add_making(parser: argparse.ArgumentParser) -> None:
    """For commands that make the cluster of a directory where there is none."""
    parser.add_argument(
        "--bookies", metavar="N", type=int, help=f"bookies of a directory, at least (default: {BOOKIES} of a new one)"
    )


def add_yes(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--yes", action="store_true", help="do it: it cannot be undone")


def check_yes(arguments: argparse.Namespace, what: str) -> None:
    """InvalidArgumentError: nobody said that it is to be deleted."""
    if not arguments.yes:
        raise InvalidArgumentError(f"{what} would be deleted for ever: say --yes")


# ---- opening ---------------------------------------------------------------------------------------------------


def opened(arguments: argparse.Namespace) -> Cluster | Client:
    """What TARGET names; to be closed. Errors: as `cluster`; those of `connect`."""
    if arguments.target.startswith(SCHEME):
        return client(arguments, arguments.target)
    return cluster(arguments, tls.client_context(arguments), serving.secret(arguments.secret_file))


def client(arguments: argparse.Namespace, url: str) -> Client:
    """A server of topics, reached as the arguments say. Errors: those of `connect`; InvalidArgumentError."""
    return connect(url, secret=serving.secret(arguments.secret_file), tls=tls.client_context(arguments))


def cluster(arguments: argparse.Namespace, context: ssl.SSLContext | None, secret: Secret | None) -> Cluster:
    """The cluster that TARGET names; to be closed. context, secret: for bookies.

    Errors: InvalidArgumentError; those of `Cluster.connect` and `Cluster.embedded`.
    """
    if not is_directory(arguments):
        return Cluster.connect(arguments.target, secret=secret, tls=context)
    if (Path(arguments.target) / METADATA).exists():
        return Cluster.embedded(arguments.target, bookies=getattr(arguments, "bookies", None) or 1)
    if not hasattr(arguments, "bookies"):
        raise InvalidArgumentError(f"there is no cluster in {arguments.target}")
    return Cluster.embedded(arguments.target, bookies=arguments.bookies or BOOKIES)


def is_directory(arguments: argparse.Namespace) -> bool:
    """Whether TARGET is one, and no URL."""
    return _URL.match(arguments.target) is None


def wait_s(arguments: argparse.Namespace) -> float:
    """How long to wait for a topic's owner to go: of a directory that nobody else has open it can only be a process
    that was killed."""
    return 2 * LEASE_S if is_directory(arguments) else 0.0


@contextmanager
def topic(arguments: argparse.Namespace) -> Iterator[AnyTopic]:
    """The topic that the arguments name, at the server that owns it if there is one; it is let go behind the block. A
    PartitionedHandle, if it has partitions. NoSuchTopicError: there is none."""
    with opened(arguments) as place, ExitStack() as elsewhere:
        if isinstance(place, Client):
            yield place.topic(arguments.topic, create=False)
        else:
            yield _at_owner(arguments, place, elsewhere)


@contextmanager
def one(arguments: argparse.Namespace) -> Iterator[OneTopic]:
    """As `topic`, for what takes an offset, or a number of messages in their order. InvalidArgumentError: it has
    partitions, each of which has its own."""
    with topic(arguments) as found:
        if isinstance(found, PartitionedHandle):
            first, last = (partition_name(found.name, at) for at in (0, found.partitions - 1))
            text = f"topic {found.name} has partitions, and each its own offsets: say which one, {first} to {last}"
            raise InvalidArgumentError(text)
        yield found


def names(place: Cluster | Client) -> list[str]:
    """Of all topics; of those that have partitions, and of their partitions."""
    if isinstance(place, Client):
        return sorted([*place.topics(), *place.partitioned_topics()])
    return sorted([*place.topics.names(), *place.topics.partitioned.names()])


def _at_owner(arguments: argparse.Namespace, place: Cluster, elsewhere: ExitStack) -> AnyTopic:
    try:
        found = place.topic(arguments.topic, create=False, wait=wait_s(arguments))
        if not isinstance(found, PartitionedTopic) or len(found.served) == found.partitions:
            return found
        owned = _first_of_others(found)
        found.close()
    except TopicOwnedError as error:
        owned = error
    owner = place.topics.owner(owned.topic)
    if owner is None or not owner.address:
        raise owned
    there = elsewhere.enter_context(client(arguments, SCHEME + owner.address))
    return there.topic(arguments.topic, create=False)


def _first_of_others(topic: PartitionedTopic) -> TopicOwnedError:
    """Of the partitions that other processes own: their servers give the others an owner, too."""
    for partition in range(topic.partitions):
        try:
            topic.partition(partition)
        except TopicOwnedError as error:
            return error
    return TopicOwnedError(topic.name, "others had some of its partitions a moment ago: try again")
