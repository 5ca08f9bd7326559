"""What must hold."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from pyreplog.kafka.groups.group_records import (
    ConsumerGroupKey,
    ConsumerGroupRecordKind,
    GroupMetadataKey,
    MemberAssignmentValue,
    OffsetCommitKey,
    decode_consumer_value,
    decode_group,
    decode_key,
    decode_offset,
)
from pyreplog.kafka.groups.group_requests import OffsetFetchResult
from pyreplog.partition.topic_partition import TopicPartition

from ..invariants import demand

if TYPE_CHECKING:
    from .log import Stored
    from .schedule import Schedule

Key = tuple[str, TopicPartition]


class Invariants:
    """Every commit has a text of its own, which says who committed, and in which generation."""

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self._owners: dict[tuple[str, int, int, int], str] = {}
        self._lives: Counter[str] = Counter()  # a group that was deleted begins with generation 1 again
        self._positions: dict[str, int] = {}  # of commits, by their texts: where they were appended first
        self._acknowledged: dict[Key, str] = {}  # the last one of each partition
        self._open: dict[str, bool | None] = {}  # texts of transactional commits: whether they count
        self._held: dict[str, dict[str, MemberAssignmentValue]] | None = {}  # of consumer groups: what the log says
        self.reconciled = 0
        self.acks = self.assigned = self.fetched = self.refused = self.transactions = 0

    # ---- assignments ----------------------------------------------------------------------------------------

    def owns(self, group: str, generation: int, partition: int, owner: str) -> None:
        """A member, or a static member in any of its lives, owns a partition in a generation."""
        self.assigned += 1
        before = self._owners.setdefault((group, self._lives[group], generation, partition), owner)
        demand(
            before == owner, "OneOwner (25)",
            f"{group}: partition {partition} in generation {generation}: {before} and {owner}",
        )  # fmt: skip

    # ---- commits --------------------------------------------------------------------------------------------

    def appended(self, stored: Stored) -> None:
        """The leader appends: a commit of a generation comes before the next generation is stored."""
        for number, (key, value) in enumerate(stored.batch.records):
            assert key is not None
            decoded = decode_key(key)
            assert decoded is not None
            if isinstance(decoded, ConsumerGroupKey):
                self._lives[decoded.group] += value is None and decoded.kind is ConsumerGroupRecordKind.GROUP
                continue
            if isinstance(decoded, GroupMetadataKey):
                stored.generations[decoded.group] = -1 if value is None else decode_group(value).generation
                self._lives[decoded.group] += value is None
                continue
            if value is None:
                continue
            text = decode_offset(value).metadata
            if text in self._positions:
                continue  # what is live is appended again
            self._positions[text] = stored.base_offset + number
            who, generation, _ = text.split(":")
            if int(generation) >= 0 and self._schedule.is_consumer_group(decoded.group):
                self._check_epoch(decoded, who, int(generation), text)
                continue
            stored_generation = self._generation(decoded.group)
            demand(
                int(generation) < 0 or int(generation) >= stored_generation, "OldGenerationsAreRefused (25)",
                f"{text} was stored, the generation is {stored_generation}",
            )  # fmt: skip

    # ---- consumer groups ------------------------------------------------------------------------------------

    def elected(self) -> None:
        """The log has lost its tail, perhaps."""
        self._held = None

    def _holdings(self) -> dict[str, dict[str, MemberAssignmentValue]]:
        """What the log says that members of consumer groups have, by group and member id."""
        if self._held is None:
            self._held = {}
            for stored in self._schedule.log.batches:
                self._hold(stored, self._held)
        return self._held

    @staticmethod
    def _hold(stored: Stored, held: dict[str, dict[str, MemberAssignmentValue]]) -> set[str]:
        changed = set()
        for key, value in stored.batch.records:
            decoded = None if key is None else decode_key(key)
            if isinstance(decoded, ConsumerGroupKey) and decoded.kind is ConsumerGroupRecordKind.ASSIGNMENT:
                changed.add(decoded.group)
                if value is None:
                    held.setdefault(decoded.group, {}).pop(decoded.member_id, None)
                else:
                    held.setdefault(decoded.group, {})[decoded.member_id] = decode_consumer_value(decoded.kind, value)
        return changed

    def _check_epoch(self, key: OffsetCommitKey, who: str, epoch: int, text: str) -> None:
        member = self._holdings().get(key.group, {}).get(who)
        demand(
            member is not None and member.member_epoch == epoch, "StaleMembersAreRefused (25)",
            f"{text} was stored, the log has {member}",
        )  # fmt: skip

    def reconcile(self, stored: Stored) -> None:
        """The leader appends what members have from now on: each partition has one holder, and what a member uses that
        knows its epoch is its own."""
        for group in self._hold(stored, self._holdings()):
            self.reconciled += 1
            members = self._holdings()[group]
            holders = Counter(each for member in members.values() for each in _partitions(member))
            demand(
                not holders or max(holders.values()) == 1, "OneHolder (25)", f"{group}: {members}",
            )  # fmt: skip
            for consumer in self._schedule.consumers:
                known = members.get(consumer.member_id)
                if consumer.is_up and consumer.group == group and known and known.member_epoch == consumer.epoch:
                    demand(
                        consumer.used <= _partitions(known), "WhatIsUsedIsHeld (25)",
                        f"{consumer.name} uses {sorted(consumer.used)}, the log has {known}",
                    )  # fmt: skip

    # ---- offsets --------------------------------------------------------------------------------------------

    def _generation(self, group: str) -> int:
        """The last one that is stored."""
        batches = self._schedule.log.batches
        return next((stored.generations[group] for stored in reversed(batches) if group in stored.generations), -1)

    def transactional(self, text: str) -> None:
        self._open[text] = None

    def decided(self, texts: dict[Key, str], *, committed: bool) -> None:
        """The first marker is on its way: from now on it may count."""
        for text in texts.values():
            self._open[text] = committed

    def ended(self, texts: dict[Key, str], *, committed: bool) -> None:
        self.transactions += 1
        for key, text in texts.items() if committed else ():
            self._acknowledge(key, text)

    def acknowledged(self, key: Key, text: str) -> None:
        self.acks += 1
        log = self._schedule.log
        if text not in self._open:
            demand(text in self._positions, "DurableBeforeReplies", f"{text} is acknowledged, and was not appended")
            demand(
                self._positions[text] < log.high_watermark, "DurableBeforeReplies",
                f"{text} is acknowledged, and not committed",
            )  # fmt: skip
            self._acknowledge(key, text)

    def _acknowledge(self, key: Key, text: str) -> None:
        before = self._acknowledged.get(key)
        if before is None or self._positions[before] < self._positions[text]:
            self._acknowledged[key] = text

    def expect(self, group: str) -> dict[TopicPartition, str]:
        """What is acknowledged now: a fetch that begins later gives that, or what came after it."""
        return {partition: text for (name, partition), text in self._acknowledged.items() if name == group}

    def fetched_offsets(self, group: str, expected: dict[TopicPartition, str], result: OffsetFetchResult) -> None:
        self.fetched += 1
        for partition, fetched in result.offsets.items():
            wanted = expected.get(partition)
            if fetched.code:
                continue
            if fetched.offset < 0:
                demand(wanted is None, "NoOffsetIsLost", f"{group} {partition}: {wanted} is gone")
                continue
            text = fetched.metadata
            demand(text in self._positions, "NothingIsInvented", f"{group} {partition}: {text}")
            demand(
                self._open.get(text, True) is True, "OpenTransactionsAreInvisible",
                f"{group} {partition}: {text}: {self._open.get(text, True)}",
            )  # fmt: skip
            demand(
                wanted is None or self._positions[text] >= self._positions[wanted], "NoOffsetIsLost",
                f"{group} {partition}: {wanted} was acknowledged, found {text}",
            )  # fmt: skip


def _partitions(member: MemberAssignmentValue) -> frozenset[int]:
    topics = (*member.assigned_partitions, *member.partitions_pending_revocation)
    return frozenset(number for topic in topics for number in topic.partitions)
