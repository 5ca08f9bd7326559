"""A report that arrives alone is counted on a fast path, which does what the other way does."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from random import Random
from typing import Any

import pytest

from pyreplog._native.ha.reports import encode_report
from pyreplog._native.net.frame import CONTROL_OFFSET, FrameParser, encode
from pyreplog.errors import DeposedError, NotMasterError
from pyreplog.ha import master as master_module
from pyreplog.ha.node import Node
from pyreplog.ha.protocol import messages
from pyreplog.ha.protocol.messages import MembersStored
from pyreplog.ha.replica_stream import ReplicaStream
from pyreplog.net.reactor import Reactor
from pyreplog.stream.log_position import ORIGIN, LogPosition
from pyreplog.stream.terms import Term
from tests.ha.inside import context_of, followers_of, master_of
from tests.ha.nodes import Lab, level, until
from tests.ha.test_attacks_wire import Stranger, join
from tests.tracing import python_calls

Strangers = Callable[[str], Stranger]


class Group:
    """A master, and a replica that the test plays."""

    def __init__(self, lab: Lab, strangers: Strangers, name: str, **settings: Any) -> None:
        self.node = lab.master(name, members=name + "c", sync_replicas=1, **settings)
        self.replica = strangers(self.node.address)
        self.replica.say(messages.encode(join(self.node)))
        until(lambda: followers_of(self.node))
        members = self.node.members
        assert members is not None
        until(lambda: self.sent == self.node.log.tail.end)
        self.replica.say(messages.encode(MembersStored(members.stamp.version)))
        assert not self.report(end_of(self.node), ORIGIN), "from now on the next append is sent at once"

    @property
    def sent(self) -> int:
        """Position up to which the master has sent its log."""
        (follower,) = followers_of(self.node).values()
        return follower.feed.position

    def _taken(self) -> tuple[int, int]:
        """Return how many reports were counted, and how many messages were refused."""
        stats = self.node.replication()
        return stats.reports, stats.refused

    def report(self, received: LogPosition, synced: LogPosition) -> bool:
        """Report, wait until the master has taken it, and return whether it has hung up."""
        before = self._taken()
        self.replica.say(encode_report(received, synced))
        until(lambda: self._taken() != before or self.replica.ended)
        if self.replica.ended or self._taken()[1]:
            until(lambda: self.replica.ended and not followers_of(self.node))
        return bool(self.replica.ended)

    def state(self) -> list[Any]:
        """Return what the reports decide."""
        stats, log = self.node.replication(), self.node.log
        replicas = [(each.state, each.received, each.synced, each.lag_bytes) for each in stats.replicas]
        return [stats.committed, stats.refused, stats.reports, replicas, log.end, log.tail.end]


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    with ExitStack() as stack:
        yield Lab(tmp_path, stack)


@pytest.fixture
def strangers() -> Iterator[Strangers]:
    with Reactor() as reactor, ExitStack() as stack:
        reactor.start()
        yield lambda address: stack.enter_context(Stranger(reactor, address))


def end_of(node: Node) -> LogPosition:
    return LogPosition(node.log.tail.end, node.log.tail.end_entry)


def slow_group(lab: Lab, strangers: Strangers, name: str, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> Group:
    """Return a group whose master takes each report the other way."""
    with monkeypatch.context() as patch:
        patch.setattr(ReplicaStream, "fast_path", None, raising=False)
        return Group(lab, strangers, name, **settings)


def report_at_random(random: Random, ends: list[LogPosition], sent: int) -> tuple[LogPosition, LogPosition]:
    """Return a report: mostly of the end that was sent, sometimes late, sometimes impossible."""
    possible = [end for end in ends if end.position <= sent]
    received = random.choice(possible[-3:])
    synced = random.choice([end for end in possible if end <= received][-3:])
    fault = random.random()
    if fault < 0.02:
        received = LogPosition(sent + 8, received.entry)
    elif fault < 0.04:
        synced = LogPosition(received.position + 8, received.entry)
    elif fault < 0.06:
        received = LogPosition(received.position - 8, received.entry + 1)
    elif fault < 0.07:
        synced = LogPosition(-8, 0)
    return received, synced


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("durability", ["appended", "synced"])
def test_both_ways_of_a_report_have_the_same_states(
    lab: Lab, strangers: Strangers, monkeypatch: pytest.MonkeyPatch, seed: int, durability: str
) -> None:
    random = Random(seed)
    groups = [
        Group(lab, strangers, "a", durability=durability),
        slow_group(lab, strangers, "b", monkeypatch, durability=durability),
    ]
    (fast,) = followers_of(groups[0].node).values()
    assert fast.fast_path is not None
    ends = [ORIGIN, *(end_of(groups[0].node) for _ in range(1))]
    for _ in range(40):
        for _ in range(random.choice((0, 1, 1, 3))):
            value = random.randbytes(random.choice((10, 1000)))
            for group in groups:
                group.node.submit(value)
            for group in groups:
                group.node.log.sync()
                master_of(group.node).offer()
            ends.append(end_of(groups[0].node))
            assert end_of(groups[1].node) == ends[-1]
        assert groups[0].sent == groups[1].sent
        report = report_at_random(random, ends, groups[0].sent)
        ended = [group.report(*report) for group in groups]
        assert ended[0] == ended[1], report
        assert groups[0].state() == groups[1].state(), report
        if ended[0]:
            break


def alone(received: LogPosition, synced: LogPosition) -> Any:
    return FrameParser().feed(encode(CONTROL_OFFSET, encode_report(received, synced)))


def test_a_report_that_moves_the_commit_point_calls_no_function_of_python(
    lab: Lab, strangers: Strangers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(master_module, "COMMIT_DELAY_S", 60.0)  # a commit message is due already, as it mostly is
    group = Group(lab, strangers, "a")
    group.node.log.append_pending(b"value")  # no future waits
    master_of(group.node).offer()
    ((connection, follower),) = followers_of(group.node).items()
    report = alone(end_of(group.node), ORIGIN)
    answers: list[Any] = []
    calls = python_calls(lambda: answers.append(follower.fast_path(connection, report)))
    assert answers == [b""] and group.node.committed == end_of(group.node)
    assert [call for call in calls if "<lambda>" not in call] == []


def refuses(group: Group, *report: LogPosition) -> bool:
    """Return whether the fast path refuses a report, and has changed nothing."""
    ((connection, follower),) = followers_of(group.node).items()
    before = group.state()
    assert group.sent == end_of(group.node).position
    return follower.fast_path(connection, alone(*report)) is None and group.state() == before


def test_impossible_reports_are_refused(lab: Lab, strangers: Strangers) -> None:
    group = Group(lab, strangers, "a")
    group.node.submit(b"value")
    position, entry = end = end_of(group.node)
    for received, synced in (
        (LogPosition(position + 8, entry), ORIGIN),
        (LogPosition(position, entry + 1), ORIGIN),
        (ORIGIN, end),
        (end, LogPosition(-8, 0)),
    ):
        assert refuses(group, received, synced), (received, synced)


def test_other_messages_are_refused(lab: Lab, strangers: Strangers) -> None:
    group = Group(lab, strangers, "a")
    group.node.submit(b"value")
    ((connection, follower),) = followers_of(group.node).items()
    body, before = encode_report(end_of(group.node), ORIGIN), group.state()
    report = encode(CONTROL_OFFSET, body)
    for frames, why in (
        (report + report, "two of them"),
        (report[:-1], "it has not come yet"),
        (encode(0, body), "a request"),
        (encode(CONTROL_OFFSET, b"\1" + body[1:]), "another kind"),
        (encode(CONTROL_OFFSET, body[:-8]), "another size"),
        (encode(CONTROL_OFFSET, b""), "a heartbeat"),
    ):
        assert follower.fast_path(connection, FrameParser().feed(frames)) is None, why
    assert group.state() == before


def test_while_the_lock_is_held_the_other_way_is_taken(lab: Lab, strangers: Strangers) -> None:
    group = Group(lab, strangers, "a")
    group.node.submit(b"value")
    ((connection, follower),) = followers_of(group.node).items()
    taken, done = threading.Event(), threading.Event()

    def hold() -> None:
        with context_of(group.node).lock:
            taken.set()
            done.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    assert taken.wait(60)
    answer = follower.fast_path(connection, alone(end_of(group.node), ORIGIN))
    done.set()
    thread.join()
    assert answer is None and group.node.committed < end_of(group.node)


def test_a_fenced_master_counts_no_report(lab: Lab, strangers: Strangers) -> None:
    group = Group(lab, strangers, "a")
    future = group.node.submit(b"value")
    ((connection, follower),) = followers_of(group.node).items()
    end = end_of(group.node)
    master_of(group.node).fence(Term(9, "c"))
    assert follower.fast_path(connection, alone(end, ORIGIN)) is None
    with pytest.raises((DeposedError, NotMasterError)):
        future.result(60)


def test_a_closed_master_counts_no_report(lab: Lab, strangers: Strangers) -> None:
    group = Group(lab, strangers, "a")
    group.node.submit(b"value")
    ((connection, follower),) = followers_of(group.node).items()
    end, master = end_of(group.node), master_of(group.node)
    group.node.close()
    assert follower.fast_path(connection, alone(end, ORIGIN)) is None
    assert master.group.committed < end


def test_while_the_members_change_the_other_way_is_taken(lab: Lab, strangers: Strangers) -> None:
    """A commit needs both quorums then, and may complete the change."""
    group = Group(lab, strangers, "a")
    group.node.submit(b"value")
    group.node.set_members(["a", "c", "d"], 1)
    assert refuses(group, end_of(group.node), ORIGIN)


def test_a_master_that_may_go_on_alone_takes_the_other_way(lab: Lab, strangers: Strangers) -> None:
    group = Group(lab, strangers, "a", group={"fallback_after_ms": 60_000})
    group.node.submit(b"value")
    assert refuses(group, end_of(group.node), ORIGIN)


def test_an_append_calls_few_functions_of_python(lab: Lab) -> None:
    a = lab.master(members="ab", sync_replicas=1)
    b = lab.replica("b", a)
    a.append(b"first")
    level(a, b)
    calls = python_calls(lambda: a.append(b"second"))
    assert "Node.append" in calls and "PendingCommits.wait" in calls
    assert not [
        call for call in calls if call.startswith(("Master.append", "Master.offer", "Master.progress", "Service."))
    ]
