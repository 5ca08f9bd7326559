"""Planned changes of the master while appends go on, and the state of the group if such a change fails."""

from __future__ import annotations

import errno
import logging
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from pyreplog.errors import (
    HigherTermError,
    InvalidArgumentError,
    NotMasterError,
    OutcomeUnknownError,
    PromotionRefusedError,
    ReplicationError,
    ReplogError,
)
from pyreplog.ha.commands import Commands
from pyreplog.ha.master import Master
from pyreplog.ha.node import Node
from pyreplog.ha.protocol.election import Effect, Election
from pyreplog.ha.protocol.messages import Command, Promise
from pyreplog.net.server_connection import ServerConnection
from pyreplog.stream.mirror_log import MirrorLog
from pyreplog.stream.terms import Term
from tests.ha.inside import master_of, replica_of
from tests.ha.nodes import Lab, level, until, values


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    with ExitStack() as stack:
        yield Lab(tmp_path, stack)


class Writers:
    """Threads that append without a pause, each time to the node that is the master."""

    def __init__(self, nodes: list[Node]) -> None:
        self._nodes = nodes
        self.acked: list[bytes] = []
        self.unknown: list[ReplogError] = []
        self._stop = threading.Event()

    def write(self, writer: int) -> None:
        number = 0
        while not self._stop.is_set():
            master = next((node for node in self._nodes if node.role == "master"), None)
            value, number = b"%d of %d" % (number, writer), number + 1
            try:
                if master is not None:
                    master.append(value)
                    self.acked.append(value)
            except OutcomeUnknownError as error:
                self.unknown.append(error)
            except ReplogError:
                pass  # the append was refused

    def progress(self) -> None:
        """Wait until more appends are acknowledged."""
        before = len(self.acked)
        until(lambda: len(self.acked) > before + 20)

    @contextmanager
    def running(self) -> Iterator[None]:
        threads = [threading.Thread(target=self.write, args=(number,)) for number in range(2)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._stop.set()
            for thread in threads:
                thread.join()


def three(lab: Lab, durability: str) -> list[Node]:
    a = lab.master(durability=durability)
    nodes = [a, *(lab.replica(name, a, durability=durability) for name in "bc")]
    a.append(b"first")
    level(a, *nodes[1:])
    return nodes


@pytest.mark.parametrize("durability", ["appended", "synced"])
def test_a_change_over_under_writes_is_not_refused(lab: Lab, durability: str) -> None:
    """The master always had more records than the candidate: most promotions were refused, and some left the group
    without a master."""
    nodes = three(lab, durability)
    writers = Writers(nodes)
    with writers.running():
        for heir in (nodes[1], nodes[2], nodes[0]):
            writers.progress()
            until(lambda heir=heir: heir.stats().get("streaming"))  # type: ignore[misc]
            assert heir.promote() == ""
            assert heir.role == "master"
            writers.progress()
    until(lambda: all(node.log.end == nodes[0].log.end for node in nodes))
    assert set(writers.acked) <= set(values(nodes[0]))


def test_a_candidate_that_is_refused_leaves_the_master_at_work(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The master holds appends back for the candidate, and admits them as soon as that is refused."""
    a, b, _ = three(lab, "appended")
    grew = Election.grew
    monkeypatch.setattr(Election, "grew", lambda self, end: [*grew(self, end), *self.deadline()])
    with caplog.at_level(logging.INFO), pytest.raises(PromotionRefusedError):
        b.promote()
    a.append(b"at once")
    assert (a.role, a.term.number) == ("master", 1)
    messages = " ".join(record.getMessage() for record in caplog.records)
    assert "b stands for election" in messages and "b is not elected" in messages


def test_a_master_that_was_deposed_for_nothing_is_master_again(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """The master had promised the candidate its term, and the candidate did not become master."""
    a, b, c = three(lab, "appended")

    def fails(log: MirrorLog) -> None:
        raise OSError(errno.EIO, "planted")

    monkeypatch.setattr(MirrorLog, "promote", fails)
    with pytest.raises(OSError, match="planted"):
        b.promote()
    monkeypatch.undo()
    until(lambda: a.role == "master" and a.term.number > 2)
    a.append(b"goes on")
    level(a, b, c)
    assert values(b) == [b"first", b"goes on"]


@pytest.mark.parametrize("is_interrupted", [False, True])
def test_a_change_over_that_fails_late_is_tried_again(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, is_interrupted: bool
) -> None:
    """An append that was admitted before is written after all members have promised, so that the candidate lacks it.
    The deposed master may close connections at the moment when it is asked to stand, because its role changes."""
    a, b, c = three(lab, "appended")
    failing, promised, take = [True], Election.promised, Commands.take
    interrupting = [is_interrupted]

    def interrupted(self: Commands, connection: ServerConnection, number: int, command: Command) -> None:
        if any(interrupting):
            interrupting.clear()
            raise ReplicationError("planted")
        take(self, connection, number, command)

    def refused(self: Election, member: str, promise: Promise) -> list[Effect]:
        if self.is_trial or self.name != "b" or not failing:
            return promised(self, member, promise)
        if member != "a":
            return []
        failing.clear()
        return self.deadline()

    monkeypatch.setattr(Election, "promised", refused)
    monkeypatch.setattr(Commands, "take", interrupted)
    assert b.promote() == "" and not failing and not any(interrupting)
    assert b.role == "master" and b.term.number > 3, "a led again in between"
    b.append(b"goes on")
    level(b, a, c)
    assert values(a) == [b"first", b"goes on"]


@pytest.mark.parametrize("is_fenced", [False, True])
def test_a_change_over_that_fails_before_the_master_has_promised_is_tried_again(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, is_fenced: bool
) -> None:
    """The master did not know the candidate's term, and could not be elected again: the group had no master."""
    a, b, c = three(lab, "appended")
    failing, silent, fence, promised = [True], [True], Master.fence, Election.promised

    def answers_no_candidate(self: Master, term: Term) -> None:
        if is_fenced or not silent:
            fence(self, term)
        if silent:
            raise ReplicationError("planted")

    def loses(self: Election, member: str, promise: Promise) -> list[Effect]:
        if self.is_trial or self.name != "b" or not failing:
            return promised(self, member, promise)
        failing.clear()  # at this point c has promised
        return self.deadline()

    monkeypatch.setattr(Master, "fence", answers_no_candidate)
    monkeypatch.setattr(Election, "promised", loses)
    promote_after, named, refused = Node.promote_after, [], []

    def promoted(self: Node, lost: Term) -> str:
        named.append(lost)
        silent.clear()
        try:
            # a candidate of an older version does not name its term
            return self.promote() if is_fenced else promote_after(self, lost)
        except HigherTermError as error:
            refused.append(error)
            raise

    monkeypatch.setattr(Node, "promote_after", promoted)
    assert b.promote() == "" and not failing
    assert Term(2, "b") in named and not refused
    assert b.role == "master" and b.term.number > 3, "a led again in between"
    b.append(b"goes on")
    level(b, a, c)
    assert values(a) == [b"first", b"goes on"]


def test_no_candidate_takes_a_node_to_an_absurd_term(lab: Lab) -> None:
    a, _, _ = three(lab, "appended")
    with pytest.raises(InvalidArgumentError, match="no group is at term 16777218 of b when 1 of a was promised last"):
        a.promote_after(Term((1 << 24) + 2, "b"))
    assert a.role == "master" and a.term.number == 1


def test_a_change_of_masters_can_be_read_in_the_log(lab: Lab, caplog: pytest.LogCaptureFixture) -> None:
    a, b, c = three(lab, "appended")
    with caplog.at_level(logging.INFO, "pyreplog.ha"):
        b.promote()
        until(lambda: a.role == "replica" and c.stats().get("streaming"))
    messages = " ".join(record.getMessage() for record in caplog.records)
    for line in (
        "b stands for election, term 2 of b: a is to hand over", "appends wait while b catches up",
        "promised term 2 of b", "a steps down: term 2 of b", "b is master of term 2 of b",
    ):  # fmt: skip
        assert line in messages


def test_submit_is_refused_during_a_handover_and_append_waits(lab: Lab) -> None:
    """A submit must not block, and is refused. An append waits, and goes on if the candidate does not take over."""
    a, _, _ = three(lab, "appended")
    master = master_of(a)
    master.hold("b")
    with pytest.raises(NotMasterError, match="handing over to b"):
        a.submit(b"at once")
    threading.Timer(0.05, master.release, ("b",)).start()
    a.append(b"later")
    assert values(a) == [b"first", b"later"]


def test_idle_master_sends_heartbeats_to_its_replicas(lab: Lab) -> None:
    """Otherwise its replicas would take it for lost."""
    _, b, _ = three(lab, "appended")
    replica = replica_of(b)
    for _ in range(3):
        last_us = replica._last_message_us
        until(lambda last_us=last_us: replica._last_message_us > last_us)  # type: ignore[misc]
    assert b.hears_master(60.0)
