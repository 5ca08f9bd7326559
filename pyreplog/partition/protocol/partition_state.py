"""The value of a partition's key in the metadata store, which is changed by compare-and-set only.

Leaders change the ISR, controllers the leader. ISR and ELR name a broker with its *incarnation*, a number that rises
with each unclean start. An unclean start may have lost records that were not synced, so a later incarnation may lack
records that an earlier one had (KIP-903, KAFKA-15221). After a clean stop the incarnation stays, and no key changes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple, TypeAlias

from pyreplog.metadata.values import MetadataValue, field, number
from pyreplog.partition.protocol.epochs import NO_EPOCH, LeaderEpoch

REPLICAS_MAX = 64
"""Most replicas of one partition."""
_BROKER_NAME = re.compile(r"[A-Za-z0-9_.-]{1,100}")


def is_broker_name(name: object) -> bool:
    """Return whether a name has 1 to 100 letters, digits, ".", "_" and "-"."""
    return isinstance(name, str) and _BROKER_NAME.fullmatch(name) is not None and name.strip(".") != ""


class Member(NamedTuple):
    """A broker, in one of its incarnations."""

    broker: str
    incarnation: int

    def __str__(self) -> str:
        return f"{self.broker}@{self.incarnation}"


class BrokerRegistration(NamedTuple):
    """A broker's registration in the metadata store.

    Attributes:
        incarnation: rises with each unclean start.
        is_fenced: whether its lease has expired, or it does not serve requests yet.
        is_stopping: whether it hands its leaderships over before it stops, and joins no ISR any more.
    """

    incarnation: int
    is_fenced: bool = False
    is_stopping: bool = False


Brokers: TypeAlias = Mapping[str, BrokerRegistration]


def may_join_isr(member: Member, brokers: Brokers) -> bool:
    """Return whether a member may join an ISR: its broker is neither fenced nor stopping, and has this incarnation."""
    registration = brokers.get(member.broker)
    if registration is None or registration.is_fenced or registration.is_stopping:
        return False
    return registration.incarnation == member.incarnation


def is_lost(member: Member, brokers: Brokers) -> bool:
    """Return whether a later incarnation of the broker is registered. An older registration is no proof."""
    registration = brokers.get(member.broker)
    return registration is not None and registration.incarnation > member.incarnation


@dataclass(frozen=True)
class PartitionState(MetadataValue):
    """The replicas, the ISR and the leader of a partition. FORMAT.md, "Partitions in the metadata store".

    Attributes:
        replicas: names of brokers, the preferred leader first.
        isr: in-sync replicas, in the order of their names. Each of them has all committed records.
        min_isr: `min.insync.replicas` of the topic.
        elr: eligible leader replicas (KIP-966): members that left the ISR while it was smaller than `min_isr`. Nothing
            was committed since, so they have all committed records, too.
        leader: name of a broker; "": the partition has no leader.
        epoch: epoch of the newest leader.
        target: the replicas after the reassignment that is under way; (): no reassignment.
        is_unclean: whether the newest leader was elected though it may lack committed records.
        original: the replicas before the reassignment that is under way, which a cancellation restores; (): none is
            under way, or an earlier build began it.
        replaced: the brokers that were dead for too long, because of which a controller began the reassignment; (): an
            operator began it.
    """

    KIND: ClassVar[str] = "state of a partition"
    VERSION: ClassVar[int] = 2

    replicas: tuple[str, ...]
    isr: tuple[Member, ...]
    min_isr: int = 1
    elr: tuple[Member, ...] = ()
    leader: str = ""
    epoch: LeaderEpoch = NO_EPOCH
    target: tuple[str, ...] = ()
    is_unclean: bool = False
    original: tuple[str, ...] = ()
    replaced: tuple[str, ...] = ()

    @property
    def adding(self) -> tuple[str, ...]:
        """The replicas that a reassignment adds."""
        return tuple(name for name in self.target if name not in self.original) if self.original else ()

    @property
    def removing(self) -> tuple[str, ...]:
        """The replicas that a reassignment removes when it is complete."""
        return tuple(name for name in self.replicas if name not in self.target) if self.target else ()

    @property
    def last_leader(self) -> str:
        """Name of the newest leader, also if it does not lead any more; "": no broker ever led."""
        return self.epoch.master

    @property
    def effective_min_isr(self) -> int:
        return min(self.min_isr, len(self.replicas))

    @property
    def leading_member(self) -> Member | None:
        """The leader as the ISR names it."""
        return next((member for member in self.isr if member.broker == self.leader), None)

    def with_isr(self, isr: Iterable[Member], brokers: Brokers) -> PartitionState:
        """Return the state with another ISR, and the ELR that results.

        Args:
            isr: the members.
            brokers: the registrations, by which lost members leave the ELR; {}: no member is lost.
        """
        members = tuple(sorted(isr))
        names = {member.broker for member in members}
        elr: tuple[Member, ...] = ()
        if len(members) < self.effective_min_isr:
            dropped = {*self.isr, *self.elr} - {*members}
            elr = tuple(
                sorted(member for member in dropped if member.broker not in names and not is_lost(member, brokers))
            )
        return replace(self, isr=members, elr=elr)

    def led_by(self, leader: str, *, is_unclean: bool = False) -> PartitionState:
        """Return the state with another leader, which begins a new epoch; "": without a leader."""
        if not leader:
            return replace(self, leader="")
        return replace(self, leader=leader, epoch=self.epoch.after(leader), is_unclean=is_unclean)

    def resigned(self) -> PartitionState:
        """Return the state without a leader, for a leader that was restarted.

        A new process does not continue an epoch of its predecessor, which may have sent records that were lost since,
        and changes of the ISR that are still in flight.
        """
        return self.led_by("")

    def without(self, broker: str) -> PartitionState | None:
        """Return the state without a broker whose log failed: it is neither in ISR nor ELR, and does not lead.

        It may lack committed records when it comes back, so it must not stay in the ELR either.

        Args:
            broker: name of the broker.

        Returns:
            The state; None: nothing changes, or no other replica is known to have all committed records.
        """
        after = self.with_isr((member for member in self.isr if member.broker != broker), {})
        after = replace(after, elr=tuple(member for member in after.elr if member.broker != broker))
        if not after.isr and not after.elr:
            return None
        if self.leader == broker:
            after = after.led_by("")
        return after if after != self else None

    # ---- stored ---------------------------------------------------------------------------------------------

    @classmethod
    def _decode_fields(cls, fields: dict[str, Any]) -> dict[str, Any]:
        """Check the invariants that the state machines rely on. Raises ValueError."""
        replicas, target = _names(fields, "replicas"), _names(fields, "target")
        isr, elr = _members(fields, "isr"), _members(fields, "elr")
        leader = field(fields, "leader", str)
        epoch_number, last_leader = field(fields, "epoch", list)
        epoch = LeaderEpoch(number({"epoch": epoch_number}, "epoch"), last_leader)
        in_sync = {member.broker for member in isr}
        _check(len(replicas) > 0, "a replica", replicas)
        _check({*target} <= {*replicas}, f"a target among {replicas}", target)
        _check(in_sync | {member.broker for member in elr} <= {*replicas}, f"ISR and ELR among {replicas}", (isr, elr))
        _check(in_sync.isdisjoint(member.broker for member in elr), "an ELR without members of the ISR", elr)
        _check(leader == "" or leader in in_sync, f"a leader in the ISR {isr}", leader)
        _check(
            last_leader == "" if epoch.number == 0 else is_broker_name(last_leader),
            "the broker that began the epoch",
            epoch,
        )
        _check(leader in ("", last_leader), f"the leader of epoch {epoch}", leader)
        original, replaced = (_names(fields, key) if key in fields else () for key in ("original", "replaced"))
        _check({*original} <= {*replicas}, f"the original replicas among {replicas}", original)
        _check(not original or len(target) > 0, "a target of the reassignment", target)
        _check({*replaced} <= {*original}, f"the replaced brokers among {original}", replaced)
        min_isr = number(fields, "min_isr")
        _check(1 <= min_isr <= REPLICAS_MAX, f"min_isr of 1 to {REPLICAS_MAX}", min_isr)
        return {
            "replicas": replicas, "isr": isr, "min_isr": min_isr, "elr": elr, "leader": leader, "epoch": epoch,
            "target": target, "is_unclean": field(fields, "is_unclean", bool), "original": original,
            "replaced": replaced,
        }  # fmt: skip


def _check(is_right: bool, expected: str, found: object) -> None:
    if not is_right:
        raise ValueError(f"expected {expected}, found {str(found)[:200]!r}")


def _names(fields: dict[str, Any], key: str) -> tuple[str, ...]:
    """Decode distinct names of brokers. Raises ValueError."""
    names = field(fields, key, list)
    _check(
        len(names) <= REPLICAS_MAX and all(map(is_broker_name, names)) and len({*names}) == len(names),
        f"{key} of at most {REPLICAS_MAX} distinct brokers", names,
    )  # fmt: skip
    return tuple(names)


def _members(fields: dict[str, Any], key: str) -> tuple[Member, ...]:
    """Decode members in the order of their names. Raises ValueError."""
    members = tuple(Member(name, number({key: incarnation}, key)) for name, incarnation in field(fields, key, list))
    names = [member.broker for member in members]
    _check(
        len(names) <= REPLICAS_MAX and all(map(is_broker_name, names)) and names == sorted({*names}),
        f"{key} of at most {REPLICAS_MAX} distinct brokers in the order of their names", names,
    )  # fmt: skip
    return members
