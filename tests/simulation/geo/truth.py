"""What consumers and operators did, and what must hold of it in every cluster."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from pyreplog._native.topic.range_set import OFFSET_END
from pyreplog.geo.acks.origin_ranges import OriginRanges
from pyreplog.geo.acks.readiness import Readiness, readiness
from pyreplog.geo.acks.subscription_state import FIRST_GENERATION, Generation, Home, SubscriptionState
from pyreplog.origins.origin import Origin

from ..invariants import demand

if TYPE_CHECKING:
    from .sites import Backup, Entry, Site

Key = tuple[Origin, int]
Life = tuple[str, str, Generation]
"""Name of a subscription, token of one of its births, generation."""


def messages_of(ranges: OriginRanges) -> set[Key]:
    """Return the members of a small set."""
    keys: set[Key] = set()
    for origin in ranges:
        for start, end in zip(*ranges.between(origin), strict=True):
            keys.update((origin, number) for number in range(int(start), int(end)))
    return keys


class Truth:
    """Knows all, and demands."""

    def __init__(self) -> None:
        self.acked: dict[Life, set[int]] = {}  # messages
        self.published: dict[Key, set[int]] = {}  # the messages of each identity
        self._messages = 0
        self.births: dict[str, set[int]] = {}
        self.former: dict[str, frozenset[str]] = {}  # of each birth, the dead ones that its creator knew of
        self.seeks: dict[Life, set[int]] = {}
        self.undone_seeks: set[Life] = set()  # their clusters were restored since, and may use the number again
        self.rolled_back: set[Origin] = set()  # topics that were restored
        self.dead: dict[str, set[str]] = {}  # the sites that have a tombstone durably, or had
        self.lost_tombstones: set[str] = set()  # of topics that were created again, or restored
        self.handed: dict[tuple[str, str, Generation, Home], set[Key]] = {}
        self.received: dict[
            tuple[Site, str], set[Key]
        ] = {}  # by consumers of a subscription, since the fail-over began
        self.failed_over = 0
        self.delivered = self.repeated = self.early = self.dropped = self.lost_seeks = self.compared = self.ready = 0

    # ---- what they do ----------------------------------------------------------------------------------------------

    def publish(self, origin: Origin, number: int) -> int:
        """Return a new message, which is published with this identity."""
        self._messages += 1
        self.published.setdefault((origin, number), set()).add(self._messages)
        return self._messages

    def has_two_histories(self, origin: Origin) -> bool:
        """Whether a cluster that was restored gave new messages the identity of lost ones."""
        return any(key[0] == origin and len(messages) > 1 for key, messages in self.published.items())

    def acknowledged(self, name: str, state: SubscriptionState, message: int) -> None:
        self.acked.setdefault((name, min(state.tokens), state.generation), set()).add(message)

    def sought(self, name: str, state: SubscriptionState, before: list[Entry]) -> None:
        """A seek that was lost in a crash may have had the same generation: nobody else knows of it."""
        life, messages = (name, min(state.tokens), state.generation), {entry.message for entry in before}
        lives = {(name, token, state.generation) for token in state.tokens}
        if lives & self.undone_seeks:  # others know of it
            self.seeks[life] = messages.union(self.seeks.get(life, ()))
            return
        for each in lives:
            self.acked.pop(each, None)
        self.seeks[life] = messages

    def born(self, token: str, before: list[Entry], former: frozenset[str]) -> None:
        self.births[token] = {entry.message for entry in before}
        self.former[token] = former

    def restored(self, site: Site, backup: Backup) -> None:
        """Note what may be undone, because a cluster is restored from a backup.

        - A deletion that was durable there, and that the backup does not know of. Others may have forgotten it already,
          because all had it: the subscription, as the backup has it, lives again in all clusters, also where it was
          handed over later.
        - A seek that was ordered there since the backup. The next one there has the same number, and the two are joined:
          what either passed over may count as passed until the clusters have heard of both, and what was acknowledged
          behind the first one stays acknowledged behind the second one.
        - A change of the home that was ordered there since the backup. The next one there has the same number; of the two
          that to the cluster with the higher id holds.
        - What was handed over to this cluster: it may deliver again what was acknowledged elsewhere before.
        - Acknowledgements that no other cluster had: these messages come again.

        A neighbour may hold messages that the restored cluster has lost. It learns of the loss only when the topic has its
        new identity. Until then it counts these messages as stored in the restored cluster, and so does its readiness for a
        fail-over there. If the neighbour has acknowledgements of such messages, the restored cluster refuses them, with the
        acknowledgements that were sent beside them, and raises an alarm: these messages come again.

        A message that is published there before the topic has a new identity may get the identity of a lost message. A copy
        of it with that identity may count as acknowledged in any cluster, if a consumer acknowledged either of the two
        messages. The message is sent again with the new identity, and that copy counts by its own acknowledgements alone.
        """
        self.rolled_back |= {site.origin, backup.topic.origin}
        for token, knowing in self.dead.items():
            if site.letter in knowing and token not in backup.seen_dead:
                self.lost_tombstones.add(token)
                knowing.discard(site.letter)
        self.handed = {
            key: acked
            for key, acked in self.handed.items()
            if key[3].cluster != site.id and key[1] not in self.lost_tombstones
        }
        self.undone_seeks |= {life for life in self.seeks if life[2].cluster == site.id}

    def forget_site(self, site: Site) -> None:
        """A topic that is created again has nothing of what was handed over to its cluster, or deleted there alone."""
        self.handed = {key: acked for key, acked in self.handed.items() if key[3].cluster != site.id}
        for knowing in self.dead.values():
            knowing.discard(site.letter)
        if site.schedule.plan.forwards:  # a leaf that was away hears of a deletion from this cluster alone
            for name in site.schedule.names:
                self.lost_tombstones |= site.exchange.tombstones(name)

    def forget_tombstones(self, sites: list[Site]) -> None:
        """A cluster that a policy does not name may miss a deletion for good, and have the subscription afterwards."""
        for site in sites:
            for name in site.schedule.names:
                self.lost_tombstones |= site.exchange.tombstones(name)

    # ---- what must hold --------------------------------------------------------------------------------------------

    def is_acked(self, name: str, state: SubscriptionState, message: int) -> bool:
        """Whether a consumer or an operator acknowledged a message, in this generation, under any of the births."""
        return any(message in self.acked.get((name, token, state.generation), ()) for token in state.tokens)

    def may_pass(self, name: str, state: SubscriptionState, messages: set[int]) -> bool:
        """Whether a message may count as acknowledged: it was, or all creators, or who sought, started behind it.

        messages: that message, and others to which a restored cluster gave its identity.
        """
        if any(self.is_acked(name, state, message) for message in messages):
            return True
        if state.generation == FIRST_GENERATION:
            return all(messages & self.births[token] for token in state.tokens)
        return any(messages & self.seeks.get((name, token, state.generation), set()) for token in state.tokens)

    def check_cursor(self, site: Site, name: str) -> None:
        """Acknowledgements stem from consumers or commands; nothing else is passed over; all that counts is applied."""
        state, cursor = site.exchange.state(name), site.cursors[name]
        assert state is not None
        for local, entry in enumerate(site.log):
            key = entry.origin, entry.number
            passed = local in cursor.acked
            if passed and local not in cursor.expired and not self.may_pass(name, state, self.published[key]):
                demand(False, "NothingUnacknowledgedIsPassedOver", f"{site} {name} {local}: {entry}")
            if not passed and state.is_passed(*key):
                demand(False, "EarlyAcksPrecedeDelivery", f"{site} {name} would deliver {entry}")

    def check_state(self, site: Site, name: str) -> None:
        """Tombstones are final; who creates a name again inherits nothing."""
        state = site.exchange.state(name)
        assert state is not None
        known = state.tokens - self.lost_tombstones
        former = {dead for token in state.tokens for dead in self.former[token]}
        demand(not known & former, "CreatedAgainInheritsNothing", f"{site} {name}: {sorted(state.tokens)}")
        demand(
            not known & site.seen_dead,
            "TombstonesAreFinal",
            f"{site} {name} lives again: {sorted(state.tokens)}",
        )

    def check_delivery(self, site: Site, name: str, entry: Entry) -> None:
        """What a neighbour knows to be exchanged is not delivered again."""
        state, key = site.exchange.state(name), (entry.origin, entry.number)
        assert state is not None
        demand(state.home.admits(site.id), "HandoverIsKept", f"{site} {name} delivers, home is {state.home}")
        demand(not state.is_passed(*key), "EarlyAcksPrecedeDelivery", f"{site} {name} delivers {key[1]}")
        for token in state.tokens - self.lost_tombstones:  # one that lives again has forgotten what was handed over
            handed = self.handed.get((name, token, state.generation, state.home), set())
            demand(key not in handed, "HandoverRepeatsNothing", f"{site} {name} delivers {key[1]} again")
        self.received.setdefault((site, name), set()).add(key)
        self.delivered += 1
        self.repeated += self.is_acked(name, state, entry.message)
        for link in site.links:
            other = link.other(site)
            theirs = other.exchange.state(name) if other.is_up and link.is_connected else None
            if site in link.refusing:
                continue
            if theirs is None or theirs.generation != state.generation or not theirs.tokens & state.tokens:
                continue
            # Births that are dead here: the joined state of the neighbour dies too, as soon as it hears of the tombstone.
            # What was acknowledged in it was deleted here with them. A birth that this deletion did not know of comes
            # by itself from a third cluster and inherits nothing, until it turns out to be joined with them, and dies:
            # test_exchange.py::test_a_birth_that_was_joined_with_a_dead_one_ends_with_it.
            if theirs.tokens & site.exchange.tombstones(name):
                continue
            if theirs.acks.contains(*key) and key[0] in other.exchange.peer(site.id).compared:
                unconfirmed = other.exchange.unconfirmed(site.id, name)
                demand(
                    unconfirmed.contains(*key), "ExchangedAcksAreNotRedelivered", f"{site} {name} {key[1]} of {other}"
                )

    def _stored_at(self, site: Site, other: Site) -> dict[Origin, int]:
        """What a cluster knows of the positions of another one: where it does not send, what that one reported."""
        if site.schedule.plan.forwards:
            return {**other.vector}
        reported = site.exchange.peer(other.id).positions
        sent = {origin: end for origin, end in other.vector.items() if origin in (site.origin, other.origin)}
        demand(
            all(end <= other.vector.get(origin, 0) for origin, end in reported.items()),
            "ReportsAreTrue",
            f"{site} {other}",
        )
        return {**reported, **sent}

    def readiness_of(self, site: Site, other: Site, name: str) -> Readiness:
        """What a cluster says of a fail-over to another one now."""
        elsewhere = set() if site.schedule.plan.forwards else other.vector.keys() - {site.origin, other.origin}
        return readiness(
            site.exchange, name, other.id, site.held(), self._stored_at(site, other), site.foreign().between,
            lambda origin: OFFSET_END if origin in elsewhere else 0,
        )  # fmt: skip

    def check_fail_over(self, site: Site, other: Site, name: str, go_on: Callable[[], object]) -> bool:
        """Another cluster is alone from now on, and its consumers go on: what was told of that is what comes of it.

        Return False, and do nothing, if the cluster says that it does not know.
        """
        state, theirs, cursor = site.exchange.state(name), other.exchange.state(name), site.cursors[name]
        assert state is not None
        told = self.readiness_of(site, other, name)
        if (
            not told.is_known
            or not told.is_current
            or theirs is None
            or theirs.acks_identity() != state.acks_identity()
        ):
            return False
        keys = {(entry.origin, entry.number): local for local, entry in enumerate(site.log)}
        acked = {key for key in keys if state.acks.contains(*key) and not state.bases.contains(*key)}
        due = {key for key, local in keys.items() if local not in cursor.acked}
        self.received.clear()
        go_on()
        received = self.received.get((other, name), set())
        theirs = other.exchange.state(name)
        assert theirs is not None
        repeated, predicted = received & acked, messages_of(told.repeated)
        demand(repeated <= predicted, "ReadinessIsActual", f"{site} {name}: {other} repeated {repeated - predicted}")
        expired = {
            (entry.origin, entry.number)
            for local, entry in enumerate(other.log)
            if local in other.cursors[name].expired
        }
        lost = {key for key in due - received - expired if not theirs.is_passed(*key) and not other.has_gap(key)}
        predicted = messages_of(told.lost)
        demand(lost <= predicted, "ReadinessIsActual", f"{site} {name}: {other} lost {lost - predicted}")
        self.failed_over += 1
        return True

    def check_readiness(self, site: Site, other: Site, name: str, *, exactly: bool) -> None:
        """What a fail-over would lose or repeat is what is told, or less; exactly that when nothing is on its way."""
        state = site.exchange.state(name)
        assert state is not None
        cursor = site.cursors[name]
        told = self.readiness_of(site, other, name)
        theirs = other.exchange.state(name)
        if not told.is_known or not told.is_current:
            return
        demand(theirs is not None or exactly is False, "ReadinessIsActual", f"{site} {name}: {other} has none")
        if theirs is None or theirs.acks_identity() != state.acks_identity():
            return
        stored = {(entry.origin, entry.number) for entry in other.log}
        mine = {(entry.origin, entry.number): local for local, entry in enumerate(site.log)}
        lost = {key for key, local in mine.items() if local not in cursor.acked and key not in stored}
        lost = {key for key in lost if not other.has_gap(key)}
        predicted = messages_of(told.lost)
        demand(lost <= predicted, "ReadinessIsActual", f"{site} {name} would lose {lost - predicted}")
        if exactly or site.schedule.plan.forwards:
            demand(lost == predicted, "ReadinessIsActual", f"{site} {name} would not lose {predicted - lost}")
        repeated = {key for key in stored if state.acks.contains(*key) and not theirs.is_passed(*key)}
        repeated = {key for key in repeated if not state.bases.contains(*key)}
        predicted = messages_of(told.repeated)
        demand(repeated <= predicted, "ReadinessIsActual", f"{site} {name}: {other} repeats {repeated - predicted}")
        if exactly:
            demand(repeated >= predicted & stored, "ReadinessIsActual", f"{site} {name}: told {predicted - repeated}")
        self.compared += 1
        self.ready += told.is_ready
