"""Reconciliation of a member of a consumer group (KIP-848): a pure function from its current to its next assignment."""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import NamedTuple

from pyreplog.kafka.groups.assignors import Partitions, TopicIdPartition

JOINING_EPOCH = 0
LEAVING_EPOCH = -1
STATIC_LEAVING_EPOCH = -2
"""Epoch of a static member that leaves temporarily, and may rejoin before its session expires."""


class MemberState(IntEnum):
    """The state of a member, with Kafka's numbers."""

    STABLE = 0
    """The member has all partitions of its target."""
    UNREVOKED_PARTITIONS = 1
    """The member must revoke partitions first, and confirm it."""
    UNRELEASED_PARTITIONS = 2
    """The member waits for partitions that other members have not released."""


class ConsumerMember(NamedTuple):
    """A member of a consumer group.

    Attributes:
        member_id: id of the member.
        instance_id: instance id of a static member; None: the member is dynamic.
        rack_id: rack of the client.
        client_id: client id of the client.
        client_host: host of the client.
        topics: names of topics to which it subscribes.
        regex: regular expression for names of topics to which it subscribes.
        rebalance_timeout_ms: milliseconds that it may take to revoke partitions.
        server_assignor: assignor that it prefers; None: any.
        epoch: epoch of its current assignment.
        previous_epoch: epoch that it may still send once, because the response may have been lost.
        state: progress of its reconciliation.
        assigned: partitions that it may use.
        revoking: partitions that it must revoke before it gets the next epoch.
    """

    member_id: str
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    topics: frozenset[str] = frozenset()
    regex: str | None = None
    rebalance_timeout_ms: int = -1
    server_assignor: str | None = None
    epoch: int = JOINING_EPOCH
    previous_epoch: int = JOINING_EPOCH
    state: MemberState = MemberState.STABLE
    assigned: Partitions = frozenset()
    revoking: Partitions = frozenset()

    @property
    def held(self) -> Partitions:
        """Partitions that other members must not get: it uses them, or has not confirmed their revocation."""
        return self.assigned | self.revoking


def reconcile(
    member: ConsumerMember, epoch: int, target: Partitions, owned: Partitions | None,
    is_held: Callable[[TopicIdPartition], bool],
) -> ConsumerMember:  # fmt: skip
    """Take one step of a member towards its target assignment.

    Args:
        member: the member.
        epoch: epoch of the target assignment.
        target: its partitions in the target assignment.
        owned: partitions that the member reports to use; None: not reported.
        is_held: returns whether another member has a partition.

    Returns:
        The changed member; the same object if it has to wait.
    """
    if member.state is MemberState.STABLE and member.epoch == epoch:
        return member
    now = member.epoch
    if member.state is MemberState.UNREVOKED_PARTITIONS:
        if owned is None or member.revoking & owned:
            return member
        now += 1
    kept, revoking = member.assigned & target, member.assigned - target
    if revoking and now != JOINING_EPOCH:  # `owned` of a joining member may be older than its last assignment
        return member._replace(
            epoch=now, previous_epoch=member.epoch, state=MemberState.UNREVOKED_PARTITIONS, assigned=kept,
            revoking=revoking,
        )  # fmt: skip
    unreleased = frozenset(partition for partition in target - kept if is_held(partition))
    return member._replace(
        epoch=epoch, previous_epoch=member.epoch, assigned=target - unreleased, revoking=frozenset(),
        state=MemberState.UNRELEASED_PARTITIONS if unreleased else MemberState.STABLE,
    )  # fmt: skip
