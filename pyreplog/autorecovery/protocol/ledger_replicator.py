"""Moves the copies that some bookies hold of one ledger to other bookies. A state machine.

For each fragment that names such a bookie, the source: copy the member's entries to a target, prove that the target
holds them on its disk, then name the target in the metadata by compare-and-set. The proof is asked for after the
version of the metadata was read that the compare-and-set expects. So a bookie that removes surplus copies, which
changes the version first, never removes what a proof still counts on (BookKeeper #4668). After a conflict the proof is
asked for again. For the same reason the version is read again before entries are listed as lost: a member that denied
them may have removed them as surplus, because others took its place since. And bookies that are no members any more are
asked: one may keep copies, because the member that took its place has lost its disk before they were surplus.

Rules of BookKeeper's `ReplicationWorker` and `LedgerFragmentReplicator` are kept where they hold: the last fragment of
a ledger that is not closed is left to its writer, and a ledger that was deleted meanwhile is no error (#3316).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Set
from dataclasses import dataclass, replace
from typing import TypeAlias

from pyreplog._native.machines.effects import Send
from pyreplog.autorecovery.protocol.effects import ReplicationEffect, lost_entries
from pyreplog.autorecovery.protocol.member_change import (
    KEPT_RANGES_MAX,
    MemberChange,
    drop_empty,
    kept_ranges,
    written_end,
)
from pyreplog.autorecovery.protocol.stripe_copy import StripeCopied, StripeCopy
from pyreplog.bookie.holdings import DIGEST_MODULUS, Holdings
from pyreplog.bookie.protocol import READ_BYTES_MAX, Reply, ReplyStatus, Request, RequestKind
from pyreplog.errors import InvalidMessageError, InvalidMetadataError, NotEnoughBookiesError, UnreadableError
from pyreplog.ledger.ledger_metadata import Fragment, LedgerMetadata
from pyreplog.ledger.protocol.effects import Finished, Load, Store, Wake
from pyreplog.ledger.protocol.terminal_errors import error_text

ChooseTarget: TypeAlias = Callable[[LedgerMetadata, Fragment, int, Collection[str]], "str | None"]
"""Chooses a bookie for a place of a fragment, none of its members and none of those given; None: there is none."""

Throttle: TypeAlias = Callable[[int], float]
"""Gets bytes that were copied, and returns seconds to wait before more are copied."""

RETRY_S = 1.0
RETRY_MAX_S = 30.0
FRAGMENTS_MAX = 64
"""An entry that no bookie has a copy of is kept in a fragment of its own while one may return; so many are added."""


@dataclass(frozen=True)
class LedgerReplicated:
    """What became of the copies in one ledger.

    Attributes:
        metadata: metadata of the ledger, as they were stored or read last.
        version: their version.
        entries: number of entries that were copied.
        bytes: their bytes.
        lost: number of entries that were listed as lost.
        kept: number of entries of which a source that is away may have the only copy.
        is_open: a source is still named in the last fragment of a ledger that is not closed.
        is_deleted: the ledger was deleted.
    """

    metadata: LedgerMetadata
    version: int
    entries: int = 0
    bytes: int = 0
    lost: int = 0
    kept: int = 0
    is_open: bool = False
    is_deleted: bool = False


@dataclass(frozen=True)
class _Proving:
    """HOLDINGS of one stripe on the target, from its next entry on."""

    stripe: range


@dataclass(frozen=True)
class _CopyWake:
    """A wake-up of a copy; one that has ended meanwhile does not get it."""

    copy: StripeCopy
    about: object


class LedgerReplicator:
    """Ends with `Finished(LedgerReplicated)`, or with `Finished(error=...)`; what was done until then stays done.

    Errors: UnreadableError (an entry cannot be read now, or a target refuses copies), NotEnoughBookiesError (no bookie
    can take the place), InvalidMetadataError (the metadata were damaged meanwhile).

    Args:
        metadata: metadata of the ledger.
        version: version of the metadata in the store.
        sources: ids of the bookies whose copies are moved.
        lost: ids of bookies whose copies are gone, so that they are not asked; sources may be among them.
        away: ids of bookies that do not run and may come back.
        choose: chooses targets.
        others: ids of all bookies that run; those that are no members are asked for entries that no member has.
        throttle: limits the bytes in a second; None: no limit.
    """

    def __init__(
        self,
        metadata: LedgerMetadata,
        version: int,
        sources: Set[str],
        *,
        lost: Set[str],
        away: Set[str],
        choose: ChooseTarget,
        others: Set[str] = frozenset(),
        throttle: Throttle | None = None,
    ) -> None:
        self._metadata, self._version, self._sources = metadata, version, sources
        self._lost, self._away, self._choose, self._throttle = lost, away, choose, throttle
        self._others = others
        self._result = LedgerReplicated(metadata, version)
        self._settled: set[tuple[int, str]] = set()  # first entries of fragments in which a source keeps its place
        self._splits_left = FRAGMENTS_MAX // 2  # each makes two fragments more
        self._refused: set[str] = set()  # targets
        self._disproved: UnreadableError | None = None  # of the fragment: why a target with other records was refused
        self._place: tuple[int, str] | None = None  # the fragment's first entry, and the source that is replaced
        self._sends: dict[int, Send] = {}  # requests on their way, by identity; replies to others are too late
        self._copy: StripeCopy | None = None
        self._asks_others = False
        self._copied: StripeCopied | None = None
        self._change: MemberChange | None = None
        self._proof: tuple[int, int] = (0, 0)  # entries and digest, as far as the target has told
        self._proofs_left = 0
        self._is_doubtful = False  # entries are to be listed as lost, if the metadata are still the same
        self._stored: LedgerMetadata | None = None  # what the compare-and-set that is on its way stores
        self._retry_s = RETRY_S
        self._is_over = False

    def start(self) -> list[ReplicationEffect]:
        return self._next_fragment()

    # ---- fragments ------------------------------------------------------------------------------------------

    def _next_fragment(self) -> list[ReplicationEffect]:
        """Begin with the first fragment that names a source and is not settled."""
        metadata, self._copy, self._copied, self._change, self._stored = self._metadata, None, None, None, None
        self._is_doubtful = False
        self._sends.clear()
        for fragment in metadata.fragments:
            end = written_end(metadata, fragment)
            for index, source in enumerate(fragment.ensemble):
                if source not in self._sources or (fragment.first, source) in self._settled:
                    continue
                if end is None:
                    self._result = replace(self._result, is_open=True)
                    continue
                return self._replace(fragment, end, index)
        return self._end(self._result)

    def _replace(self, fragment: Fragment, end: int, index: int) -> list[ReplicationEffect]:
        """Choose a bookie for a place of a fragment, and begin to copy."""
        metadata, source = self._metadata, fragment.ensemble[index]
        if self._place != (fragment.first, source):
            self._place, self._disproved = (fragment.first, source), None
        # A source may take entries again, once its drain has ended: moved there, its copies would be moved for ever.
        target = self._choose(metadata, fragment, index, self._refused | self._sources)
        if target is None:
            lacking = NotEnoughBookiesError(
                f"ledger {metadata.ledger}: no bookie can take the place of {source} in the fragment from entry "
                f"{fragment.first} on; add a bookie"
            )
            return self._fail(self._disproved or lacking)
        if end == fragment.first:
            return self._store_empty(source, target)
        self._change = MemberChange(metadata.ledger, fragment.first, end, index, source, target)
        return self._begin_copy(self._change, asks_others=False)

    def _begin_copy(self, change: MemberChange, *, asks_others: bool) -> list[ReplicationEffect]:
        """Copy from the members of the fragment, or what they do not have from all bookies that run."""
        members = self._metadata.fragment_of(change.first).ensemble
        self._asks_others = asks_others
        self._copy = StripeCopy(
            self._metadata, first=change.first, end=change.end, index=change.index, target=change.target,
            absent=self._lost | {change.source} if self._is_away(change.source) else self._lost,
            others=sorted(self._others - {*members, change.target}) if asks_others else (),
            throttle=self._throttle, resume=True if asks_others else None,
        )  # fmt: skip
        return self._passed_on(self._copy.start())

    def _is_away(self, source: str) -> bool:
        """Whether a source may come back with copies that nobody else has."""
        return source in self._away and source not in self._lost

    def _store_empty(self, source: str, target: str) -> list[ReplicationEffect]:
        """Name the target in a ledger without entries, where nothing is to be copied (BookKeeper #3220)."""
        changed = drop_empty(self._metadata, source, target)
        assert changed is not None
        self._stored = changed
        return [Store(changed, self._version)]

    # ---- copying --------------------------------------------------------------------------------------------

    def _passed_on(self, effects: Iterable[ReplicationEffect]) -> list[ReplicationEffect]:
        """Pass on the effects of the copy; when it has ended, go on with what follows."""
        passed: list[ReplicationEffect] = []
        copy = self._copy
        assert copy is not None
        for effect in effects:
            if isinstance(effect, Send):
                passed.append(self._sent(effect))
            elif isinstance(effect, Wake):
                passed.append(Wake(effect.seconds, _CopyWake(copy, effect.about)))
            elif not isinstance(effect, Finished):
                passed.append(effect)
            elif effect.error is not None:
                passed += self._copy_failed(effect.error)
            else:
                passed += self._have_copied(effect.result)
        return passed

    def _sent(self, send: Send) -> Send:
        self._sends[id(send)] = send
        return send

    def _copy_failed(self, error: Exception) -> list[ReplicationEffect]:
        copy, change = self._copy, self._change
        assert copy is not None and change is not None
        if not copy.is_refused:
            return self._fail(error)
        self._refused.add(change.target)  # another target may take the copies
        return self._next_fragment()

    def _have_copied(self, copied: StripeCopied) -> list[ReplicationEffect]:
        self._copy, self._copied = None, copied
        change, result = self._change, self._result
        assert change is not None
        self._result = replace(result, entries=result.entries + copied.entries, bytes=result.bytes + copied.bytes)
        if not copied.missing:
            return self._prove()
        if not self._asks_others and self._others:
            return self._begin_copy(change, asks_others=True)
        if self._is_away(change.source):
            return self._keep(change, copied)
        self._is_doubtful = True
        return [Load()]

    def _list_lost(self) -> list[ReplicationEffect]:
        """List the entries that nobody has: the members that denied them are those that the metadata still name."""
        copied, change = self._copied, self._change
        assert copied is not None and change is not None
        self._is_doubtful = False
        return [lost_entries(self._metadata, copied.missing, change.source, self._lost)]

    def noted(self) -> list[ReplicationEffect]:
        """The lost entries are listed: from now on the metadata need not name the source any more."""
        if self._is_over or self._copied is None:
            return []
        self._result = replace(self._result, lost=self._result.lost + len(self._copied.missing))
        return self._prove()

    def _keep(self, change: MemberChange, copied: StripeCopied) -> list[ReplicationEffect]:
        """Leave the source, which is away, the entries of which nobody else has a copy."""
        kept = kept_ranges(self._metadata.stripes(change.index, change.first, change.end), copied.missing)
        self._result = replace(self._result, kept=self._result.kept + len(copied.missing))
        if not copied.held or len(kept) > min(KEPT_RANGES_MAX, self._splits_left):
            self._settled.add((change.first, change.source))  # it waits until the source is back, or declared lost
            return self._next_fragment()
        self._splits_left -= len(kept)
        self._settled.update((part.start, change.source) for part in kept)
        self._change = replace(change, kept=kept)
        return self._prove()

    # ---- proof ----------------------------------------------------------------------------------------------

    def _prove(self) -> list[ReplicationEffect]:
        """Ask the target what it holds on its disk."""
        change = self._change
        assert change is not None
        stripes = [stripe for stripe in self._metadata.stripes(change.index, change.first, change.end) if stripe]
        self._proof, self._proofs_left = (0, 0), len(stripes)
        self._sends.clear()
        if not stripes:  # none of the few entries of the fragment is on this member
            return self._have_proof()
        return [self._ask_holdings(stripe) for stripe in stripes]

    def _ask_holdings(self, stripe: range) -> Send:
        change = self._change
        assert change is not None
        request = Request(
            RequestKind.HOLDINGS, self._metadata.ledger, stripe[0], stripe[-1], limit=READ_BYTES_MAX, step=stripe.step
        )
        return self._sent(Send(change.target, request, _Proving(stripe)))

    def _check_holdings(self, send: Send, reply: Reply) -> list[ReplicationEffect]:
        stripe = send.about.stripe
        if reply.status != ReplyStatus.OK:
            return self._fail(self._unproved(f"{send.bookie} does not tell what it holds: {error_text(reply)}"))
        try:
            holdings = Holdings.decode(send.request, reply)
        except InvalidMessageError as error:
            return self._fail(self._unproved(f"{send.bookie}: {error}"))
        entries, digest = self._proof
        self._proof = entries + holdings.count, (digest + holdings.digest) % DIGEST_MODULUS
        rest = stripe[(reply.last - stripe[0]) // stripe.step + 1 :]
        if rest:
            return [self._ask_holdings(rest)]
        self._proofs_left -= 1
        return [] if self._proofs_left else self._have_proof()

    def _have_proof(self) -> list[ReplicationEffect]:
        copied, change = self._copied, self._change
        assert copied is not None and change is not None
        if self._proof != (copied.held, copied.digest):  # it has other records, also when it is asked once more
            self._disproved = self._unproved(
                f"{change.target} was given {copied.held} entries with digest {copied.digest:016x}, and holds "
                f"{self._proof[0]} with {self._proof[1]:016x}"
            )
            self._refused.add(change.target)
            return self._next_fragment()
        changed = change.applied(self._metadata)
        if changed is None:  # the metadata were changed during the copy, and read again after a conflict
            return self._next_fragment()
        self._stored = changed
        return [Store(changed, self._version)]

    def _unproved(self, reason: str) -> UnreadableError:
        return UnreadableError(self._metadata.ledger, f"the copies are not proved: {reason}")

    # ---- replies --------------------------------------------------------------------------------------------

    def replied(self, send: Send, reply: Reply) -> list[ReplicationEffect]:
        if self._is_over or self._sends.pop(id(send), None) is not send:
            return []
        if isinstance(send.about, _Proving):
            return self._check_holdings(send, reply)
        return [] if self._copy is None else self._passed_on(self._copy.replied(send, reply))

    def failed(self, send: Send, error: Exception) -> list[ReplicationEffect]:
        if self._is_over or self._sends.pop(id(send), None) is not send:
            return []
        if isinstance(send.about, _Proving):
            return self._fail(self._unproved(f"{send.bookie} does not tell what it holds: {error}"))
        return [] if self._copy is None else self._passed_on(self._copy.failed(send, error))

    def woken(self, about: object) -> list[ReplicationEffect]:
        if self._is_over:
            return []
        if about is self:
            return self._look_again()
        if not isinstance(about, _CopyWake) or about.copy is not self._copy:
            return []
        return self._passed_on(about.copy.woken(about.about))

    # ---- metadata -------------------------------------------------------------------------------------------

    def stored(self, version: int) -> list[ReplicationEffect]:
        if self._is_over or self._stored is None:
            return []
        self._metadata, self._version = self._stored, version
        return self._next_fragment()

    def conflicted(self, current: LedgerMetadata, version: int) -> list[ReplicationEffect]:
        """Another process changed the metadata. The copies stay good for what it left as it was."""
        return self.loaded(current, version)

    def loaded(self, current: LedgerMetadata, version: int) -> list[ReplicationEffect]:
        if self._is_over:
            return []
        self._retry_s = RETRY_S
        if self._is_doubtful and version == self._version:
            return self._list_lost()
        was, self._metadata, self._version = self._stored, current, version
        if self._is_doubtful:  # what was denied may be elsewhere now
            return self._next_fragment()
        if was is not None and current == was:  # the reply to the compare-and-set was lost
            return self._next_fragment()
        if self._copied is None or self._change is None or self._change.applied(current) is None:
            return self._next_fragment()
        if self._copied.missing and not self._change.kept:
            return self._next_fragment()  # members may have been given what was listed as lost
        return self._prove()

    def store_unknown(self) -> list[ReplicationEffect]:
        """The store did not answer: whether it stored the metadata is unknown."""
        if self._is_over:
            return []
        seconds, self._retry_s = self._retry_s, min(2 * self._retry_s, RETRY_MAX_S)
        return [Wake(seconds, self)]

    def _look_again(self) -> list[ReplicationEffect]:
        """Read the metadata. A list of lost entries that had no outcome is repeated if they have not changed since."""
        if self._stored is None and self._change is not None and self._copied is not None:
            self._is_doubtful = True
        return [Load()]

    def deleted(self) -> list[ReplicationEffect]:
        return [] if self._is_over else self._end(replace(self._result, is_deleted=True))

    def garbled(self, error: InvalidMetadataError) -> list[ReplicationEffect]:
        return [] if self._is_over else self._fail(error)

    # ---- the end --------------------------------------------------------------------------------------------

    def _end(self, result: LedgerReplicated) -> list[ReplicationEffect]:
        self._is_over = True
        return [Finished(replace(result, metadata=self._metadata, version=self._version))]

    def _fail(self, error: Exception) -> list[ReplicationEffect]:
        self._is_over = True
        return [Finished(error=error)]
