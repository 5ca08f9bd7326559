"""How a member of a consumer group comes from what it has to what it is to have (KIP-848): a pure function."""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import NamedTuple

from pyreplog.kafka.groups.assignors import Partitions, TopicIdPartition

JOINING_EPOCH = 0
LEAVING_EPOCH = -1
STATIC_LEAVING_EPOCH = -2
"""Of a static member that comes back before its session ends."""


class MemberState(IntEnum):
    """The state of a member, with the numbers of Kafka's records."""

    STABLE = 0
    """It has all of its target."""
    UNREVOKED_PARTITIONS = 1
    """It must give partitions up first, and say so."""
    UNRELEASED_PARTITIONS = 2
    """It waits for partitions that other members have."""


class ConsumerMember(NamedTuple):
    """A member of a consumer group.

    Attributes:
        member_id: its id.
        instance_id: of a static member.
        rack_id: where it runs.
        client_id: how the client calls itself.
        client_host: from where it comes.
        topics: names that it subscribes to.
        regex: a pattern of names that it subscribes to.
        rebalance_timeout_ms: how long it may take to give partitions up.
        server_assignor: which it prefers; None: any.
        epoch: of the assignment that it has.
        previous_epoch: with which it may come once more, because an answer was lost.
        state: what it waits for.
        assigned: what it may use.
        revoking: what it must give up before it gets the next epoch.
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
        """What nobody else may have: it uses them, or has not said yet that it does not."""
        return self.assigned | self.revoking


def reconcile(
    member: ConsumerMember, epoch: int, target: Partitions, owned: Partitions | None,
    is_held: Callable[[TopicIdPartition], bool],
) -> ConsumerMember:  # fmt: skip
    """Take a member one step towards its target.

    Args:
        member: the member.
        epoch: of the target assignment.
        target: its part of that.
        owned: what the member says that it uses; None: it does not say.
        is_held: tells whether another member has a partition.

    Returns:
        The member; the same one if it has to wait.
    """
    if member.state is MemberState.STABLE and member.epoch == epoch:
        return member
    now = member.epoch
    if member.state is MemberState.UNREVOKED_PARTITIONS:
        if owned is None or member.revoking & owned:
            return member
        now += 1
    kept, revoking = member.assigned & target, member.assigned - target
    if revoking and now != JOINING_EPOCH:  # what it says before it is told may be older than what it was given last
        return member._replace(
            epoch=now, previous_epoch=member.epoch, state=MemberState.UNREVOKED_PARTITIONS, assigned=kept,
            revoking=revoking,
        )  # fmt: skip
    unreleased = frozenset(partition for partition in target - kept if is_held(partition))
    return member._replace(
        epoch=epoch, previous_epoch=member.epoch, assigned=target - unreleased, revoking=frozenset(),
        state=MemberState.UNRELEASED_PARTITIONS if unreleased else MemberState.STABLE,
    )  # fmt: skip
