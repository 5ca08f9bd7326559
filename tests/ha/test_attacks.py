"""Former bugs of how a node drives its state machines: changes of the role that fail half way, and disks that fail."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from pyreplog import ha
from pyreplog.errors import (
    ClosedError,
    DiskFullError,
    InvalidArgumentError,
    NotEnoughReplicasError,
    ReplicationError,
    ReplicationTimeoutError,
    ReplogError,
)
from pyreplog.ha import logs
from pyreplog.ha.node import Node
from pyreplog.ha.node_context import ends_of
from pyreplog.ha.protocol.messages import Message, Prepare, Promise
from pyreplog.stream.log_position import LogPosition
from pyreplog.stream.mirror_log import MirrorLog
from pyreplog.stream.terms import Term, TermsFile
from tests.crash.faults import FaultyFiles
from tests.ha import streams
from tests.ha.inside import channels_of, context_of, followers_of, master_of, peers_of, replica_of
from tests.ha.nodes import SEGMENT_BYTES, Lab, assert_same_files, level, until, values


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    with ExitStack() as stack:
        yield Lab(tmp_path, stack)


class Faults(FaultyFiles):
    """A disk on which replacing small files may fail, too. `before` is called with each file before it is replaced."""

    before: Callable[[Path], object] = staticmethod(lambda path: None)

    def replace_small(self, path: Path, data: bytes) -> None:
        self.before(path)
        self._meet(f"replace {path.name}")
        super().replace_small(path, data)


def faulty_replica(lab: Lab, name: str, master: Node | None, **settings: Any) -> tuple[Node, Faults]:
    """Return a replica, and its disk, which fails when the test says so."""
    files = Faults()
    node = Node(lab.folder / name, ha.NodeConfig.of({"name": name, **lab.settings(settings)}), files=files)
    lab.opened(node)
    node.follow(None if master is None else master.address)
    return node, files


def faulty_master(lab: Lab, members: str, sync_replicas: int, **settings: Any) -> tuple[Node, Faults]:
    files = Faults()
    node = Node(lab.folder / "a", ha.NodeConfig.of({"name": "a", **lab.settings(settings)}), files=files)
    lab.opened(node)
    node.open_as_master(list(members), sync_replicas)
    return node, files


def prepare(node: Node, name: str, number: int) -> Prepare:
    """Return the request of a candidate that has all records of `node`."""
    members = node.members
    assert members is not None
    return Prepare(Term(number, name), bytes(16), members.stamp)


# ---- votes -----------------------------------------------------------------------------------------------------


def test_a_node_does_not_vote_before_its_log_is_open(lab: Lab) -> None:
    """It would promise with an empty log, and a candidate that lacks records which it has acknowledged would be
    elected."""
    a = lab.master()
    b = lab.replica("b", a)
    a.append(b"acknowledged, by b alone")
    lab.close(b)
    b = lab.opened(Node(lab.folder / "b", ha.NodeConfig.of({"name": "b", **lab.settings({})})))
    with pytest.raises(ReplogError, match="its log"):
        b.vote(prepare(b, "c", 9))
    assert b.term < Term(9, "c")
    b.follow(None)
    answer = b.vote(prepare(b, "c", 9))
    assert isinstance(answer, Promise)
    assert answer.received.entry == 1


def test_a_promise_is_not_overwritten_by_a_promotion_meanwhile(lab: Lab) -> None:
    a = lab.master()
    b, files = faulty_replica(lab, "b", a)
    c = lab.replica("c", a)
    a.append(b"one")
    level(a, b, c)
    lab.close(a)
    answers: list[Message | Exception] = []

    def vote() -> None:
        try:
            answers.append(b.vote(prepare(b, "c", 9)))
        except ReplogError as error:
            answers.append(error)

    def vote_meanwhile(path: Path) -> None:
        if path.name == "members" and b.role == "candidate":
            thread = threading.Thread(target=vote)
            thread.start()
            thread.join(0.5)

    files.before = vote_meanwhile  # type: ignore[method-assign]
    try:
        b.promote()
    except ReplicationError:
        assert b.role == "replica"
    until(lambda: answers)
    promised = TermsFile(b.log.path, files).promised
    assert not isinstance(answers[0], Promise) or promised >= Term(9, "c"), "the promise is broken"


def test_elections_ask_members_again_that_could_not_be_reached(lab: Lab) -> None:
    """The connection to a member that was down may be in the middle of a long delay."""
    a, host = lab.master(), "127.0.77.1"  # no other process takes the port of this address
    b, c = lab.replica("b", a), lab.replica("c", a, host=host)
    a.append(b"one")
    level(a, b, c)
    lab.close(a)
    address = c.address
    port = int(address.rpartition(":")[2])
    lab.close(c)
    failed: list[Any] = []
    for _ in range(4):  # the delay grows
        peers_of(b).ask("c", prepare(b, "b", 2)._replace(trial=True), failed.append)
    until(lambda: len(failed) == 4 and channels_of(b)["c"].error is not None)
    won: list[str] = []
    thread = threading.Thread(target=lambda: won.append(b.promote()))
    thread.start()
    until(lambda: b._candidacy is not None)
    lab.replica("c", None, host=host, port=port)
    thread.join(60)
    assert won == [""]


def test_an_old_master_that_is_fenced_late_deposes_no_newer_one(lab: Lab) -> None:
    a = lab.master(members="ab", sync_replicas=0)
    a._rejoin(Term(1, "z"))
    assert a.role == "master"


# ---- changing the role -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("stage", ["replace members", "replace terms", "sync_directory"])
def test_a_promotion_that_fails_leaves_a_replica(lab: Lab, stage: str) -> None:
    a = lab.master()
    b, files = faulty_replica(lab, "b", a)
    c = lab.replica("c", a)
    a.append(b"one")
    level(a, b, c)
    lab.close(a)
    files.before = lambda path: files.failing.add(stage) if path.name == "members" else None  # type: ignore[method-assign]
    with pytest.raises(OSError):
        b.promote()
    assert b.role == ("candidate" if stage == "sync_directory" else "replica")  # as a replica it fails as well
    files.before = lambda path: None  # type: ignore[method-assign]
    files.failing.clear()
    b.follow(None)
    assert b.promote() == ""
    c.follow(b.address)
    b.append(b"two")
    level(b, c)
    assert values(b) == values(c) == [b"one", b"two"]


def test_a_commit_point_beyond_the_log_is_not_handed_on(lab: Lab) -> None:
    """A master that had gone on alone had sent a higher commit point than replicas have records: nothing beyond them is
    committed."""
    a = lab.master()
    b, c = lab.replica("b", a), lab.replica("c", a)
    a.append(b"one")
    level(a, b, c)
    replica_of(b).following.committed = LogPosition(1 << 40, 1 << 20)
    lab.close(a)
    b.promote()
    assert b.committed.position <= b.log.tail.end
    c.follow(b.address)
    b.append(b"two")
    level(b, c)


def test_a_commit_point_of_another_master_shows_nothing_of_the_next(tmp_path: Path) -> None:
    with streams.open_master(tmp_path / "a") as master, streams.make_mirror(tmp_path / "b", master) as mirror:
        master.append(b"one")
        streams.copy(master, mirror)
        mirror.show(1 << 40, 1 << 20)
        assert streams.held(mirror) == [b"one"]
        master.append(b"of a master that is not committed")
        streams.copy(master, mirror)  # the stream of any master begins so
        assert streams.held(mirror) == [b"one"]


def test_a_deposed_master_shows_nothing_that_was_not_committed(lab: Lab) -> None:
    a = lab.master(ack_timeout_ms=30)
    with pytest.raises(ReplicationTimeoutError):
        a.append(b"not committed")
    a.follow(None)
    assert a.role == "replica"
    assert values(a) == []


def test_a_promotion_that_was_cut_short_gets_its_first_record(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process ends after it stored its term, before the first record of the term. Without one, no record of former
    terms is committed."""
    with monkeypatch.context() as half:
        half.setattr(logs, "mark_term", lambda log, term: None)
        a = lab.master()
        assert a.log.tail.end == ends_of(a.log)[0].position
        start = a.log.tail.end
        lab.close(a)
    a = lab.master()
    assert a.log.tail.end > start
    b = lab.replica("b", a)
    until(lambda: a.committed.position == a.log.tail.end)
    level(a, b)


def test_a_closed_node_takes_no_role(lab: Lab) -> None:
    a = lab.master(sync_replicas=0)
    b = lab.replica("b", a)
    lab.close(b)
    lab.close(a)
    for node in (a, b):
        with pytest.raises(ClosedError):
            node.follow("127.0.0.1:1")
        with pytest.raises(ClosedError):
            node.promote()
        with pytest.raises(ClosedError):
            node.open_as_master(["a"], 0)


# ---- appending -------------------------------------------------------------------------------------------------


def test_blocking_append_in_an_event_loop_is_refused_and_appends_nothing(lab: Lab) -> None:
    a = lab.master(sync_replicas=0)

    async def task() -> None:
        with pytest.raises(InvalidArgumentError, match="use submit, and await its future"):
            a.append(b"blocks")
        with pytest.raises(InvalidArgumentError, match="use submit, and await its future"):
            a.append_batch([b"blocks"])

    asyncio.run(task())
    assert a.log.tail.end_entry == 0


def test_blocking_append_in_a_callback_is_refused_and_appends_nothing(lab: Lab) -> None:
    a = lab.master(sync_replicas=0)
    errors: list[Exception] = []

    def call() -> None:
        try:
            a.append(b"waits for itself")
        except InvalidArgumentError as error:
            errors.append(error)

    context_of(a).reactor.call_soon(call)
    until(lambda: errors)
    assert a.log.tail.end_entry == 0


def test_a_look_at_the_statistics_loses_no_commit(lab: Lab) -> None:
    a = lab.master(sync_replicas=0)
    master = master_of(a)
    master._timer.cancel()  # no timer commits
    master.log.append_pending(b"one", None, None, None)
    a.replication()
    assert values(a) == [b"one"]


def test_nothing_is_acknowledged_at_once(lab: Lab) -> None:
    a = lab.master(ack_timeout_ms=100)
    assert a.submit_batch([]).result(60) == range(0)
    assert a.append_batch([]) == range(0)


# ---- disks that fail -------------------------------------------------------------------------------------------


def test_a_sync_that_fails_ends_the_stream_at_once(lab: Lab) -> None:
    """Otherwise the replica would seem to follow, while its master waits for its reports in vain."""
    a = lab.master(members="ab", durability="synced", ack_timeout_ms=100)
    b, files = faulty_replica(lab, "b", a, durability="synced")
    a.submit(b"one")  # not waited for: joining and syncing may take long
    until(lambda: a.log.end == 1)
    files.failing.add("sync")
    # the second error if the replica has left already
    with pytest.raises((ReplicationTimeoutError, NotEnoughReplicasError)):
        a.append(b"two")
    until(lambda: "failed" in b.stats()["trouble"])


def test_members_that_are_not_stored_are_not_in_force(lab: Lab) -> None:
    a, files = faulty_master(lab, "ab", 1)
    b = lab.replica("b", a)
    a.append(b"one")
    before = a.members
    files.failing.add("replace members")
    with pytest.raises(OSError):
        a.set_members(list("abc"), 1)
    assert master_of(a).group.members == a.members == before
    files.failing.clear()
    a.set_members(list("abc"), 1)
    until(lambda: a.members is not None and a.members.former is None)
    assert a.members is not None and a.members.quorum.names == ("a", "b", "c")
    a.append(b"two")
    level(a, b)


def test_a_copy_that_could_not_be_made_is_made_later(lab: Lab) -> None:
    a = lab.master(members="ab", sync_replicas=0)
    a.append(b"one")
    mirror_log = MirrorLog.create(
        lab.folder / "b", a.config.log, uuid=bytes(range(16)), segment_bytes=SEGMENT_BYTES, start=(0, 0)
    )
    mirror_log.close()
    b, files = faulty_replica(lab, "b", None)
    files.failing.add("replace replica")
    b.follow(a.address)
    until(lambda: "replace replica" in files.calls)
    files.failing.clear()
    level(a, b)
    assert values(b) == [b"one"]
    assert_same_files(a, b)


def test_a_full_disk_at_a_replica_is_waited_out(lab: Lab) -> None:
    a = lab.master(members="ab", sync_replicas=0)
    b, files = faulty_replica(lab, "b", a)
    a.append(b"one")
    level(a, b)
    files.full = True
    for _ in range(8):
        a.append_batch([b"." * 30_000] * 4)
    until(lambda: "No space" in b.stats()["trouble"])
    held = values(b)
    assert held == values(a)[: len(held)]
    files.full = False
    level(a, b)
    assert_same_files(a, b)


def test_a_full_disk_at_the_master_appends_nothing_and_loses_nothing(lab: Lab) -> None:
    a, files = faulty_master(lab, "ab", 1)
    b = lab.replica("b", a)
    a.append(b"one")
    files.full = True
    with pytest.raises(DiskFullError):
        for _ in range(20):
            a.append(b"." * 30_000)
    level(a, b)
    files.full = False
    a.append(b"more")
    level(a, b)
    assert values(a) == values(b)


def test_a_master_alone_of_replicas_that_only_receive_goes_on(lab: Lab) -> None:
    a = lab.master(members="ab", group={"fallback_after_ms": 50})
    assert a.append(b"alone") == 0
    assert a.submit(b"alone").result(60) == 1
    assert a.replication().asynchronous


def test_a_copy_of_a_copy_is_cut_with_it(lab: Lab) -> None:
    a = lab.master(sync_replicas=0)
    b, c = lab.replica("b", a), lab.replica("c", a, election_timeout_ms=200)
    x = lab.replica("x", b, observer=True)
    a.append_batch([b"%d" % i for i in range(10)])
    level(a, b, c, x)
    c.follow("127.0.0.1:1")
    until(lambda: any(replica.name == "c" and replica.state == "gone" for replica in a.replication().replicas))
    a.append_batch([b"cut" + b"." * 900] * 100)
    level(a, b, x)
    lab.close(a)
    c.promote(force=True)
    b.follow(c.address)
    c.append(b"of the new master")
    level(c, b, x)
    assert values(x) == values(c) == [*(b"%d" % i for i in range(10)), b"of the new master"]
    assert_same_files(c, x)


def test_a_segment_that_cannot_be_read_costs_one_stream(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    a = lab.master()
    b, c = lab.replica("b", a), lab.replica("c", a)
    a.append(b"one")
    level(a, b, c)
    connection, follower = next(iter(followers_of(a).items()))

    def take(limit: int) -> Any:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(follower.sender.feed, "take", take)
    a.append(b"two")
    until(lambda: connection.error is not None)
    level(a, b, c)


# ---- what is bounded, and closed -------------------------------------------------------------------------------


def test_commands_do_not_take_any_number_of_threads(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    a = lab.master(members="a", sync_replicas=0)
    gate, answered = threading.Event(), []
    before = set(threading.enumerate())

    class Connection:
        def reply(self, number: int, body: bytes) -> bool:
            answered.append(number)
            return True

    def wait(node: Node, values: dict[str, Any]) -> dict[str, Any]:
        assert gate.wait(60)
        return {}

    monkeypatch.setattr("pyreplog.ha.commands._run_command", wait)
    try:
        for number in range(200):
            a.command(Connection(), number, ha.protocol.messages.Command(b'{"command": "status"}'))  # type: ignore[arg-type]

        def working() -> list[threading.Thread]:
            return [thread for thread in set(threading.enumerate()) - before if thread.name == "pyreplog-command"]

        until(lambda: len(working()) > 1)  # each thread that takes a job starts the next one
        assert len(working()) <= 16
    finally:
        gate.set()
    until(lambda: sorted(answered) == list(range(200)))


def test_closed_peers_are_not_connected_to_again(lab: Lab) -> None:
    a = lab.master(members="ab", sync_replicas=0)
    a.learn_peers({"b": "127.0.0.1:1"})
    peers_of(a).close()
    answers: list[Any] = []
    peers_of(a).ask("b", prepare(a, "a", 1), answers.append)
    assert isinstance(answers[0], ReplogError)
    assert not channels_of(a)


def test_malformed_addresses_are_not_learned(lab: Lab) -> None:
    a = lab.master(members="a", sync_replicas=0)  # a node that asks no others by itself
    a.learn_peers({"b": "127.0.0.1:1", "c": "127.0.0.1:1"})
    for name in "bc":
        peers_of(a).ask(name, prepare(a, "a", 1), lambda answer: None)
    channels = dict(channels_of(a))
    with pytest.raises(InvalidArgumentError, match="host:port"):
        a.learn_peers({"b": "127.0.0.1:2", "c": "nowhere"})
    assert channels_of(a) == channels
    assert peers_of(a).addresses == {"b": "127.0.0.1:1", "c": "127.0.0.1:1"}


@pytest.mark.parametrize("nowhere", ["nowhere", "c:", ":1", "c:0", "c:65536", "c:\u00b2"])
def test_a_node_with_a_malformed_address_is_not_opened(lab: Lab, nowhere: str) -> None:
    """Otherwise the node would promise a candidate and then answer with an error."""
    with pytest.raises(InvalidArgumentError, match="host:port"):
        lab.master(members="abc", sync_replicas=0, peers={"c": nowhere})
    lab.master(members="abc", sync_replicas=0)  # the first node has left nothing open


def test_secrets_that_differ_are_named(lab: Lab) -> None:
    a = lab.master(members="ab", sync_replicas=0, secret=b"one secret of sixteen bytes")
    b = lab.replica("b", a, secret=b"another secret of sixteen")
    until(lambda: "secret" in b.stats()["trouble"])
