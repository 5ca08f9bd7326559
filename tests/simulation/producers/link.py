"""The replication of a topic to another cluster: a shipped Sender, over a connection that fails."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Any

from pyreplog.errors import NotConnectedError, ReplogError
from pyreplog.geo.protocol.effects import (
    CheckEntry,
    Disconnect,
    Effect,
    OpenOrigin,
    Progress,
    RaiseAlarm,
    ReadEntries,
    SendEntries,
    SourceEntry,
    WakeAt,
)
from pyreplog.geo.protocol.sender import Sender, SenderState, SendingSettings
from pyreplog.origins.origin import Origin, OriginState

from ..invariants import BrokenInvariantError
from ..replication.network import Connection
from ..world import World
from .place import START_US, Owner, Place, Stored


class Link:
    """Sends one place's topic to another place, as long as an owner lives. The cursor survives."""

    def __init__(self, world: World, here: Place, there: Place, lag_s: float, window: int) -> None:
        self._world, self.here, self.there, self._lag_s, self._window = world, here, there, lag_s, window
        self._cursor: Progress | None = None
        self._sender: Sender | None = None
        self._owner: Owner | None = None
        self._connection: Connection | None = None
        self._sessions: dict[tuple[int, Origin], int] = {}
        self.is_apart = False
        here.on_grow.append(self.grow)

    def begin(self) -> None:
        """Send, for the present owner."""
        owner, cursor = self.here.owner, self._cursor
        assert owner is not None
        self._owner = owner
        self._sessions.clear()
        self._sender = Sender(
            self.here.origin, SendingSettings(False, None, None, None, self._window, self.there.letter),
            epoch=owner.epoch, own_position=None if cursor is None else cursor.own,
            positions=None if cursor is None else cursor.others, mark=0 if cursor is None else cursor.mark,
            sent=owner.sent, random=random.Random(f"{self.here} {self.there} {owner.epoch}").random,
        )  # fmt: skip
        self.grow()
        self._do(owner, self._sender.resume)

    def grow(self) -> None:
        if self._owner is not None and self._sender is not None:
            self._do(self._owner, self._sender.grew, 0, self.here.end)

    @property
    def is_done(self) -> bool:
        sender = self._sender
        return (
            sender is not None and sender.state is SenderState.SENDING and sender.stored >= self.here.end
            and not sender.unsent_messages and not sender.inflight_bytes
        )  # fmt: skip

    def cut(self, *, half: bool) -> None:
        if self._connection is not None:
            (self._connection.half_cut if half else self._connection.cut)()

    def die(self) -> None:
        """The owner died."""
        if self._connection is not None:
            self._connection.forget()
        self._owner = self._sender = None

    def _connected(self) -> Connection:
        if self._connection is None or self._connection.is_cut:
            self._connection = Connection(self._world, self._lag_s)
        return self._connection

    def _do(self, owner: Owner, event: Callable[..., list[Effect]], *arguments: Any) -> None:
        """Tell the sender, and carry out what it wants, unless its owner died."""
        if owner.is_dead:
            return
        now_us = self.here.monotonic_us()
        for effect in event(*arguments, now_us, START_US + now_us):
            self._world.note(f"{self.here} to {self.there}:", effect)
            self._carry_out(owner, effect)

    def _carry_out(self, owner: Owner, effect: Effect) -> None:
        world, sender = self._world, self._sender
        assert sender is not None
        if isinstance(effect, OpenOrigin):
            self._open(owner, sender, effect)
        elif isinstance(effect, SendEntries):
            self._send(owner, sender, effect)
        elif isinstance(effect, ReadEntries):
            index = self.here.index_of(effect.offset + 1) - 1
            entries = [_source(self.here, entry) for entry in self.here.entries[index : index + 20]]
            world.after(0.001 * world.random.random(), self._do, owner, sender.entries_read, effect.attempt, entries)
        elif isinstance(effect, CheckEntry):
            stored = self.here.entry_at(effect.first)
            entry = None if stored is None else _source(self.here, stored)
            world.after(0.001, self._do, owner, sender.checked, effect.attempt, entry)
        elif isinstance(effect, WakeAt):
            world.at(max(effect.at_us / 1e6, world.now), partial(self._do, owner, sender.woke))
        elif isinstance(effect, Progress):
            world.after(0.03 * world.random.random(), self._persist, owner, effect)
        elif isinstance(effect, RaiseAlarm):
            raise BrokenInvariantError("FalseAlarm", effect.text)
        elif isinstance(effect, Disconnect):
            self._sessions.clear()

    def _persist(self, owner: Owner, progress: Progress) -> None:
        if not owner.is_dead and (self._cursor is None or progress.mark >= self._cursor.mark):
            self._cursor = progress

    def _open(self, owner: Owner, sender: Sender, effect: OpenOrigin) -> None:
        def came(reply: Any) -> None:
            if isinstance(reply, ReplogError):
                self._do(owner, sender.lost, effect.attempt, effect.origin, reply)
                return
            assert isinstance(reply, OriginState)
            self._sessions[effect.attempt, effect.origin] = effect.session
            self._do(owner, sender.opened, effect.attempt, effect.origin, self.there.origin.cluster, reply)

        def arrive(reply: Callable[[Any], None]) -> bool:
            if self.there.owner is not None:
                self.there.owner.open(effect.origin, effect.session, reply)
            return self.there.owner is not None

        if self.is_apart:
            self._world.after(0.01, came, NotConnectedError("apart"))
        else:
            self._connected().request(arrive, came)

    def _send(self, owner: Owner, sender: Sender, effect: SendEntries) -> None:
        session = self._sessions[effect.attempt, effect.origin]

        def came(reply: Any) -> None:
            if isinstance(reply, ReplogError):
                self._do(owner, sender.request_failed, effect.attempt, effect.request, reply)
            else:
                self._do(owner, sender.request_stored, effect.attempt, effect.request, reply)

        def arrive(reply: Callable[[Any], None]) -> bool:
            if self.there.owner is not None:
                self.there.owner.replicate(effect.origin, session, effect.entries, effect.gaps, reply)
            return self.there.owner is not None

        self._connected().request(arrive, came)


def _source(place: Place, entry: Stored) -> SourceEntry:
    attribute = entry.attribute
    if attribute is None:
        return SourceEntry(entry.value, entry.messages, entry.first, entry.time_us)
    owner = place.owner
    gate = None if owner is None else owner.gates.by_key(attribute.key)
    assert gate is not None
    return SourceEntry(
        entry.value, entry.messages, entry.first, entry.time_us, gate.origin, attribute.first,
        attribute.publish_time_us, attribute.gaps,
    )  # fmt: skip
