"""The TARGET of a command: the directory of an embedded cluster, a metadata store, or a topic server."""

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
from pyreplog.topic.owner.ownership import LEASE_MS
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
    """Add TARGET, and the credentials for it."""
    add_target(parser, f"a topic server: {SCHEME}host:port; directory of a cluster; or a cluster's metadata store")
    parser.add_argument("--secret-file", metavar="FILE", type=Path, help="file with the secret of servers and bookies")
    tls.add_client_arguments(parser)


def add_topic_arguments(parser: argparse.ArgumentParser) -> None:
    """Add TARGET and TOPIC."""
    add_arguments(parser)
    parser.add_argument("topic", metavar="TOPIC", help="name of the topic")


def add_subscription_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of a topic, and the name of one of its subscriptions."""
    add_topic_arguments(parser)
    parser.add_argument("subscription", metavar="SUBSCRIPTION", help="name of the subscription")


def add_creating(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of commands that create a cluster in an empty directory."""
    parser.add_argument(
        "--bookies", metavar="N", type=int, help=f"number of bookies, at least (default: {BOOKIES} in a new cluster)"
    )


def add_yes(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--yes", action="store_true", help="confirm an action that cannot be undone")


def check_yes(arguments: argparse.Namespace, what: str) -> None:
    """Raise InvalidArgumentError unless --yes confirms the deletion."""
    if not arguments.yes:
        raise InvalidArgumentError(f"{what} would be deleted for good: confirm it with --yes")


# ---- opening ---------------------------------------------------------------------------------------------------


def opened(arguments: argparse.Namespace) -> Cluster | Client:
    """Open TARGET; the caller closes it. Raises the errors of `cluster` and `connect`."""
    if arguments.target.startswith(SCHEME):
        return client(arguments, arguments.target)
    return cluster(arguments, tls.client_context(arguments), serving.secret(arguments.secret_file))


def client(arguments: argparse.Namespace, url: str) -> Client:
    """Connect to a topic server, with the credentials in the arguments. Raises the errors of `connect`."""
    return connect(url, secret=serving.secret(arguments.secret_file), tls=tls.client_context(arguments))


def cluster(arguments: argparse.Namespace, context: ssl.SSLContext | None, secret: Secret | None) -> Cluster:
    """Open the cluster that TARGET names; the caller closes it. context, secret: for bookies.

    Raises InvalidArgumentError, and the errors of `Cluster.connect` and `Cluster.embedded`.
    """
    if not is_directory(arguments):
        return Cluster.connect(arguments.target, secret=secret, tls=context)
    if (Path(arguments.target) / METADATA).exists():
        return Cluster.embedded(arguments.target, bookies=getattr(arguments, "bookies", None) or 1)
    if not hasattr(arguments, "bookies"):
        raise InvalidArgumentError(f"{arguments.target} holds no cluster")
    return Cluster.embedded(arguments.target, bookies=arguments.bookies or BOOKIES)


def is_directory(arguments: argparse.Namespace) -> bool:
    """Whether TARGET is a directory and not a URL."""
    return _URL.match(arguments.target) is None


def wait_s(arguments: argparse.Namespace) -> float:
    """Return how long to wait for a topic's owner to leave.

    The owner of a topic in a directory that no process has open can only be a process that was killed.
    """
    return 2 * LEASE_MS / 1000 if is_directory(arguments) else 0.0


@contextmanager
def topic(arguments: argparse.Namespace) -> Iterator[AnyTopic]:
    """Open the topic that the arguments name, at its owner if there is one, and close it after the block.

    Yields a PartitionedHandle if it has partitions. Raises NoSuchTopicError.
    """
    with opened(arguments) as place, ExitStack() as elsewhere:
        if isinstance(place, Client):
            yield place.topic(arguments.topic, create=False)
        else:
            yield _at_owner(arguments, place, elsewhere)


@contextmanager
def one(arguments: argparse.Namespace) -> Iterator[OneTopic]:
    """Open a topic without partitions, or one partition, as `topic` does, for calls that take offsets.

    Raises InvalidArgumentError for a topic with partitions, each of which has its own offsets.
    """
    with topic(arguments) as handle:
        if isinstance(handle, PartitionedHandle):
            first, last = (partition_name(handle.name, at) for at in (0, handle.partitions - 1))
            text = f"topic {handle.name} has partitions, each with its own offsets: name one of them, {first} to {last}"
            raise InvalidArgumentError(text)
        yield handle


def names(place: Cluster | Client) -> list[str]:
    """Return the names of all topics, partitioned topics, and partitions."""
    if isinstance(place, Client):
        return sorted([*place.topics(), *place.partitioned_topics()])
    return sorted([*place.topics.names(), *place.topics.partitioned.names()])


def _at_owner(arguments: argparse.Namespace, place: Cluster, elsewhere: ExitStack) -> AnyTopic:
    try:
        handle = place.topic(arguments.topic, create=False, wait=wait_s(arguments))
        if not isinstance(handle, PartitionedTopic) or len(handle.served) == handle.partitions:
            return handle
        owned = _first_of_others(handle)
        handle.close()
    except TopicOwnedError as error:
        owned = error
    owner = place.topics.owner(owned.topic)
    if owner is None or not owner.address:
        raise owned
    remote = elsewhere.enter_context(client(arguments, SCHEME + owner.address))
    return remote.topic(arguments.topic, create=False)


def _first_of_others(topic: PartitionedTopic) -> TopicOwnedError:
    """Return the error for a partition that another process owns; its server finds owners for the others, too."""
    for partition in range(topic.partitions):
        try:
            topic.partition(partition)
        except TopicOwnedError as error:
            return error
    return TopicOwnedError(topic.name, "other processes owned some of its partitions a moment ago: try again")
