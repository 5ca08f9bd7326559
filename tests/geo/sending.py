"""A `Sender` that a test drives: the test collects its effects and answers them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from pyreplog._native.system.checksum import crc32c
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
    TargetPosition,
    WakeAt,
)
from pyreplog.geo.protocol.sender import Sender, SendingSettings
from pyreplog.origins.origin import Gap, LastEntry, Origin, OriginState

OWN, OTHER = Origin(b"A" * 16, "own"), Origin(b"C" * 16, "other")
TARGET = b"B" * 16
START_US = 1_700_000_000_000_000

E = TypeVar("E", bound=Effect)


def entry(
    first: int,
    messages: int = 1,
    value: bytes = b"",
    time_us: int = START_US,
    replicate_to: Iterable[str] | None = None,
) -> SourceEntry:
    """Return an entry that was published in this cluster."""
    names = None if replicate_to is None else frozenset(replicate_to)
    return SourceEntry(value or b"%d" % first, messages, first, time_us, replicate_to=names)


def foreign(
    first: int, at_origin: int, messages: int = 1, gaps: tuple[Gap, ...] = (), origin: Origin = OTHER
) -> SourceEntry:
    """Return an entry that came from another cluster."""
    return SourceEntry(b"f%d" % first, messages, first, START_US, origin, at_origin, START_US - 1, gaps)


def last_of(sent: SourceEntry) -> LastEntry:
    return LastEntry(sent.first, sent.end, crc32c(sent.value), sent.time_us)


class Sending:
    """A sender of these entries. `effects` are those that the test has not taken yet."""

    def __init__(self, *entries: SourceEntry, start: int = 0, **arguments: Any) -> None:
        self.entries = list(entries)
        self.now_us = 0
        self.effects: list[Effect] = []
        settings = arguments.pop("settings", SendingSettings())
        self.sender = Sender(OWN, settings, epoch=3, random=lambda: 1.0, **arguments)
        self.grow(start=start)
        self.do(self.sender.resume)

    @property
    def end(self) -> int:
        return self.entries[-1].end if self.entries else 0

    def do(self, event: Callable[..., list[Effect]], *arguments: Any) -> None:
        self.effects += event(*arguments, self.now_us, START_US + self.now_us)

    def grow(self, *entries: SourceEntry, start: int = 0) -> None:
        self.entries += entries
        self.do(self.sender.grew, start, self.end)

    def take(self, kind: type[E]) -> E:
        """Take the next effect of a kind; fail if there is none."""
        taken = self.all(kind)
        assert taken, f"no {kind.__name__} among {self.effects}"
        self.effects.remove(taken[0])
        return taken[0]

    def all(self, kind: type[E]) -> list[E]:
        return [effect for effect in self.effects if isinstance(effect, kind)]

    def open(self, stored: int = 0, last: LastEntry | None = None, cluster: bytes = TARGET) -> OpenOrigin:
        """Answer the next opening, as the target of a new session."""
        effect = self.take(OpenOrigin)
        self.do(self.sender.opened, effect.attempt, effect.origin, cluster, OriginState(stored, last))
        return effect

    def read(self) -> None:
        """Answer the read that the sender asked for."""
        effect = self.take(ReadEntries)
        self.do(self.sender.entries_read, effect.attempt, [one for one in self.entries if one.end > effect.offset])

    def check(self) -> None:
        effect = self.take(CheckEntry)
        here = [one for one in self.entries if one.first == effect.first]
        self.do(self.sender.checked, effect.attempt, here[0] if here else None)

    def sent(self) -> SendEntries:
        return self.take(SendEntries)

    def acknowledge(self, request: SendEntries) -> None:
        end = request.gaps[-1].end if request.gaps else request.entries[-1].end
        self.do(self.sender.request_stored, request.attempt, request.request, end)

    def fail(self, request: SendEntries, error: Exception) -> None:
        self.do(self.sender.request_failed, request.attempt, request.request, error)

    def wake(self) -> None:
        """Fire the timer that the sender has set."""
        effect = self.all(WakeAt)[-1]
        self.effects = [one for one in self.effects if not isinstance(one, WakeAt)]
        self.now_us = max(self.now_us, effect.at_us)
        self.do(self.sender.woke)

    def progress(self) -> Progress:
        return self.all(Progress)[-1]

    def alarms(self) -> list[str]:
        return [effect.text for effect in self.all(RaiseAlarm)]

    def disconnects(self) -> int:
        return len(self.all(Disconnect))


def position(stored: int, last: LastEntry | None = None) -> TargetPosition:
    return TargetPosition(stored, last)
