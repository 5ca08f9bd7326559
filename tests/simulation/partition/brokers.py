"""Brokers: each runs the shipped leader or follower over its disk, and may crash between any two effects."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from pyreplog.partition.protocol.effects import (
    AdvanceLogStart,
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
from pyreplog.partition.protocol.epochs import LeaderEpoch
from pyreplog.partition.protocol.error_codes import ACKS_ALL, ErrorCode
from pyreplog.partition.protocol.following import FollowingReplica
from pyreplog.partition.protocol.leading import LeadingReplica
from pyreplog.partition.protocol.messages import Fetch, FetchRefused, FetchResponse
from pyreplog.partition.protocol.partition_state import Brokers, Member, PartitionState
from pyreplog.partition.protocol.producers import ProducerBatch, SequenceCheck
from pyreplog.partition.protocol.transactions import TransactionMarker
from pyreplog.stream.log_position import LogPosition

from .clocks import EXPIRATION_US
from .disk import RECORD_BYTES, Disk, Record, records_of

if TYPE_CHECKING:
    from .schedule import Schedule


def _ignore(code: ErrorCode) -> None:
    pass


FETCH_RECORDS = 4
FETCH_TIMEOUT_S = 0.03
FETCH_WAIT_S = 0.015
BACKOFF_S = 0.004
EXPIRATION_CHECK_S = 0.03


class Produce(NamedTuple):
    """A produce with acks=-1 that waits."""

    value: str
    required: LogPosition
    reply: Callable[[ErrorCode], None]


class Broker:
    """One broker. life: of its process; what belongs to an earlier one does not happen."""

    def __init__(self, schedule: Schedule, name: str) -> None:
        self.schedule, self.world, self.plan, self.name = schedule, schedule.world, schedule.plan, name
        self.disk, self.clock = Disk(name), schedule.clocks.clock(name)
        self.is_up = self.is_stopping = False
        self.life = 0
        self.stopped_until = 0.0
        self.following = FollowingReplica(self.member, self.disk.log, self.disk.end)
        self.leading: LeadingReplica | None = None
        self.version, self.state = 0, schedule.first_state
        self.registered: Brokers = {}
        self._parked: dict[Member, Fetch] = {}
        self._produces: list[Produce] = []
        self._is_refreshing = False
        self._sent: Fetch | None = None
        self.read_to = 0  # records that a reader of committed data has seen
        self.answer_epoch: LeaderEpoch | None = None  # of the answer that is being carried out

    def __repr__(self) -> str:
        return self.name

    @property
    def member(self) -> Member:
        return Member(self.name, self.disk.incarnation)

    @property
    def now_us(self) -> int:
        """Monotonic time of its machine: time-outs, and the lag of followers, are counted by it."""
        return self.clock.monotonic_us()

    @property
    def high_watermark(self) -> LogPosition:
        return self.following.high_watermark if self.leading is None else self.leading.high_watermark

    # ---- life -----------------------------------------------------------------------------------------------

    def start(self) -> None:
        if self.is_up:
            return
        disk = self.disk
        if not disk.is_clean:
            disk.incarnation += 1
        disk.is_clean, disk.is_whole = False, True
        disk.load()
        self.life += 1
        self.is_up, self.is_stopping = True, False
        self.leading, self.version, self.registered = None, 0, {}
        self._is_refreshing, self._sent = False, None
        self._parked, self._produces, self.read_to = {}, [], 0
        self.following = FollowingReplica(self.member, disk.log, disk.mark(max(disk.checkpoint, disk.start)))
        self.world.note(self.name, "starts as", self.member, "with", len(disk.records), "records")
        self._load()
        self._heartbeat()
        self._load_brokers()
        self._sync()
        self._check_isr()
        self._expire_producers()

    def crash(self, *, power: bool) -> None:
        if not self.is_up:
            return
        self.world.note(self.name, "loses power" if power else "is killed")
        self.is_up, self.disk.is_whole = False, False
        self.schedule.invariants.unclean_stops += 1
        if power:
            self.disk.cut_power(self.world.random.choice((0, 0, 1, 3)))
            self.clock.boot()

    def stop(self) -> None:
        """Hand over, and stop cleanly a little later."""
        if self.is_up and not self.is_stopping:
            self.is_stopping = True
            self._heartbeat_once()
            self.later(0.02 + 0.03 * self.world.random.random(), self._stop)

    def _stop(self) -> None:
        self.disk.sync()
        self.disk.checkpoint = records_of(self.high_watermark)
        self.disk.is_clean, self.is_up = True, False
        self.world.note(self.name, "stops cleanly")
        self.world.after(0.05 * self.world.random.random(), self.start)

    def later(self, seconds: float, call: Callable[..., Any], *args: Any) -> None:
        self.world.after(seconds, self.run, self.life, call, *args)

    def run(self, life: int, call: Callable[..., Any], *args: Any) -> None:
        """If this life goes on; when it does, if it is stopped."""
        if not self.is_up or life != self.life:
            return
        if self.stopped_until > self.world.now:
            self.world.at(self.stopped_until, self.run, life, call, *args)
        else:
            call(*args)

    # ---- metadata -------------------------------------------------------------------------------------------

    def _ask(self, do: Callable[[], Any], answer: Callable[[Any], None], unknown: Callable[[], None]) -> None:
        life = self.life
        self.schedule.store.request(
            self.name, do, lambda result: self.run(life, answer, result), lambda: self.run(life, unknown)
        )

    def _heartbeat_once(self) -> None:
        store, incarnation, is_stopping = self.schedule.store, self.disk.incarnation, self.is_stopping
        self._ask(
            lambda: store.heartbeat(self.name, incarnation, is_stopping=is_stopping), lambda _: None, lambda: None
        )

    def _heartbeat(self) -> None:
        self._heartbeat_once()
        self.later(0.01, self._heartbeat)

    def _load_brokers(self) -> None:
        store = self.schedule.store
        self._ask(lambda: dict(store.brokers), self._brokers_changed, lambda: None)
        self.later(0.05, self._load_brokers)

    def _load(self) -> None:
        store = self.schedule.store
        self._ask(
            lambda: (store.version, store.state), lambda loaded: self._loaded(*loaded),
            lambda: self.later(BACKOFF_S, self._load),
        )  # fmt: skip

    def _refresh(self) -> None:
        self._is_refreshing = False
        self._load()

    def watch_state(self, version: int, state: PartitionState) -> None:
        if self.is_up:
            self.schedule.network.send("", self.name, self.run, self.life, self._watched, version, state)

    def watch_brokers(self, brokers: Brokers) -> None:
        if self.is_up:
            self.schedule.network.send("", self.name, self.run, self.life, self._brokers_changed, brokers)

    def _brokers_changed(self, brokers: Brokers) -> None:
        self.registered = brokers
        if self.leading is not None:
            self.perform(self.leading.brokers_changed(brokers, self.now_us))

    def _loaded(self, version: int, state: PartitionState) -> None:
        self._state_changed(version, state)
        if not self._is_refreshing:  # watches may be lost
            self._is_refreshing = True
            self.later(0.02, self._refresh)

    def _watched(self, version: int, state: PartitionState) -> None:
        if self.version:
            self._state_changed(version, state)

    def _state_changed(self, version: int, state: PartitionState) -> None:
        if version <= self.version:
            return
        self.version, self.state = version, state
        if self.leading is not None:
            self.perform(self.leading.state_changed(version, state, self.now_us))
        if self.leading is None and self.is_up and version == self.version:
            self._take_role()

    def _take_role(self) -> None:
        state = self.state
        if state.leader != self.name:
            if state.leader and self.name in state.replicas:
                self.perform(self.following.follow(state.leader, state.epoch))
            else:
                self.following.stop()
        elif state.leading_member != self.member or state.epoch <= self.disk.log.history.last:
            self.following.stop()
            self._resign(self.version, state)
        else:
            self._lead()

    def _resign(self, version: int, state: PartitionState) -> None:
        if version != self.version:
            return
        store = self.schedule.store
        self._ask(
            lambda: store.compare_and_set(version, state.resigned(), self.name), lambda _: None,
            lambda: self._resign(version, state),
        )  # fmt: skip

    def _lead(self) -> None:
        self.following.stop()
        self.schedule.invariants.begins(self)
        self.leading = LeadingReplica(
            self.member, self.version, self.state, self.disk.log, self.following.high_watermark,
            self.schedule.config, self.registered, self.now_us,
        )  # fmt: skip
        self.schedule.invariants.leads(self, self.leading)
        self._parked, self._produces = {}, []
        self.perform(self.leading.begin())

    def _follow_again(self) -> None:
        """Its log is what it was as leader."""
        leading = self.leading
        assert leading is not None
        self.leading = self._sent = None
        self.following = FollowingReplica(
            self.member, self.disk.log, leading.high_watermark, self.following.fetch_number
        )  # fmt: skip
        for fetch in self._parked.values():
            self._answer(fetch, FetchRefused(fetch.number, ErrorCode.NOT_LEADER_OR_FOLLOWER))
        for produce in self._produces:
            produce.reply(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        self._parked, self._produces = {}, []

    # ---- effects --------------------------------------------------------------------------------------------

    def perform(self, effects: list[LeadingEffect] | list[FollowingEffect]) -> None:
        for effect in effects:
            if not self.is_up:
                return
            if not self.world.is_calm and self.world.chance(self.plan.crashes_between):
                self.crash(power=self.plan.power_cuts and self.world.chance(0.5))
                self.world.after(0.02 * self.world.random.random(), self.start)
                return
            self._perform(effect)
        if self.is_up:
            self.schedule.invariants.offsets(self)

    def _perform(self, effect: LeadingEffect | FollowingEffect) -> None:
        disk, leading, invariants = self.disk, self.leading, self.schedule.invariants
        match effect:
            case AppendLeaderEpoch(epoch):
                self._append(Record(epoch, ""))
            case AlterIsr(version, state):
                self._alter(version, state)
            case LoadState():
                self._load()
            case HighWatermarkAdvanced(high_watermark):
                assert leading is not None
                invariants.committed(self, high_watermark, leading)
                self._complete()
                self._serve()
            case LeadershipLost():
                self.world.note(self.name, "is deposed")
                self._follow_again()
            case SendFetchResponse(fetch, response):
                self._answer(fetch, response)
            case ReadRecords(fetch):
                self._read(fetch)
            case SendFetch(leader, fetch):
                self._fetch(leader, fetch)
            case TruncateLog(to):
                invariants.truncates(self, records_of(to))
                self.world.note(self.name, "truncates", len(disk.records), "records to", records_of(to))
                disk.cut(records_of(to))
                self.read_to = min(self.read_to, records_of(to))
                self.perform(self.following.truncated(disk.mark(disk.start), disk.end, disk.synced_end))
            case ResetLog(start):
                self._reset(records_of(start))
            case AppendRecords(fetched):
                for record in fetched.records:  # type: ignore[attr-defined]
                    invariants.appended(self, len(disk.records), record)
                    disk.append(record)
                self.perform(self.following.appended(disk.end, disk.synced_end))
            case ShowHighWatermark(high_watermark):
                invariants.shown(self, records_of(high_watermark))
            case TrimLog(start):
                disk.trim(records_of(start))
                self.following.trimmed(start)
            case AdvanceLogStart(offset):
                disk.delete_before(offset)

    def _reset(self, start: int) -> None:
        disk = self.disk
        self.schedule.invariants.resets += 1
        self.schedule.invariants.truncates(self, 0, start)
        self.world.note(self.name, "begins again at record", start)
        leader = self.schedule.by_name[self.following.leader]
        disk.reset(leader.disk.records[:start])
        self.perform(self.following.truncated(disk.mark(disk.start), disk.end, disk.synced_end))

    # ---- as leader ------------------------------------------------------------------------------------------

    def produce(
        self, value: str, acks: int, batch: ProducerBatch | None = None, reply: Callable[[ErrorCode], None] = _ignore,
        transaction: int = 0, verification: int | None = None,
    ) -> None:  # fmt: skip
        """As a client asks whoever it takes for the leader. A duplicate waits, too, until the first one is committed."""
        leading, disk = self.leading, self.disk
        code = ErrorCode.NOT_LEADER_OR_FOLLOWER if leading is None else leading.admit(acks)
        checked = SequenceCheck(code)
        if code is ErrorCode.NONE and batch is not None:
            checked = disk.producers.check(batch)
        if leading is not None and checked.duplicate is not None:
            required = disk.mark(disk.records_up_to(checked.duplicate.last_offset))
            self._produces.append(Produce(value, required, reply))
            self._complete()
        elif leading is None or checked.code is not ErrorCode.NONE:
            reply(checked.code)
        elif (
            batch is not None
            and transaction
            and (code := disk.transactions.check(batch.producer_id, batch.epoch, verification))
        ):
            if verification is None:
                verification = disk.transactions.begin_verification(batch.producer_id)
                produce = partial(self._verified, value, batch, reply, transaction, verification)
                self.schedule.coordinator.verify(self, batch, produce)
            else:
                reply(code)
        else:
            if acks == ACKS_ALL:
                self._await(value, reply)
            self._append(Record(leading.epoch, value, batch, transaction))

    def _verified(
        self, value: str, batch: ProducerBatch, reply: Callable[[ErrorCode], None], transaction: int, verification: int,
        is_ongoing: bool,
    ) -> None:  # fmt: skip
        """It may have been deposed meanwhile, have followed, and lead again."""
        if is_ongoing:
            self.produce(value, ACKS_ALL, batch, reply, transaction, verification)
        else:
            reply(ErrorCode.INVALID_TXN_STATE)

    def write_marker(self, marker: TransactionMarker, transaction: int, reply: Callable[[ErrorCode], None]) -> None:
        """As a transaction coordinator asks."""
        leading, transactions = self.leading, self.disk.transactions
        code = ErrorCode.NOT_LEADER_OR_FOLLOWER if leading is None else leading.admit(ACKS_ALL)
        code = code or transactions.check_marker(marker, self.plan.transaction_version)
        if leading is None or code is not ErrorCode.NONE:
            reply(code)
        else:
            value = f"{'commit' if marker.is_commit else 'abort'} {marker.producer_id}.{transaction}"
            self._await(value, reply)
            self._append(Record(leading.epoch, value, None, transaction, marker))

    def _await(self, value: str, reply: Callable[[ErrorCode], None]) -> None:
        """Reply when the record that is appended next is committed."""
        end = self.disk.end
        self._produces.append(Produce(value, LogPosition(end.position + RECORD_BYTES, end.entry + 1), reply))

    def _append(self, record: Record) -> None:
        leading, disk = self.leading, self.disk
        assert leading is not None
        last_us = disk.records[-1].time_us if disk.records else 0
        record = record._replace(time_us=max(self.clock.now_us(), last_us))  # as append times of a log
        self.schedule.invariants.appended(self, len(disk.records), record)
        disk.append(record)
        self.perform(leading.appended(disk.end, disk.synced_end, self.now_us))
        self._serve()

    def _complete(self) -> None:
        leading, waiting = self.leading, []
        assert leading is not None
        for produce in self._produces:
            code = leading.check_enough_replicas_reach_offset(produce.required)
            if code is None:
                waiting.append(produce)
            else:
                if code is ErrorCode.NONE:
                    at = records_of(produce.required) - 1
                    self.schedule.invariants.acknowledges(self, at, produce.value, leading)
                produce.reply(code)
        self._produces = waiting

    def _alter(self, version: int, state: PartitionState) -> None:
        leading, store = self.leading, self.schedule.store
        assert leading is not None
        self.schedule.invariants.proposes(self, leading, state)

        def answered(result: int) -> None:
            if self.leading is leading:
                if result:
                    self.version, self.state = max((self.version, self.state), (result, state), key=lambda at: at[0])
                self.perform(leading.altered(result, self.now_us) if result else leading.conflicted())

        def unknown() -> None:
            if self.leading is leading:
                self.perform(leading.alter_unknown())

        self._ask(lambda: store.compare_and_set(version, state, self.name), answered, unknown)

    def _check_isr(self) -> None:
        if self.leading is not None:
            self.perform(self.leading.check_isr(self.now_us))
        self.later(self.plan.lag_limit_s / 2, self._check_isr)

    def _expire_producers(self) -> None:
        self.disk.expire(self.clock.now_us() - EXPIRATION_US)
        self.later(EXPIRATION_CHECK_S, self._expire_producers)

    def fetched(self, fetch: Fetch) -> None:
        if self.leading is None:
            self._answer(fetch, FetchRefused(fetch.number, ErrorCode.NOT_LEADER_OR_FOLLOWER))
        else:
            self.perform(self.leading.fetched(fetch, self.now_us))
            if self.leading is not None and self.is_up:
                self.schedule.invariants.deleted(self, self.leading)

    def _read(self, fetch: Fetch) -> None:
        leading = self.leading
        assert leading is not None
        self._parked.pop(fetch.member, None)
        if leading.has_news(fetch):
            self._respond(fetch)
        else:
            self._parked[fetch.member] = fetch
            self.later(FETCH_WAIT_S, self._expire, fetch)

    def _expire(self, fetch: Fetch) -> None:
        if self._parked.get(fetch.member) is fetch:
            del self._parked[fetch.member]
            self._respond(fetch)

    def _serve(self) -> None:
        """Whoever waits for records, or for the high watermark."""
        leading = self.leading
        if leading is not None and self.is_up:
            for fetch in list(self._parked.values()):
                if leading.has_news(fetch):
                    del self._parked[fetch.member]
                    self._respond(fetch)

    def _respond(self, fetch: Fetch) -> None:
        leading = self.leading
        assert leading is not None
        at = records_of(fetch.position)
        records = self.disk.records[at : at + FETCH_RECORDS]
        self._answer(fetch, leading.response(fetch, self.disk.mark(at + len(records)), records))

    def _answer(self, fetch: Fetch, response: FetchResponse) -> None:
        follower = self.schedule.by_name[fetch.member.broker]
        self.schedule.network.send(self.name, follower.name, follower.answer, fetch, response)

    def trim(self) -> None:
        """Retention removes what is committed."""
        leading = self.leading
        if leading is not None and self.is_up:
            stable = self.disk.stable(records_of(leading.high_watermark))
            start = self.world.random.randint(self.disk.start, stable)
            self.disk.trim(start)
            leading.trimmed(self.disk.mark(start))
            self.schedule.invariants.trims += 1

    def delete_records(self) -> None:
        """As an operator asks (KIP-107)."""
        leading, disk = self.leading, self.disk
        if leading is not None and self.is_up:
            stable = disk.mark(disk.stable(records_of(leading.high_watermark))).entry
            disk.delete_before(self.world.random.randint(min(disk.log_start, stable), stable))
            leading.deleted(disk.deleted)
            self.schedule.invariants.deletions += 1
            self.world.note(self.name, "deletes before", disk.deleted)

    # ---- as follower ----------------------------------------------------------------------------------------

    def _fetch(self, leader: str, fetch: Fetch) -> None:
        target, self._sent = self.schedule.by_name[leader], fetch
        self.schedule.network.send(self.name, leader, lambda: target.run(target.life, target.fetched, fetch))
        self.later(FETCH_TIMEOUT_S, self._timed_out, fetch.number)

    def _timed_out(self, number: int) -> None:
        if self.leading is None:
            self.perform(self.following.timed_out(number))

    def answer(self, fetch: Fetch, response: FetchResponse) -> None:
        """An answer arrives, for whichever life asked."""
        self.run(self.life, self._answered, fetch, response)

    def _answered(self, fetch: Fetch, response: FetchResponse) -> None:
        if self.leading is not None or fetch is not self._sent:  # an answer to another life, or from before it led
            return
        if isinstance(response, FetchRefused):
            self.later(BACKOFF_S, self._timed_out, response.number)
        else:
            self.answer_epoch = response.epoch
        self.perform(self.following.answered(response))
        self.answer_epoch = None

    def _sync(self) -> None:
        self.disk.sync()
        self.disk.checkpoint = max(self.disk.start, records_of(self.high_watermark))
        if self.leading is None:
            self.perform(self.following.synced(self.disk.synced_end))
        elif self.leading.synced < self.disk.synced_end:
            self.perform(self.leading.appended(self.disk.end, self.disk.synced_end, self.now_us))
        self.later(self.plan.sync_s * (0.5 + self.world.random.random()), self._sync)
