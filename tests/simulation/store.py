"""The metadata store: one ledger's metadata, compared and set, and which bookies were noted for repair. Requests and
answers get lost, and come late."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from pyreplog.bookie.protocol import ID_MAX
from pyreplog.ledger.ledger_metadata import LedgerMetadata, State
from pyreplog.ledger.protocol.effects import BadCopy, Store

from .world import World

if TYPE_CHECKING:
    from .clients import Client

LAG_S = 0.004
TIMEOUT_S = 0.05


class MetadataHost:
    """changed: called with (before, after) at every change. noted: of bookies, entries, for repair."""

    def __init__(
        self, world: World, metadata: LedgerMetadata, changed: Callable[[LedgerMetadata, LedgerMetadata], None]
    ) -> None:
        self.world, self.metadata, self.version = world, metadata, 1
        self._changed = changed
        self.noted: dict[str, set[int]] = {}
        self.loss = 0.0  # probability
        self.stalled_until = 0.0

    def _delay(self) -> float:
        return self.world.random.random() * LAG_S

    def store(self, client: Client, machine: Any, effect: Store) -> None:
        """First who lacks entries is noted, bookie by bookie; then the metadata are set."""
        self._go_on(client, machine, effect, list(effect.lacking))

    def _go_on(self, client: Client, machine: Any, effect: Store, copies: list[BadCopy]) -> None:
        """One request after the other. The client may end, or stop, between them."""
        world = self.world
        if not client.is_alive:
            return
        if client.stopped_until > world.now:
            world.at(client.stopped_until, self._go_on, client, machine, effect, copies)
        elif copies:
            done = partial(self._go_on, client, machine, effect, copies[1:])
            self._ask(client, machine, partial(self._note, copies[0]), lambda: world.after(self._delay(), done))
        else:
            self._ask(client, machine, partial(self._set, effect), partial(self._answer, client, machine))

    def _ask(self, client: Client, machine: Any, do: Callable[..., None], answer: Callable[..., None]) -> None:
        """It may be lost, or be done and the answer lost, or be done long after the client gave up waiting."""
        world = self.world
        fate = world.random.random()
        if fate < self.loss * 0.4:
            world.after(TIMEOUT_S, client.deliver, machine, "store_unknown")
        elif fate < self.loss:
            late = self._delay() if fate < self.loss * 0.8 else world.random.random() * 1.5
            world.after(late, do, lambda *event: None)
            world.after(TIMEOUT_S, client.deliver, machine, "store_unknown")
        else:
            world.after(self._delay(), do, answer)

    def _note(self, copy: BadCopy, answer: Callable[..., None]) -> None:
        if self.stalled_until > self.world.now:
            self.world.at(self.stalled_until, self._note, copy, answer)
        else:
            self.world.note("noted for repair: entry", copy.entry, "on", copy.bookie)
            self.noted.setdefault(copy.bookie, set()).add(copy.entry)
            answer()

    def is_noted(self, metadata: LedgerMetadata, bookie: str) -> bool:
        """Whether repair, once the ledger is closed, checks all copies that the bookie has to hold: it does if the bookie
        has to hold the noted entry or, after others were given its copies of earlier fragments, a later one."""
        below = None if metadata.state is State.CLOSED else ID_MAX
        last = max((stripe[-1] for stripe in metadata.holdings(bookie, below)), default=-1)
        return any(entry <= last for entry in self.noted.get(bookie, ()))

    def _set(self, effect: Store, answer: Callable[..., None]) -> None:
        world = self.world
        if self.stalled_until > world.now:
            world.at(self.stalled_until, self._set, effect, answer)
        elif effect.version == self.version:
            self.replace(LedgerMetadata.decode(effect.metadata.encode()))
            answer("stored", self.version)
        else:
            answer("conflicted", self.metadata, self.version)

    def replace(self, metadata: LedgerMetadata) -> None:
        before, self.metadata = self.metadata, metadata
        self.version += 1
        self.world.note("metadata, version", self.version, describe(metadata))
        self._changed(before, metadata)

    def load(self, client: Client, machine: Any) -> None:
        if self.world.random.random() < self.loss:
            self.world.after(TIMEOUT_S, client.deliver, machine, "store_unknown")
        else:
            self.world.after(self._delay(), self._get, lambda *event: self._answer(client, machine, *event))

    def _get(self, answer: Callable[..., None]) -> None:
        if self.stalled_until > self.world.now:
            self.world.at(self.stalled_until, self._get, answer)
        else:
            answer("loaded", self.metadata, self.version)

    def _answer(self, client: Client, machine: Any, *event: Any) -> None:
        self.world.after(self._delay(), client.deliver, machine, *event)


def describe(metadata: LedgerMetadata) -> str:
    """For people."""
    fragments = ", ".join(f"{first}: {' '.join(ensemble)}" for first, ensemble in metadata.fragments)
    end = f" at {metadata.last_entry}" if metadata.last_entry >= 0 or metadata.state == "closed" else ""
    return f"{metadata.state}{end} {{{fragments}}}"
