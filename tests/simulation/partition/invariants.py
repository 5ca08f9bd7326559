"""What must hold, by name; in brackets the number in the list of the design, and K: so named in hachikuji's specification."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pyreplog.partition.protocol.epochs import NO_EPOCH, LeaderEpoch
from pyreplog.partition.protocol.leading import LeadingReplica
from pyreplog.partition.protocol.partition_state import Brokers, Member, PartitionState, may_join_isr
from pyreplog.partition.protocol.producers import SEQUENCES, ProducerBatch
from pyreplog.stream.log_position import LogPosition

from ..invariants import demand
from .disk import Record, records_of

if TYPE_CHECKING:
    from .brokers import Broker
    from .schedule import Schedule


class Invariants:
    """Looks at all brokers at once, which nobody else can.

    agreed: the committed records, as far as any leader or follower has shown them.
    """

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self.agreed: list[Record] = []
        self.unclean_epoch: LeaderEpoch = NO_EPOCH
        """Of the newest leader that was elected though it may lack committed records. What leaders of earlier epochs
        commit counts for nothing."""
        self.acknowledged: dict[int, str] = {}
        self.deletions = self.deleted_everywhere = 0
        self.unclean_stops = self.elections = self.unclean = self.lost = self.cuts = self.trims = 0
        self.resets = self.expansions = self.shrinks = self.from_elr = self.reassigned = self.acks = 0
        self._loses = False  # the next leader may lack committed records
        self._leaders: dict[LeaderEpoch, tuple[str, int]] = {}
        self._written: dict[tuple[LeaderEpoch, int], tuple[Record, Record | None]] = {}
        self._marks: dict[LeaderEpoch, LogPosition] = {}
        self._proposed: dict[str, PartitionState] = {}  # the last change of each broker
        self._batches: dict[int, ProducerBatch] = {}  # the last of each producer
        self._told: dict[LeaderEpoch, LogPosition] = {}
        self._told_stable: dict[LeaderEpoch, int] = {}
        self._open: dict[int, int] = {}  # transactions by producer, in what is agreed
        self._ended: set[tuple[int, int]] = set()
        self._producer_epochs: dict[int, int] = {}
        self.read = self.skipped = 0  # records of transactions, by readers of committed data

    # ---- the partition's key --------------------------------------------------------------------------------

    def state_changed(self, before: PartitionState, after: PartitionState, by: str) -> None:
        if after.leader:
            demand(after.leading_member is not None, "LeaderInIsr (1, K)", f"{after}")
        names = {member.broker for member in after.isr}
        demand(not names & {member.broker for member in after.elr}, "ElrApartFromIsr (16)", f"{after.isr}, {after.elr}")
        demand(after.epoch >= before.epoch, "EpochsGrow (4, K)", f"{before.epoch}, then {after.epoch}")
        if after.leader and after.leader != before.leader:
            demand(after.epoch > before.epoch, "EpochsGrow (4, K)", f"{after.leader} in {after.epoch}")
        if by in self._schedule.by_name:
            self._check_changed_by_leader(before, after, by)
        if len(after.isr) >= after.effective_min_isr:
            demand(not after.elr, "ElrOnlyUnderMinIsr (16)", f"{after.elr}")
        self._count(before, after)
        if after.epoch > before.epoch and not after.is_unclean and before.last_leader:
            self._check_elected(before, after)
        if after.epoch > before.epoch and after.is_unclean:
            self.unclean += 1
            demand(
                not self._schedule.plan.is_frugal,
                "SurvivesMinIsrMinusOneLosses (14)",
                f"{after} after {self.unclean_stops}",
            )
            self.unclean_epoch, self._loses = after.epoch, True
        elif self._schedule.store.state is after:
            self._check_members(after)

    def _check_changed_by_leader(self, before: PartitionState, after: PartitionState, by: str) -> None:
        """A broker changes the ISR and the ELR of the epoch in which it leads, or resigns, and changes nothing else."""
        allowed = replace(before, isr=after.isr, elr=after.elr) if after.leader else replace(before, leader="")
        demand(
            before.leader == by and after == allowed, "StaleLeaderChangesNothing (19)", f"{by}: {before}, then {after}"
        )

    def elects(self, after: PartitionState, registered: Brokers) -> None:
        """A controller has these registrations, and elects."""
        self._check_elr(after, registered)

    def _check_elr(self, state: PartitionState, registered: Brokers) -> None:
        """Who decides on a state knows of unclean restarts: no earlier incarnation stays in the ELR. Synced records
        survive them."""
        for member in () if self._schedule.plan.requires_sync else state.elr:
            registration = registered.get(member.broker)
            demand(
                registration is None or registration.incarnation <= member.incarnation,
                "UncleanRestartLeavesElr (16)",
                f"{member}: {registration}",
            )

    def _check_elected(self, before: PartitionState, after: PartitionState) -> None:
        """Where only synced records count, a later incarnation has them, too."""
        candidates, leader = {*before.isr, *before.elr}, after.leading_member
        names = {member.broker for member in candidates} if self._schedule.plan.requires_sync else set()
        demand(leader in candidates or after.leader in names, "ElectedFromIsrOrElr (16)", f"{before}, then {after}")

    def _count(self, before: PartitionState, after: PartitionState) -> None:
        self.elections += after.epoch > before.epoch
        self.expansions += len(after.isr) > len(before.isr)
        self.shrinks += len(after.isr) < len(before.isr)
        self.reassigned += bool(before.target and not after.target)
        if after.epoch > before.epoch and not after.is_unclean:
            self.from_elr += after.leader in {member.broker for member in before.elr}

    def _holds(self, member: Member) -> int | None:
        """How many records a member holds, of those that count; None: its incarnation is over."""
        disk = self._schedule.by_name[member.broker].disk
        if self._schedule.plan.requires_sync:
            return disk.synced
        return len(disk.records) if disk.stands_for(member) else None

    def _check_members(self, state: PartitionState, since: int = 0) -> None:
        """Each member of ISR and ELR has all that is committed."""
        if self._loses:
            return
        for member in (*state.isr, *state.elr):
            held = self._holds(member)
            if held is None:
                continue
            disk = self._schedule.by_name[member.broker].disk
            name = "StrongIsr (3, K)" if member in state.isr else "StrongElr (16)"
            demand(held >= len(self.agreed), name, f"{member} has {held} records of {len(self.agreed)}")
            demand(disk.records[since : len(self.agreed)] == self.agreed[since:], name, f"{member} has other records")

    def proposes(self, broker: Broker, leading: LeadingReplica, state: PartitionState) -> None:
        """A leader proposes a change of the ISR; the same again, if it does not know what became of it."""
        if self._proposed.get(broker.name) is state:
            return
        self._proposed[broker.name] = state
        demand(not leading.is_deposed, "StaleLeaderChangesNothing (19)", f"{broker} proposes {state}")
        self._check_elr(state, broker.registered)
        for member in state.isr:
            if member not in leading.isr.committed.isr:
                demand(
                    may_join_isr(member, broker.registered),
                    "NoneJoinsThatIsNotEligible (18)",
                    f"{member}: {broker.registered}",
                )
                if leading.isr.version == self._schedule.store.version:
                    self._check_joining(leading, member)

    def _check_joining(self, leading: LeadingReplica, member: Member) -> None:
        held = self._holds(member)
        if held is None or leading.epoch < self.unclean_epoch:
            return
        last = self._schedule.by_name[member.broker].disk.records[held - 1] if held else None
        demand(
            held >= records_of(leading.high_watermark) and last is not None and last.epoch == leading.epoch,
            "JoinsWithCommittedInEpoch (8)", f"{member} has {held} records of {leading.high_watermark}, last {last}",
        )  # fmt: skip

    # ---- leaders --------------------------------------------------------------------------------------------

    def begins(self, broker: Broker) -> None:
        """A broker begins to lead."""
        epoch, records = broker.state.epoch, broker.disk.records
        self.broker_leads(broker, epoch)
        if self._loses and epoch >= self.unclean_epoch:
            self._loses, common = False, 0
            while common < min(len(records), len(self.agreed)) and records[common] == self.agreed[common]:
                common += 1
            self.lost += len(self.agreed) - common
            del self.agreed[common:]
            self._batches = {record.batch.producer_id: record.batch for record in self.agreed if record.batch}
            self.acknowledged = {at: value for at, value in self.acknowledged.items() if at < common}
            self._told.clear()
        elif epoch == self._schedule.store.state.epoch:
            demand(
                records[: len(self.agreed)] == self.agreed,
                "CommittedPrefixStays (6)", f"{broker} leads {epoch} with {len(records)} records of {len(self.agreed)}",
            )  # fmt: skip

    def leads(self, broker: Broker, leading: LeadingReplica) -> None:
        """It has begun, with the high watermark that it knew, of which a leader may have told it whose commits count for
        nothing. Now they count."""
        if leading.epoch >= self.unclean_epoch and self.unclean_epoch != NO_EPOCH:
            self.shown(broker, records_of(leading.high_watermark))

    def broker_leads(self, broker: Broker, epoch: LeaderEpoch) -> None:
        known = self._leaders.setdefault(epoch, (broker.name, broker.life))
        demand(known == (broker.name, broker.life), "OneLeaderPerEpoch (4, K)", f"{epoch}: {known}, {broker}")

    def committed(self, broker: Broker, high_watermark: LogPosition, leading: LeadingReplica) -> None:
        """A leader has moved its high watermark."""
        before = self._marks.get(leading.epoch)
        demand(before is None or high_watermark > before, "HighWatermarkGrows (11)", f"{broker}: {high_watermark}")
        self._marks[leading.epoch] = high_watermark
        store = self._schedule.store
        if leading.isr.version == store.version:
            demand(
                len(store.state.isr) >= self._min_isr(store.state),
                "FrozenUnderMinIsr (15)",
                f"{broker}: {store.state}",
            )
        if leading.epoch < self.unclean_epoch:
            return
        self._tell_latest(broker, leading)
        count = records_of(high_watermark)
        for member in leading.isr.maximal:
            held = self._holds(member)
            if held is not None:
                other = self._schedule.by_name[member.broker].disk
                demand(
                    held >= count and other.records[count - 1] == broker.disk.records[count - 1],
                    "MaximalIsrHoldsHighWatermark (7, 17)", f"{member} has {held} records, {broker} shows {count}",
                )  # fmt: skip
        self.shown(broker, records_of(high_watermark))

    def _tell_latest(self, broker: Broker, leading: LeadingReplica) -> None:
        latest = leading.latest
        if latest is None:
            return
        for epoch, told in self._told.items():
            demand(
                epoch > leading.epoch or latest >= told,
                "LatestOffsetGrows (12)",
                f"{broker} tells {latest} after {told}",
            )
        self._told[leading.epoch] = latest
        if self.unclean:
            return
        stable = broker.disk.stable(records_of(latest))
        for epoch, before in self._told_stable.items():
            demand(
                epoch > leading.epoch or stable >= before,
                "LastStableOffsetGrows (23)", f"{broker} tells {stable} after {before}",
            )  # fmt: skip
        self._told_stable[leading.epoch] = stable

    def shown(self, broker: Broker, records: int) -> None:
        """A broker shows readers so many records."""
        epoch = broker.following.epoch if broker.leading is None else broker.leading.epoch
        if epoch < self.unclean_epoch:
            return
        agreed = len(self.agreed)
        own = broker.disk.records[: min(records, agreed)]
        demand(own == self.agreed[: len(own)], "CommittedPrefixStays (6)", f"{broker} shows other records")
        if records > agreed:
            for record in broker.disk.records[agreed:records]:
                self._add(record)
            self._check_members(self._schedule.store.state, agreed)
        self._read_committed(broker, records)

    def _read_committed(self, broker: Broker, high_watermark: int) -> None:
        """A reader of committed data goes on to the last stable offset. An unclean election may have taken markers."""
        if self.unclean or not self._schedule.plan.transactional:
            return
        disk = broker.disk
        stable = disk.stable(high_watermark)
        demand(
            disk.start <= stable <= high_watermark,
            "OffsetsInOrder (20)", f"{broker}: {disk.start}, stable {stable}, {high_watermark}",
        )  # fmt: skip
        begin = max(broker.read_to, disk.start)
        aborted = disk.transactions.aborted_between(disk.mark(begin), disk.mark(stable)) if begin < stable else []
        for at in range(begin, stable):
            record = disk.records[at]
            if record.batch is None or not record.transaction:
                continue
            producer_id, mark = record.batch.producer_id, disk.mark(at)
            is_skipped = any(each.producer_id == producer_id and each.first <= mark < each.end for each in aborted)
            decision = self._schedule.coordinator.decisions.get((producer_id, record.transaction))
            demand(
                decision is not None and decision is not is_skipped,
                "TransactionsAtomic (23)", f"{broker} at {at}: {record}, committed {decision}, skipped {is_skipped}",
            )  # fmt: skip
            self.read, self.skipped = self.read + (not is_skipped), self.skipped + is_skipped
        broker.read_to = max(broker.read_to, stable)

    def all_stable(self, leader: Broker) -> None:
        """All transactions are over: all that is committed is stable, on all replicas, and they read the same."""
        if self.unclean:
            return
        demand(self._schedule.coordinator.is_idle, "NoTransactionHangs (24)", "the coordinator writes markers")
        for name in self._schedule.store.state.replicas:
            broker = self._schedule.by_name[name]
            count = len(broker.disk.records)
            stable = broker.disk.stable(count)
            demand(stable == count, "NoTransactionHangs (24)", f"{name}: {stable} of {count} records are stable")
            broker.read_to = 0
            self._read_committed(broker, count)

    def _add(self, record: Record) -> None:
        """Batches of a producer are committed once, in their order, over all leaders."""
        self.agreed.append(record)
        if record.transaction and not self.unclean:
            self._add_transactional(record)
        batch = record.batch
        if batch is None:
            return
        before = self._batches.get(batch.producer_id)
        self._batches[batch.producer_id] = batch
        if before is None:
            return
        demand(batch.epoch >= before.epoch, "ProducerEpochsGrow (22)", f"{batch} behind {before}")
        if batch.epoch > before.epoch:
            demand(batch.first_sequence == 0, "OnceAndInOrder (21)", f"{batch} behind {before}")
        else:
            expected = (before.last_sequence + 1) % SEQUENCES
            demand(batch.first_sequence == expected, "OnceAndInOrder (21)", f"{batch} behind {before}")

    def _add_transactional(self, record: Record) -> None:
        """Of a producer there is one transaction at a time, which its own marker ends, and no batch behind that."""
        head = record.batch if record.marker is None else None
        producer_id = head.producer_id if head else record.marker.producer_id  # type: ignore[union-attr]
        epoch = head.epoch if head else record.marker.producer_epoch  # type: ignore[union-attr]
        number = self._open.get(producer_id, record.transaction)
        demand(number == record.transaction, "TransactionsAtomic (23)", f"{record} in transaction {number}")
        before = self._producer_epochs.get(producer_id, epoch)
        demand(epoch >= before, "ProducerEpochsGrow (22)", f"{record} behind {before}")
        self._producer_epochs[producer_id] = epoch
        if head is None:
            self._open.pop(producer_id, None)
            self._ended.add((producer_id, number))
        else:
            demand((producer_id, number) not in self._ended, "NoTransactionHangs (24)", f"{record} behind the marker")
            self._open[producer_id] = number

    def acknowledges(self, broker: Broker, at: int, value: str, leading: LeadingReplica) -> None:
        """A produce with acks=-1 succeeds."""
        self.acks += 1
        demand(broker.disk.records[at].value == value, "AcknowledgedIsThere (13)", f"{broker}: {value} at {at}")
        demand(
            broker.disk.mark(at + 1) <= leading.high_watermark,
            "AcknowledgedIsCommitted (13)",
            f"{broker}: {value} at {at}",
        )
        if leading.epoch < self.unclean_epoch:
            return
        demand(at < len(self.agreed), "AcknowledgedIsCommitted (13)", f"{broker}: {value}")
        self.acknowledged[at] = value
        if not self.unclean:
            self._check_copies(broker, at, value, leading)
        newest = self._schedule.store.state.epoch
        if leading.epoch < newest:
            self._check_successor(at, value, newest)

    def _min_isr(self, state: PartitionState) -> int:
        """Of the topic, by the plan: what the shipped code makes of it is what is checked."""
        return min(self._schedule.plan.min_isr, len(state.replicas))

    def _check_copies(self, broker: Broker, at: int, value: str, leading: LeadingReplica) -> None:
        """So many members of the ISR have the record; those that have lost it since, in a power cut, had it."""
        committed, pending = leading.isr.committed, leading.isr.pending
        copies = 0
        for member in {*committed.isr, *(pending.isr if pending is not None else ())}:
            disk, held = self._schedule.by_name[member.broker].disk, self._holds(member)
            copies += held is None or (held > at and disk.records[at].value == value)
        demand(copies >= self._min_isr(committed), "AcknowledgedByMinIsr (13)", f"{broker}: {value} on {copies}")

    def _check_successor(self, at: int, value: str, newest: LeaderEpoch) -> None:
        """A leader that does not know of its successor acknowledges what that has begun with, and nothing else."""
        records = self._schedule.by_name[newest.master].disk.records
        begins = next((number for number, record in enumerate(records) if record.epoch == newest), None)
        if begins is not None:
            demand(
                at < begins and records[at].value == value,
                "StaleLeaderAcknowledgesNothing (19)", f"{value} at {at}, {newest} begins at {begins}",
            )  # fmt: skip

    # ---- logs -----------------------------------------------------------------------------------------------

    def appended(self, broker: Broker, at: int, record: Record) -> None:
        """A log gets a record: of one epoch there is one at each place, behind the same one."""
        previous = broker.disk.records[at - 1] if at else None
        known = self._written.setdefault((record.epoch, at), (record, previous))
        demand(known == (record, previous), "SameEpochSameBytes (5)", f"{broker} at {at}: {known}, {record} {previous}")
        if broker.leading is None:
            epoch = broker.following.epoch
            demand(record.epoch <= epoch, "OnlyOfItsLeader (10)", f"{broker}: {record.epoch}, follows {epoch}")

    def truncates(self, broker: Broker, to: int, start: int = 0) -> None:
        """A log is cut, and begins again at `start`, because of an answer of the leader that it follows."""
        self.cuts += 1
        state, epoch = self._schedule.store.state, broker.following.epoch
        demand(
            broker.answer_epoch == epoch, "CutsForItsLeaderOnly (9)", f"{broker} follows {epoch}: {broker.answer_epoch}"
        )
        self._check_presumed(broker, max(to, start))
        if broker.following.epoch < self.unclean_epoch or self._loses:
            return
        if any(broker.disk.stands_for(member) for member in (*state.isr, *state.elr)):
            demand(to >= len(self.agreed), "NoMemberCutsCommitted (9)", f"{broker} to {to} of {len(self.agreed)}")

    def _check_presumed(self, broker: Broker, to: int) -> None:
        """Who takes itself for the leader takes its ISR for equal up to its high watermark."""
        for other in self._schedule.brokers:
            leading = other.leading
            if leading is None or not other.is_up or leading.epoch < self.unclean_epoch or self._loses:
                continue
            if any(broker.disk.stands_for(member) for member in leading.isr.committed.isr):
                high_watermark = records_of(leading.high_watermark)
                demand(to >= high_watermark, "WeakIsr (2, K)", f"{broker} to {to}, {other} shows {high_watermark}")

    def deleted(self, broker: Broker, leading: LeadingReplica) -> None:
        """What a leader tells to be deleted is deleted at all that it takes for alive."""
        low = leading.low_watermark
        if self.unclean or low == 0:
            return
        self.deleted_everywhere += low == leading.log_start
        for name in leading.isr.committed.replicas:
            registration, other = broker.registered.get(name), self._schedule.by_name[name]
            if registration is None or registration.is_fenced or not other.is_up:
                continue
            if other.disk.incarnation == registration.incarnation:
                demand(
                    other.disk.log_start >= low,
                    "DeletedEverywhere (KIP-107)", f"{broker} tells {low}, {name} shows {other.disk.log_start}",
                )  # fmt: skip

    def offsets(self, broker: Broker) -> None:
        start, end, high_watermark = broker.disk.start, len(broker.disk.records), records_of(broker.high_watermark)
        if not start <= high_watermark <= end:
            demand(False, "OffsetsInOrder (20)", f"{broker}: {start}, {high_watermark}, {end}")
        if broker.disk.log_start > broker.high_watermark.entry and not self.unclean:
            demand(
                False, "OffsetsInOrder (20)", f"{broker}: starts at {broker.disk.log_start}, {broker.high_watermark}"
            )
