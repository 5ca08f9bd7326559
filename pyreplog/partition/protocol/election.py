"""Elections: the next leader of a partition, as a change of its state. A controller sets it by compare-and-set.

Any number of controllers may do so at once, with registrations that are out of date: the version of the key decides.
Each member of the ISR has all committed records. While the ISR is under min ISR nothing is committed, so the members
that left it since, the ELR, have all committed records as well (KIP-966). Other replicas may lack some: electing one of
them is unclean.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pyreplog.partition.protocol.partition_state import Brokers, Member, PartitionState


def elect(
    state: PartitionState, brokers: Brokers, *, requires_sync: bool, unclean: bool = False
) -> PartitionState | None:
    """Return the state after an election; None: nothing changes.

    If no replica can lead, the state has no leader.

    Args:
        state: the present state.
        brokers: the registrations; they may be older or newer than `state`, since the version of the key decides.
        requires_sync: whether only synced records count (`ReplicaConfig`), which an unclean start does not lose.
        unclean: whether a replica may lead that may lack committed records (`unclean.leader.election.enable`), even
            while others that have them may come back.
    """
    isr = _surviving(state.isr, brokers, requires_sync=requires_sync)
    if state.leader and _keeps_leading(state.leading_member, isr, brokers):
        return None
    alive = [member for member in isr if _is_alive(member, brokers)]
    elr = _surviving(state.elr, brokers, requires_sync=requires_sync)
    after = replace(state, isr=tuple(isr), elr=tuple(elr)).with_isr(alive, {} if requires_sync else brokers)
    chosen = _first_electable(state.replicas, after.isr or after.elr, brokers)
    if chosen is not None:
        if not after.isr:
            after = after.with_isr((chosen,), {} if requires_sync else brokers)
        return after.led_by(chosen.broker)
    after = after.led_by("")
    heir = _unclean_leader(after, brokers, unclean=unclean)
    if heir is not None:
        return replace(after, isr=(heir,), elr=()).led_by(heir.broker, is_unclean=bool(after.last_leader))
    return after if after != state else None


def _surviving(members: Sequence[Member], brokers: Brokers, *, requires_sync: bool) -> list[Member]:
    """Return the members that still have the records they had.

    A later incarnation replaces an earlier one if only synced records count; otherwise the member is left out.
    """
    standing = []
    for member in members:
        registration = brokers.get(member.broker)
        if registration is None or registration.incarnation <= member.incarnation:
            standing.append(member)  # an older registration than the member's does not show a restart
        elif requires_sync:
            standing.append(Member(member.broker, registration.incarnation))
    return standing


def _is_alive(member: Member, brokers: Brokers) -> bool:
    registration = brokers.get(member.broker)
    return registration is not None and not registration.is_fenced and registration.incarnation == member.incarnation


def _keeps_leading(leader: Member | None, isr: list[Member], brokers: Brokers) -> bool:
    """Return whether the leader keeps its leadership. A broker that is stopping leads until another member can."""
    if leader is None or leader not in isr or not _is_alive(leader, brokers):
        return False
    others = [member for member in isr if member != leader and _is_alive(member, brokers)]
    return not brokers[leader.broker].is_stopping or all(brokers[member.broker].is_stopping for member in others)


def _first_electable(replicas: Sequence[str], members: Sequence[Member], brokers: Brokers) -> Member | None:
    """Return the first replica, in the order of preference, that can lead; a broker that is stopping comes last."""
    alive = [member for member in members if _is_alive(member, brokers) and member.broker in replicas]
    return min(
        alive, key=lambda member: (brokers[member.broker].is_stopping, replicas.index(member.broker)), default=None
    )


def _unclean_leader(state: PartitionState, brokers: Brokers, *, unclean: bool) -> Member | None:
    """Return a replica for an unclean election, which may lack committed records; None: none can be elected.

    If ISR and ELR are empty: the last leader, which likely has most records, or any replica if none ever led. If
    `unclean`: also any registered replica that is not fenced. A registration that is older than a member's does not
    count: the broker may have started again since, and may lead now.
    """
    known = {member.broker: member.incarnation for member in (*state.isr, *state.elr)}
    names: list[str] = []
    if not state.isr and not state.elr:
        names = [name for name in state.replicas if state.last_leader in ("", name)]
    if unclean:
        names += state.replicas
    for name in names:
        registration = brokers.get(name)
        if registration is None or registration.incarnation < known.get(name, 0):
            continue
        if not registration.is_fenced:
            return Member(name, registration.incarnation)
    return None


def elect_preferred(state: PartitionState, brokers: Brokers) -> PartitionState | None:
    """Return the state in which the preferred leader, the first replica, leads; None: it leads already, or cannot.

    It replaces a leader that is alive, so it has to be in the ISR, and no committed record is lost.

    Args:
        state: the present state.
        brokers: the registrations.
    """
    preferred = next((member for member in state.isr if member.broker == state.replicas[0]), None)
    if not state.leader or preferred is None or preferred.broker == state.leader or state.target:
        return None
    if not _is_alive(preferred, brokers) or brokers[preferred.broker].is_stopping:
        return None
    return state.led_by(preferred.broker)


def with_min_isr(state: PartitionState, min_isr: int) -> PartitionState:
    """Return the state with another `min.insync.replicas`, and the ELR that results."""
    return state if state.min_isr == min_isr else replace(state, min_isr=min_isr).with_isr(state.isr, {})


def reassign(state: PartitionState, target: Sequence[str], *, replaced: Sequence[str] = ()) -> PartitionState:
    """Return the state in which a reassignment begins, or changes its target (KIP-455).

    Its replicas are the new and the old ones, until all new ones are in the ISR. Replicas of an earlier, replaced
    target are removed when the reassignment completes, or at once if they are not in sync.

    Args:
        state: the present state.
        target: names of brokers, the preferred leader first.
        replaced: the dead brokers because of which a controller begins the reassignment; (): an operator begins it.
    """
    assert target and len({*target}) == len(target), f"target: expected distinct brokers, found {target}"
    original = state.original or state.replicas
    kept = {*original, state.leader, *(member.broker for member in (*state.isr, *state.elr))}
    replicas = (*target, *(name for name in state.replicas if name not in target and name in kept))
    return replace(
        state, replicas=replicas, target=tuple(target), original=original, replaced=tuple(sorted({*replaced}))
    )


def complete_reassignment(state: PartitionState, brokers: Brokers) -> PartitionState | None:
    """Return the state after a reassignment; None: none is under way, or its new replicas are not all in the ISR.

    A replica that is neither added nor removed may be dead. The reassignment completes without it, unless the removal
    would leave an ISR under min ISR.

    Args:
        state: the present state.
        brokers: the registrations.
    """
    if not state.target:
        return None
    staying = [member for member in state.isr if member.broker in state.target]
    in_sync = {member.broker for member in staying}
    awaited = state.adding if state.original else state.target
    if not in_sync or not in_sync.issuperset(awaited) or len(staying) < min(state.min_isr, len(state.target)):
        return None
    after = replace(
        state, replicas=state.target, target=(), original=(), replaced=(), isr=tuple(staying), elr=()
    )  # fmt: skip
    if state.leader in in_sync:
        return after
    chosen = _first_electable(state.target, staying, brokers)
    return None if chosen is None else after.led_by(chosen.broker)


def cancel_reassignment(state: PartitionState, brokers: Brokers) -> PartitionState | None:
    """Return the state with the replicas from before a reassignment; None: none of these that is in sync can lead.

    Args:
        state: the present state, with a reassignment.
        brokers: the registrations.
    """
    original = state.original or tuple(name for name in state.replicas if name not in state.target) or state.replicas
    staying = tuple(member for member in state.isr if member.broker in original)
    elr = tuple(member for member in state.elr if member.broker in original)
    after = replace(state, replicas=original, target=(), original=(), replaced=(), isr=staying, elr=elr)
    if len(staying) >= after.effective_min_isr:
        after = replace(after, elr=())
    if not state.leader or state.leader in {member.broker for member in staying}:
        return after if staying or elr or not (state.isr or state.elr) else None
    chosen = _first_electable(original, staying, brokers)
    return None if chosen is None else after.led_by(chosen.broker)
