"""The machines of a partition over real logs: leaders change, brokers are killed, fetches are lost or come late.

What the leader has acknowledged stays, at its offset, in each log that an ISR names, and all logs become equal.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from pyreplog.partition.protocol.effects import (
    AlterIsr,
    AppendLeaderEpoch,
    AppendRecords,
    FollowingEffect,
    HighWatermarkAdvanced,
    LeadershipLost,
    LeadingEffect,
    LoadState,
    ReadRecords,
    ResetLog,
    SendFetch,
    SendFetchResponse,
    ShowHighWatermark,
    TrimLog,
    TruncateLog,
)
from pyreplog.partition.protocol.election import elect
from pyreplog.partition.protocol.error_codes import ACKS_ALL, ErrorCode
from pyreplog.partition.protocol.following import FollowingReplica
from pyreplog.partition.protocol.leading import LeadingReplica, ReplicaConfig
from pyreplog.partition.protocol.messages import Fetch, FetchRefused, FetchResponse
from pyreplog.partition.protocol.partition_state import BrokerRegistration, Member, PartitionState, is_lost
from pyreplog.partition.store.partition_log import LogSlice
from pyreplog.stream.log_position import LogPosition
from tests.ha.streams import assert_same_files, kill

from .partition_logs import open_replica

NAMES = "abc"
LAG_US = 2_000
STEPS = 1_500
FETCH_BYTES = (1, 500, 20_000, 1 << 20)


class Partition:
    """Three replicas in one directory each. The metadata store answers at once; messages wait in `inbox`."""

    def __init__(self, path: Path, rng: Random, *, requires_sync: bool) -> None:
        self.rng, self.config = rng, ReplicaConfig(requires_sync=requires_sync, lag_us=LAG_US)
        self.now_us, self.version = 0, 1
        self.brokers = {name: BrokerRegistration(1) for name in NAMES}
        self.state = PartitionState(tuple(NAMES), tuple(Member(name, 1) for name in NAMES), min_isr=2)
        self.inbox: list[Callable[[], None]] = []
        self.produced = 0
        self.acknowledged: dict[int, bytes] = {}
        self.replicas = {name: Replica(self, name, path / name) for name in NAMES}
        self.elect()

    def elect(self) -> None:
        after = elect(self.state, self.brokers, requires_sync=self.config.requires_sync)
        if after is not None:
            self.set(after)

    def set(self, state: PartitionState) -> None:
        self.version, self.state = self.version + 1, state
        for replica in self.replicas.values():
            self.inbox.append(replica.refresh)

    def step(self) -> None:
        rng = self.rng
        self.now_us += rng.randrange(20)
        action = rng.random()
        replica = self.replicas[rng.choice(NAMES)]
        if action < 0.65 and self.inbox:
            deliver = self.inbox.pop(rng.randrange(len(self.inbox)))
            if rng.random() < 0.95:
                deliver()
        elif action < 0.8:
            replica.produce()
        elif action < 0.88:
            replica.sync()
        elif action < 0.94:
            replica.wait()
        elif action < 0.965:
            replica.refresh()
        elif action < 0.98:
            replica.trim()
        elif action < 0.99:
            self.move()
        else:
            replica.restart()

    def move(self) -> None:
        """Another member of the ISR leads, though the leader may not know it."""
        others = [
            member.broker
            for member in self.state.isr
            if member.broker != self.state.leader and not is_lost(member, self.brokers)
        ]
        if others:
            self.set(self.state.led_by(self.rng.choice(others)))

    def settle(self) -> None:
        """Nothing is lost or late any more, until all have all."""
        for _ in range(200):
            logs = [replica.log for replica in self.replicas.values()]
            marks = {(log.end_mark, log.high_watermark == log.end_mark) for log in logs}
            if len(marks) == 1 and len(self.state.isr) == len(NAMES) and all(marks.pop()):
                return
            self.now_us += 20
            self.elect()
            for replica in self.replicas.values():
                replica.refresh()
                replica.sync()
                replica.wait()
            for _ in range(4):  # a fetch, its answer, and what follows from it
                waiting, self.inbox = self.inbox, []
                for deliver in waiting:
                    deliver()
        raise AssertionError(f"it does not settle: {self.state}, {[*self.replicas.values()]}")


class Replica:
    """A broker's replica. life: of its process; what was sent to an earlier one does not arrive."""

    def __init__(self, partition: Partition, name: str, path: Path) -> None:
        self.partition, self.name, self.path = partition, name, path
        self.life = 0
        self.log = open_replica(path)
        self._begin()

    def __repr__(self) -> str:
        return f"{self.name}: {self.log!r} {self.log.ends}"

    def _begin(self) -> None:
        self.member = Member(self.name, self.partition.brokers[self.name].incarnation)
        self.leading: LeadingReplica | None = None
        self.following = FollowingReplica(self.member, self.log.replica_log, self.log.high_watermark)
        self.version = 0
        self._sent: Fetch | None = None
        self._awaited: list[tuple[LogPosition, int, bytes]] = []  # end, last offset and value of a produce

    def restart(self) -> None:
        """It is killed, and starts again: what it had is in the page cache."""
        kill(self.log)
        partition = self.partition
        self.life += 1
        before = partition.brokers[self.name]
        partition.brokers = {**partition.brokers, self.name: BrokerRegistration(before.incarnation + 1)}
        self.log = open_replica(self.path)
        self._begin()
        for replica in partition.replicas.values():
            if replica.leading is not None:
                replica.perform(replica.leading.brokers_changed(partition.brokers, partition.now_us))
        partition.elect()

    # ---- what it learns -------------------------------------------------------------------------------------

    def refresh(self) -> None:
        """Read the partition's key."""
        partition = self.partition
        version, state = partition.version, partition.state
        if version <= self.version:
            return
        self.version = version
        if self.leading is not None:
            self.perform(self.leading.state_changed(version, state, partition.now_us))
        if self.leading is not None:
            return
        if state.leader != self.name:
            if state.leader:
                self.perform(self.following.follow(state.leader, state.epoch))
            else:
                self.following.stop()
        elif state.leading_member != self.member or state.epoch <= self.log.history.last:
            self.following.stop()
            partition.set(state.resigned())
            partition.elect()
        else:
            self._lead(version, state)

    def _lead(self, version: int, state: PartitionState) -> None:
        self.following.stop()
        partition = self.partition
        self.leading = LeadingReplica(
            self.member, version, state, self.log.replica_log, self.following.high_watermark, partition.config,
            partition.brokers, partition.now_us,
        )  # fmt: skip
        self.perform(self.leading.begin())

    def _deposed(self) -> None:
        assert self.leading is not None
        high_watermark, self.leading, self._sent, self._awaited = self.leading.high_watermark, None, None, []
        self.log.stop_leading()
        self.following = FollowingReplica(
            self.member, self.log.replica_log, high_watermark, self.following.fetch_number
        )  # fmt: skip

    # ---- effects --------------------------------------------------------------------------------------------

    def perform(self, effects: list[LeadingEffect] | list[FollowingEffect]) -> None:
        for effect in effects:
            self._perform(effect)

    def _perform(self, effect: LeadingEffect | FollowingEffect) -> None:
        log, partition, leading, following = self.log, self.partition, self.leading, self.following
        match effect:
            case AppendLeaderEpoch(epoch):
                log.lead(epoch)
                self._appended()
            case AlterIsr(version, state):
                self._alter(version, state)
            case LoadState():
                self.version = min(self.version, partition.version - 1)
                self.refresh()
            case HighWatermarkAdvanced(high_watermark):
                log.show_high_watermark(high_watermark)
                self._acknowledge()
            case LeadershipLost():
                self._deposed()
            case SendFetchResponse(fetch, response):
                self._respond(fetch, response)
            case ReadRecords(fetch) if leading is None:  # an effect before this one told it so
                self._respond(fetch, FetchRefused(fetch.number, ErrorCode.NOT_LEADER_OR_FOLLOWER))
            case ReadRecords(fetch):
                part = log.read_frames(fetch.position, partition.rng.choice(FETCH_BYTES))
                part = LogSlice(part.position, part.end, [(at, bytes(body)) for at, body in part.frames])
                self._respond(fetch, leading.response(fetch, part.end, part))
            case SendFetch(leader, fetch):
                self._sent = fetch
                self._send(leader, lambda target: target.fetched(fetch))
            case TruncateLog(to):
                log.truncate_to(to)
                self._truncated()
            case ResetLog(start, history):
                log.reset(start, history)
                self._truncated()
            case AppendRecords(fetched):
                assert isinstance(fetched.records, LogSlice)
                ends = log.append_fetched(fetched.records)
                assert ends.end == fetched.end
                self.perform(following.appended(*ends))
            case ShowHighWatermark(high_watermark):
                log.show_high_watermark(high_watermark)
            case TrimLog(start):
                following.trimmed(log.trim_to(start))

    def _appended(self) -> None:
        if self.leading is not None:
            self.perform(self.leading.appended(*self.log.ends, self.partition.now_us))

    def _truncated(self) -> None:
        log = self.log.replica_log
        assert log.history == self.log.history
        self.perform(self.following.truncated(log.start, log.end, log.synced))

    def _alter(self, version: int, state: PartitionState) -> None:
        partition, leading = self.partition, self.leading
        assert leading is not None
        if partition.version == version:
            partition.set(state)
            self.version = partition.version
            self.perform(leading.altered(partition.version, partition.now_us))
        else:
            self.perform(leading.conflicted())

    def _send(self, name: str, act: Callable[[Replica], object]) -> None:
        target = self.partition.replicas[name]
        life = target.life

        def deliver() -> None:
            if target.life == life:
                act(target)

        self.partition.inbox.append(deliver)

    # ---- requests -------------------------------------------------------------------------------------------

    def fetched(self, fetch: Fetch) -> None:
        if self.leading is None:
            self._respond(fetch, FetchRefused(fetch.number, ErrorCode.NOT_LEADER_OR_FOLLOWER))
        else:
            self.perform(self.leading.fetched(fetch, self.partition.now_us))

    def _respond(self, fetch: Fetch, response: FetchResponse) -> None:
        self._send(fetch.member.broker, lambda follower: follower.answered(fetch, response))

    def answered(self, fetch: Fetch, response: FetchResponse) -> None:
        if self.leading is None and fetch is self._sent:
            self.perform(self.following.answered(response))

    def wait(self) -> None:
        """Time passes: a fetch is over, a follower is too far behind."""
        if self.leading is not None:
            self.perform(self.leading.check_isr(self.partition.now_us))
        elif self._sent is not None:
            self.perform(self.following.timed_out(self._sent.number))

    def produce(self) -> None:
        if self.leading is None or self.leading.admit(ACKS_ALL) is not ErrorCode.NONE:
            return
        rng = self.partition.rng
        self.partition.produced += 1
        value = b"%d," % self.partition.produced + rng.randbytes(rng.choice((0, 7, 300, 1500, 9000)))
        if rng.random() < 0.5:
            appended = self.log.append_messages([value])
        else:
            appended = self.log.append_records([value], [rng.choice((1, 2, 30))])
        self._awaited.append((appended.end, appended.offsets.stop - 1, value))
        self._appended()

    def trim(self) -> None:
        if self.leading is not None:
            self.leading.trimmed(self.log.trim_to(self.leading.high_watermark))

    def sync(self) -> None:
        self.log.sync()
        if self.leading is not None:
            self._appended()
        else:
            self.perform(self.following.synced(self.log.ends.synced))

    def _acknowledge(self) -> None:
        leading = self.leading
        assert leading is not None
        waiting = []
        for end, offset, value in self._awaited:
            if (code := leading.check_enough_replicas_reach_offset(end)) is None:
                waiting.append((end, offset, value))
            elif code is ErrorCode.NONE:
                self.partition.acknowledged[offset] = value
        self._awaited = waiting


@pytest.mark.parametrize("requires_sync", [False, True], ids=["received", "synced"])
def test_acknowledged_records_survive_and_all_logs_become_equal(tmp_path: Path, seed: int, requires_sync: bool) -> None:
    partition = Partition(tmp_path, Random(seed), requires_sync=requires_sync)
    for _ in range(STEPS):
        partition.step()
    partition.settle()
    logs = sorted((replica.log for replica in partition.replicas.values()), key=lambda log: log.start, reverse=True)
    starts = logs[0].history.starts
    for log in logs[1:]:  # one that led may have trimmed more than the present leader
        assert_same_files(logs[0], log)
        assert log.history.starts[-len(starts) :] == starts
    assert partition.acknowledged, "nothing was acknowledged"
    held = {record.entry: record.value for batch in logs[0].read() for record in batch}
    kept = {offset: value for offset, value in partition.acknowledged.items() if offset >= logs[0].start}
    assert {offset: held.get(offset) for offset in kept} == kept
    for log in logs:
        log.close()
