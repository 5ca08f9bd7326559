"""MemberRepair: a state machine that copies to a member of a ledger the entries that it lacks, or cannot read."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence, Set
from dataclasses import dataclass

from pyreplog._native.machines.effects import Send
from pyreplog.autorecovery.protocol.member_change import written_end
from pyreplog.autorecovery.protocol.stripe_copy import StripeCopied, StripeCopy
from pyreplog.bookie.protocol import Reply
from pyreplog.ledger.ledger_metadata import LedgerMetadata
from pyreplog.ledger.protocol.effects import Effect, Finished, Wake


@dataclass(frozen=True)
class MemberRepaired:
    """The result of the repair of a member.

    Attributes:
        entries: number of entries that were copied to it.
        bytes: their size in bytes.
        missing: entries that it should hold, and that every bookie definitely lacks, ascending.
    """

    entries: int = 0
    bytes: int = 0
    missing: tuple[int, ...] = ()


class MemberRepair:
    """Copies missing entries to one member, fragment by fragment; ends with `Finished(MemberRepaired)`.

    The member is asked which entries it holds; the others are copied to it from the other members, and their records
    are checked. The metadata are not changed. The machine ends with `Finished(error=UnreadableError)` when a copy
    cannot be read or written now; entries copied before stay.

    Args:
        metadata: metadata of the ledger.
        bookie: id of the member.
        absent: ids of bookies that get no requests.
        others: bookies that are not members and are asked as well: their disks have returned.
        firsts: first entries of the fragments to repair; None: all.
        stop: entry behind the last one to repair. None: the end of the ledger, or the beginning of the last fragment if
            it is not closed.
        throttle: limits the bytes per second; None: no limit.
    """

    def __init__(
        self,
        metadata: LedgerMetadata,
        bookie: str,
        *,
        absent: Set[str] = frozenset(),
        others: Sequence[str] = (),
        firsts: Collection[int] | None = None,
        stop: int | None = None,
        throttle: Callable[[int], float] | None = None,
    ) -> None:
        self.ledger = metadata.ledger
        self._metadata, self._bookie = metadata, bookie
        self._absent, self._others, self._throttle = absent, others, throttle
        self._result = MemberRepaired()
        self._copy: StripeCopy | None = None
        # (first entry of a fragment, entry behind its last one, place of the member)
        self._parts: deque[tuple[int, int, int]] = deque()
        for fragment in metadata.fragments:
            ends = [end for end in (written_end(metadata, fragment), stop) if end is not None]
            if bookie in fragment.ensemble and ends and (firsts is None or fragment.first in firsts):
                self._parts.append((fragment.first, min(ends), fragment.ensemble.index(bookie)))

    def start(self) -> list[Effect]:
        return self._next_part()

    def replied(self, send: Send, reply: Reply) -> list[Effect]:
        return [] if self._copy is None else self._forward(self._copy.replied(send, reply))

    def failed(self, send: Send, error: Exception) -> list[Effect]:
        return [] if self._copy is None else self._forward(self._copy.failed(send, error))

    def woken(self, about: object) -> list[Effect]:
        """Wake the copy; ignore a wake-up of a copy that has ended."""
        assert isinstance(about, tuple)
        copy, inner = about
        return [] if self._copy is None or copy is not self._copy else self._forward(self._copy.woken(inner))

    def _next_part(self) -> list[Effect]:
        """Start on the next fragment.

        A copy ends only after all its requests were answered, so no late reply can arrive.
        """
        self._copy = None
        while self._parts:
            first, end, index = self._parts.popleft()
            if first < end:
                self._copy = StripeCopy(
                    self._metadata, first=first, end=end, index=index, target=self._bookie, absent=self._absent,
                    others=self._others, throttle=self._throttle,
                )  # fmt: skip
                return self._forward(self._copy.start())
        return [Finished(self._result)]

    def _forward(self, effects: Iterable[Effect]) -> list[Effect]:
        passed: list[Effect] = []
        for effect in effects:
            if isinstance(effect, Wake):
                passed.append(Wake(effect.seconds, (self._copy, effect.about)))
            elif not isinstance(effect, Finished):
                passed.append(effect)
            elif effect.error is not None:
                self._copy = None
                passed.append(effect)
            else:
                passed += self._handle_copied(effect.result)
        return passed

    def _handle_copied(self, copied: StripeCopied) -> list[Effect]:
        result = self._result
        self._result = MemberRepaired(
            result.entries + copied.entries, result.bytes + copied.bytes, (*result.missing, *copied.missing)
        )
        return self._next_part()
