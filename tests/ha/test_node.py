"""Nodes of a group, over TCP on the loopback interface."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

import pyreplog
from pyreplog.errors import (
    ChangeUnderWayError,
    ClosedError,
    ConfigError,
    GroupLogError,
    HigherTermError,
    InvalidArgumentError,
    LockedError,
    NotConnectedError,
    NotEnoughReplicasError,
    NotMasterError,
    OutcomeUnknownError,
    PromotionRefusedError,
    ReplicaError,
    ReplicationError,
    ReplicationTimeoutError,
    TruncatedError,
)
from pyreplog.ha.peers import OnAnswer
from pyreplog.ha.protocol.members import Quorum
from pyreplog.ha.protocol.messages import Message, Prepare
from pyreplog.log import checkpoint
from pyreplog.log.files import RealFiles
from tests.ha.inside import context_of, master_of, peers_of, server_of
from tests.ha.nodes import Lab, assert_same_files, level, until, values


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    with ExitStack() as stack:
        yield Lab(tmp_path, stack)


def lines(count: int, first: int = 0) -> list[bytes]:
    return [b"line %d " % (first + i) + b"." * 900 for i in range(count)]


@pytest.mark.parametrize("durability", ["appended", "synced"])
@pytest.mark.parametrize("sync_replicas", [0, 1, 2])
def test_acknowledged_entries_are_on_the_required_number_of_replicas(
    lab: Lab, durability: str, sync_replicas: int
) -> None:
    master = lab.master(sync_replicas=sync_replicas, durability=durability)
    replicas = [lab.replica(name, master, durability=durability) for name in "bc"]
    written = lines(200)
    for value in written[:20]:
        entry = master.append(value)
        holding = [replica for replica in replicas if replica.stats()["received"]["entry"] > entry]
        assert len(holding) >= sync_replicas
    assert master.append_batch(written[20:]) == range(20, 200)
    assert values(master) == written
    level(master, *replicas)
    for replica in replicas:
        assert values(replica) == written
        assert_same_files(master, replica)
        if durability == "synced":
            until(lambda replica=replica: replica.stats()["synced"]["entry"] == 200)  # type: ignore[misc]


def test_readers_do_not_see_uncommitted_records(lab: Lab) -> None:
    master = lab.master(ack_timeout_ms=50)
    with pytest.raises(ReplicationTimeoutError, match="was not committed within 50 ms"):
        master.append(b"alone")
    assert values(master) == []
    assert master.log.end == 0
    replica = lab.replica("b", master)
    until(lambda: master.log.end == 1)
    level(master, replica)
    assert values(master) == values(replica) == [b"alone"]


def test_submitted_appends_time_out_by_themselves(lab: Lab) -> None:
    master = lab.master(ack_timeout_ms=30)
    futures = [master.submit(b"%d" % i) for i in range(10)]
    for future in futures:
        assert isinstance(future.exception(60), ReplicationTimeoutError)
    lab.replica("b", master)
    until(lambda: master.log.end == 10)


def test_threads_and_tasks_wait_together(lab: Lab) -> None:
    master = lab.master()
    lab.replica("b", master)
    numbers: list[int] = []

    def work() -> None:
        numbers.extend(master.append(b"thread") for _ in range(50))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    async def tasks() -> list[int]:
        return await asyncio.gather(*(append_one() for _ in range(300)))

    async def append_one() -> int:
        return await master.submit(b"task")

    numbers += asyncio.run(tasks())
    assert sorted(numbers) == list(range(700))


def test_an_event_loop_is_not_blocked(lab: Lab) -> None:
    master = lab.master()
    lab.replica("b", master)

    async def task() -> None:
        with pytest.raises(InvalidArgumentError, match="use submit, and await its future"):
            master.append(b"blocks")
        await master.submit(b"does not")

    asyncio.run(task())


def test_min_in_sync_refuses_before_anything_is_written(lab: Lab) -> None:
    master = lab.master(group={"min_in_sync": 1})
    with pytest.raises(NotEnoughReplicasError, match="found none"):
        master.append(b"refused")
    assert master.log.tail.end_entry == 0
    replica = lab.replica("b", master)
    until(lambda: master.replication().replicas and master.replication().replicas[0].in_sync)
    assert master.append(b"taken") == 0
    lab.close(replica)
    until(lambda: master.replication().replicas[0].state == "gone")
    with pytest.raises(NotEnoughReplicasError):
        master.append(b"refused")


def test_a_master_goes_on_alone_and_comes_back(lab: Lab) -> None:
    master = lab.master(sync_replicas=2, durability="synced", group={"fallback_after_ms": 100})
    assert master.append(b"alone") == 0
    stats = master.replication()
    assert stats.asynchronous and stats.fallbacks == 1
    replicas = [lab.replica(name, master, durability="synced") for name in "bc"]
    until(lambda: not master.replication().asynchronous)
    master_of(master).group.fallback.limit_us = None  # no limit from here on, however long a sync takes
    assert master.append(b"together") == 1
    assert all(replica.stats()["synced"]["entry"] >= 2 for replica in replicas)


def test_promotion_and_the_return_of_the_old_master(lab: Lab) -> None:
    old = lab.master()
    b, c = lab.replica("b", old), lab.replica("c", old)
    old.append_batch(lines(100))
    level(old, b, c)
    lab.close(old)
    assert b.promote() == ""
    assert b.role == "master" and str(b.term) == "2 of b"
    c.follow(b.address)
    b.append_batch(lines(100, 100))
    again = lab.replica("a", b)
    level(b, c, again)
    assert values(again) == values(c) == values(b) == lines(200)
    assert_same_files(b, again)
    assert_same_files(b, c)


def test_a_deposed_master_acknowledges_nothing_and_is_cut(lab: Lab) -> None:
    """The master was cut off, goes on appending, and finds another master when it is back."""
    old = lab.master(sync_replicas=1, ack_timeout_ms=200)
    b, c = lab.replica("b", old), lab.replica("c", old)
    old.submit_batch(lines(10))  # without waiting: if the replicas take long to join, it is committed later
    until(lambda: old.log.end == 10)
    level(old, b, c)
    b.follow("127.0.0.1:1")  # both leave for a port without a node, so that the old master has no replicas
    c.follow("127.0.0.1:1")
    until(lambda: all(replica.state == "gone" for replica in old.replication().replicas))
    with pytest.raises(ReplicationTimeoutError):
        old.append(b"never acknowledged")
    for cut_off in (b, c):
        cut_off.learn_peers({"a": "127.0.0.1:1"})
    b.promote()
    with pytest.raises((HigherTermError, NotMasterError, OutcomeUnknownError, ClosedError)):
        old.append(b"never acknowledged, too")
    until(lambda: old.role == "replica")
    c.follow(b.address)
    old.follow(b.address)
    b.append(b"of the new term")
    level(b, old, c)
    assert values(old) == values(b) == [*lines(10), b"of the new term"]
    assert_same_files(b, old)
    aside = list((old.log.path / "aside").rglob("*.cut"))
    assert b"never acknowledged" in b"".join(path.read_bytes() for path in aside)


def test_a_member_with_fewer_records_is_not_elected(lab: Lab) -> None:
    old = lab.master(sync_replicas=1)
    b = lab.replica("b", old)
    old.append(b"first")
    c = lab.replica("c", old)
    level(old, b, c)
    lab.close(c)
    old.append(b"second")
    lab.close(old)
    c = lab.replica("c", None)
    with pytest.raises(PromotionRefusedError, match="promote b"):
        c.promote()
    assert b.promote() == ""
    c.follow(b.address)  # readers of b see its records once a replica has the first record of its term
    until(lambda: values(b) == [b"first", b"second"])


def test_a_promotion_without_enough_members_takes_force(lab: Lab) -> None:
    old = lab.master(members="abcde", sync_replicas=1)
    b = lab.replica("b", old, election_timeout_ms=200)
    old.append(b"one")
    level(old, b)
    lab.close(old)
    with pytest.raises(PromotionRefusedError, match="more promises are needed"):
        b.promote()
    assert b.role == "replica"
    assert "promises are needed" in b.promote(force=True)
    assert b.role == "master"


def test_force_does_not_wait_for_unreachable_members(lab: Lab) -> None:
    """Members c, d and e have no known address, and the address of a refuses connections."""
    old = lab.master(members="abcde", sync_replicas=1)
    b = lab.replica("b", old, election_timeout_ms=3_600_000)
    old.append(b"one")
    level(old, b)
    lab.close(old)
    assert "promises are needed" in b.promote(force=True)


def test_force_asks_a_member_again_whose_connection_was_just_lost(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """The connection to the member had ended, and was about to be made again: the member can still promise."""
    old = lab.master()
    b, c = lab.replica("b", old), lab.replica("c", old)
    old.append(b"one")
    level(old, b, c)
    lab.close(old)
    really_ask, lost = peers_of(c).ask, list[str]()

    def ask(member: str, question: Message, on_answer: OnAnswer) -> None:
        if member == "b" and not lost:
            lost.append(member)
            really_ask(member, question, lambda _: on_answer(NotConnectedError("the connection was just lost")))
        else:
            really_ask(member, question, on_answer)

    monkeypatch.setattr(peers_of(c), "ask", ask)
    assert c.promote(force=True) == ""
    assert lost


def test_a_member_that_changes_its_role_is_asked_again(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """While its role changes, it closes the connection of a candidate, in the trial and after it."""
    old = lab.master()
    b, c = lab.replica("b", old), lab.replica("c", old)
    old.append(b"one")
    level(old, b, c)
    lab.close(old)  # c needs the promise of b
    vote, unanswered = b.vote, [True, False]

    def changes_its_role(prepare: Prepare) -> Message:
        if bool(prepare.trial) in unanswered:
            unanswered.remove(bool(prepare.trial))
            raise ReplicationError("b is opening its log, or changes its role: ask again")
        return vote(prepare)

    monkeypatch.setattr(b, "vote", changes_its_role)
    assert c.promote() == ""
    assert (c.role, unanswered) == ("master", [])


def test_a_replica_looks_for_the_master_that_it_promised(lab: Lab) -> None:
    """It knows the new master's address only from the addresses of its peers."""
    old = lab.master()
    b, c = lab.replica("b", old), lab.replica("c", old)
    old.append(b"one")
    level(old, b, c)
    lab.close(old)
    b.promote()
    b.append(b"two")
    level(b, c)


def test_a_replica_serves_observers(lab: Lab) -> None:
    master = lab.master(members="ab")
    middle = lab.replica("b", master)
    master.append_batch(lines(100))
    level(master, middle)
    last = lab.replica("x", middle, observer=True)
    level(master, last)
    master.append_batch(lines(100, 100))
    level(master, middle, last)
    assert values(last) == lines(200)
    assert_same_files(master, last)
    refused = lab.replica("y", middle)
    until(lambda: "no master" in refused.stats()["trouble"])


def test_members_are_changed_while_a_node_runs(lab: Lab) -> None:
    master = lab.master(members="ab")
    b = lab.replica("b", master)
    master.append(b"one")
    stranger = lab.replica("d", master)
    until(lambda: "add it" in stranger.stats()["trouble"])
    master.add_member("d")
    until(lambda: stranger.stats()["streaming"])
    until(lambda: master.members is not None and master.members.former is None)
    master.set_sync_replicas(2)
    until(lambda: master.members is not None and master.members.former is None)
    entry = master.append(b"two")
    assert all(node.stats()["received"]["entry"] > entry for node in (b, stranger))
    master.set_sync_replicas(1)
    until(lambda: master.members is not None and master.members.former is None)
    master.remove_member("d")
    until(lambda: not stranger.stats()["streaming"])
    with pytest.raises(InvalidArgumentError, match="name: expected one of the members"):
        master.remove_member("z")


def test_a_member_that_is_gone_for_good_is_removed_by_force(lab: Lab) -> None:
    """One of two members is lost, and cannot agree to the change."""
    master = lab.master(members="ab")
    b = lab.replica("b", master)
    master.append(b"one")
    lab.close(b)
    master.remove_member("b")
    waiting = master.submit(b"two")
    with pytest.raises(ChangeUnderWayError, match="from a, b with 1 synchronous to a with 0"):
        master.remove_member("b")
    assert master.members is not None and master.members.former is not None and not waiting.done()
    master.remove_member("b", force=True)
    waiting.result(60)
    assert master.members.quorum == Quorum(("a",), 0) and master.members.former is None


def test_a_node_cannot_follow_itself(lab: Lab) -> None:
    """A master that followed itself would give up its role without a successor."""
    master = lab.master(sync_replicas=0, advertise="master.invalid:7001")
    for address in (f"127.0.0.1:{server_of(master).address[1]}", "master.invalid:7001"):
        with pytest.raises(InvalidArgumentError, match="cannot follow itself"):
            master.follow(address)
    assert master.role == "master" and master.append(b"one") == 0


def test_a_log_that_had_no_replicas_gets_some(lab: Lab) -> None:
    with pyreplog.open(lab.folder / "a", segment_bytes=64 << 10) as log:
        log.append_batch(lines(150))
    master = lab.master()
    replica = lab.replica("b", master)
    master.append(b"more")
    level(master, replica)
    assert values(replica) == [*lines(150), b"more"]


def test_a_master_goes_on_after_a_restart(lab: Lab) -> None:
    master = lab.master()
    replica = lab.replica("b", master)
    master.append(b"one")
    lab.close(master)
    master = lab.master()
    assert str(master.term) == "1 of a"
    replica.follow(master.address)
    assert master.append(b"two") == 1


def test_the_directory_of_a_replica_is_not_opened_as_a_log(lab: Lab) -> None:
    master = lab.master()
    replica = lab.replica("b", master)
    master.append(b"one")
    with pytest.raises(NotMasterError, match="its master is at"):
        replica.append(b"no")
    with pytest.raises(LockedError):
        pyreplog.ha.open_master(lab.folder / "a", name="a")
    lab.close(replica)
    with pytest.raises(ReplicaError, match="promote"):
        pyreplog.open(lab.folder / "b")
    lab.close(master)
    with pytest.raises(GroupLogError, match="ha master"):
        pyreplog.open(lab.folder / "a")
    with pyreplog.open(lab.folder / "a", "r") as log:
        assert [record.value for batch in log.read() for record in batch] == [b"one"]
    with pytest.raises(ReplicaError):
        lab.master("b")


def test_another_log_is_refused_for_good(lab: Lab) -> None:
    master = lab.master(members="ab")
    other = lab.master("z", members="z", sync_replicas=0)
    other.append(b"of another log")
    lab.close(other)
    stranger = lab.replica("z", None)
    master.add_member("z")
    stranger.follow(master.address)
    until(lambda: "another directory" in stranger.stats()["trouble"])
    assert stranger.log.tail.end_entry == 1, "nothing of it was cut"


def test_follower_beyond_a_truncation_of_a_replica_raises(lab: Lab) -> None:
    old = lab.master(sync_replicas=0)
    b, c = lab.replica("b", old), lab.replica("c", old)
    old.append_batch(lines(5))
    level(old, b, c)
    c.follow("127.0.0.1:1")
    until(lambda: any(r.name == "c" and r.state == "gone" for r in old.replication().replicas))
    old.append(b"only on a and b")
    level(old, b)
    following = iter(b.log.follow(start=5, timeout=60))
    assert next(following).value == b"only on a and b"
    assert "promote" in c.promote(force=True), "others hold more, and it says so"
    b.follow(c.address)
    with pytest.raises((TruncatedError, ClosedError)):
        next(following)


def test_the_throttle_counts_body_bytes(lab: Lab) -> None:
    master = lab.master(sync_replicas=0, throttle_bytes_per_s=2_000_000)
    master.append_batch(lines(500))
    began = context_of(master).now_us
    replica = lab.replica("b", master)
    level(master, replica)
    assert context_of(master).now_us - began >= 100_000  # 450 kB at 2 MB/s, minus the burst of a tenth of a second


def test_a_node_refuses_inconsistent_settings() -> None:
    with pytest.raises(ConfigError, match='ack="synced" needs'):
        pyreplog.ha.NodeConfig(name="a", group=pyreplog.ha.GroupConfig(ack="synced"))
    with pytest.raises(ConfigError, match="name"):
        pyreplog.ha.NodeConfig(name="")


def cut_power(directory: Path) -> None:
    """Leave files that say neither that the log was closed nor that the machine has not restarted."""
    files, last = RealFiles(), checkpoint.load(directory)
    assert last is not None
    file = checkpoint.CheckpointFile(directory, files, last)
    file.advance(position=last.position, entry=last.entry, clean=False)
    file.close()
    (directory / "tail").write_bytes(bytes(4096))


@pytest.mark.parametrize(
    ("before", "now", "term"),
    [("appended", "synced", "2 of a"), ("synced", "appended", "1 of a"), ("synced", "synced", "1 of a")],
)
def test_a_master_that_may_have_lost_sent_records_has_to_be_elected(lab: Lab, before: str, now: str, term: str) -> None:
    """The durability with which the log was written decides, not that with which it is opened. One of two members
    elects itself."""
    master = lab.master(members="ab", durability=before)
    lab.close(master)
    cut_power(lab.folder / "a")
    assert str(lab.master(members="ab", durability=now).term) == term
