"""A topic is not deleted while another cluster lacks messages of it, unless the deletion is forced."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

import pyreplog
from pyreplog import InvalidMetadataError, NoSuchTopicError, UnsentMessagesError
from pyreplog.cli.app import main
from pyreplog.geo.policies import policy_key
from pyreplog.geo.revision import raise_revision
from tests.geo.fakes import Replicated
from tests.geo.places import Place
from tests.geo.sites import NOWHERE, SYNCED
from tests.waiting import until


def test_deletion_is_refused_while_a_target_lacks_messages(place: Replicated) -> None:
    place.add("b", "c")
    topic = place.open("orders")
    topic.publish_batch([b"1", b"2", b"3"])
    topic.check_deletion()  # no policy replicates it
    place.geo.set_policy("orders", targets=["b", "c"])
    # no round of the manager has read the policy yet
    with pytest.raises(UnsentMessagesError, match="b lacks 3, c lacks 3"):
        topic.check_deletion()
    place.round()
    b, c = place.made.of("orders"), place.made.of("orders", "c")
    b.shown, c.shown = replace(b.shown, stored=None), replace(c.shown, stored=None)
    with pytest.raises(UnsentMessagesError, match="b lacks 3, c lacks 3"):  # no target has reported its position yet
        topic.delete()
    b.shown = replace(b.shown, stored=3)
    c.shown = replace(c.shown, stored=1, unsent_messages=2)
    with pytest.raises(UnsentMessagesError, match="of its messages c lacks 2: "):
        topic.delete()
    c.shown = replace(c.shown, state="detached")
    topic.check_deletion()
    c.shown = replace(c.shown, state="paused")
    place.geo.set_policy("orders", targets=["b"])
    topic.delete()
    assert place.topics.names() == []


def test_a_removed_cluster_needs_nothing(place: Replicated) -> None:
    place.add("b")
    topic = place.open("orders")
    topic.publish(b"1")
    place.geo.set_policy("orders", targets=["b"])
    place.round()
    place.geo.remove_cluster("b", force=True)
    topic.delete()


def test_a_target_that_begins_with_the_next_message_lacks_none(place: Replicated) -> None:
    place.add("b")
    place.geo.set_policy("orders", targets=["b"], start="latest")
    topic = place.open("orders")
    topic.publish(b"1")
    topic.delete()


def test_a_policy_that_cannot_be_read_is_not_none(place: Replicated) -> None:
    topic = place.open("orders")
    place.add("b")
    place.geo.set_policy("orders", targets=["b"])
    key = policy_key("orders", prefix=False)
    stored = place.store.get(key)
    assert stored is not None
    place.store.put(key, b"garbled", stored.version)
    raise_revision(place.store)
    with pytest.raises(InvalidMetadataError):
        topic.delete()
    topic.delete(force=True)


@pytest.mark.parametrize("partitions", [None, 2])
@pytest.mark.parametrize("is_remote", [False, True])
def test_topic_is_deleted_once_the_target_has_all_messages(
    tmp_path: Path, partitions: int | None, is_remote: bool
) -> None:
    with ExitStack() as stack:
        a, b = Place(stack, tmp_path / "a"), Place(stack, tmp_path / "b")
        a.serve()
        b.serve()
        a.cluster.geo.add_cluster("b", f"pyreplog://{b.wire.address}")
        a.cluster.geo.set_policy("t", targets=["b"])
        url = f"pyreplog://{a.wire.address}"
        place = stack.enter_context(pyreplog.connect(url)) if is_remote else a.cluster
        topic = place.topic("t", partitions=partitions, **SYNCED)
        topic.publish_batch([b"1", b"2"], keys=[b"x", b"y"])
        until(lambda: [row.unsent_messages for row in a.cluster.geo.status("t")] == [0] * (partitions or 1))
        b.wire.lead_to(NOWHERE)
        b.wire.cut()
        topic.publish(b"3", key=b"x")
        names = a.cluster.topics.names()
        with pytest.raises(UnsentMessagesError, match="b lacks 1"):
            topic.delete()
        assert a.cluster.topics.names() == names  # the deletion failed before the first partition was deleted
        assert main(["topic", "delete", url, "t", "--yes"]) == 3
        assert b.server is not None
        b.wire.lead_to(b.server.address)
        until(lambda: not any(row.unsent_messages for row in a.cluster.geo.status("t")))
        topic.delete()
        assert not a.cluster.topics.names()
        assert sum(len(b.cluster.topic(name)) for name in b.cluster.topics.names()) == 3

        b.wire.lead_to(NOWHERE)
        b.wire.cut()
        place.topic("t", partitions=partitions, **SYNCED).publish(b"4", key=b"x")
        assert main(["topic", "delete", url, "t", "--yes"]) == 3
        assert main(["topic", "delete", url, "t", "--yes", "--force"]) == 0
        with pytest.raises(NoSuchTopicError):
            a.cluster.topic("t", create=False)
