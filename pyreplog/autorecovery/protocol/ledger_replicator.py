"""LedgerReplicator: a state machine that moves the copies which some bookies hold of one ledger to other bookies.

For each fragment that names such a bookie, the source, it copies the member's entries to a target, proves that the
target has them on disk, and then names the target in the metadata by compare-and-set. The proof is requested after
reading the metadata version that the compare-and-set expects. A bookie that removes surplus copies changes that version
first, so it never removes copies that a proof relies on (BookKeeper #4668). After a conflict the proof is requested
again. For the same reason the version is read again before entries are listed as lost: a member that denied them may
have removed them as surplus, because it was replaced meanwhile. Bookies that are no longer members are asked as well:
one of them may keep copies, because the member that replaced it lost its disk before these copies became surplus.

Two rules are those of BookKeeper's `ReplicationWorker` and `LedgerFragmentReplicator`: the last fragment of a ledger
that is not closed is left to its writer, and a ledger that was deleted meanwhile is no error (#3316).
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
"""Chooses a bookie for a place of a fragment: no member, and none of the given ids. None: there is no such bookie."""

Throttle: TypeAlias = Callable[[int], float]
"""Takes a number of copied bytes, and returns the seconds to wait before the next copy."""

RETRY_S = 1.0
RETRY_MAX_S = 30.0
FRAGMENTS_MAX = 64
"""Maximum number of fragments that are added to keep, each in its own fragment, entries of which a bookie that may
return could have the only copy."""


@dataclass(frozen=True)
class LedgerReplicated:
    """The result of replicating one ledger.

    Attributes:
        metadata: metadata of the ledger that were stored or read last.
        version: their version.
        entries: number of copied entries.
        bytes: size of the copied entries, bytes.
        lost: number of entries that were listed as lost.
        kept: number of entries of which an absent source may have the only copy.
        is_open: whether the last fragment of a ledger that is not closed still names a source.
        is_deleted: whether the ledger was deleted.
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
    """A HOLDINGS request about one stripe, sent to the target from its next entry on."""

    stripe: range


@dataclass(frozen=True)
class _CopyWake:
    """A wake-up of a copy; it is dropped if the copy has ended."""

    copy: StripeCopy
    about: object


class LedgerReplicator:
    """Replicates some bookies' copies of a ledger; ends with `Finished(LedgerReplicated)` or `Finished(error=...)`.

    Changes made before an error stay. The error is an UnreadableError (an entry cannot be read now, or a target refuses
    copies), a NotEnoughBookiesError (no bookie can replace the source) or an InvalidMetadataError (the metadata were
    damaged meanwhile).

    Args:
        metadata: metadata of the ledger.
        version: version of the metadata in the store.
        sources: ids of the bookies whose copies are moved.
        lost: ids of bookies whose copies count as lost, so that they get no requests; may include sources.
        away: ids of bookies that do not run and may return.
        choose: chooses the targets.
        others: ids of all running bookies; those that are no members are asked for entries that no member has.
        throttle: limits the bytes per second; None: no limit.
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
        self._settled: set[tuple[int, str]] = set()  # (first entry of a fragment, source) that keeps its place
        self._splits_left = FRAGMENTS_MAX // 2  # each split adds two fragments
        self._refused: set[str] = set()  # targets that refused copies
        self._proof_error: UnreadableError | None = None  # why the target of this fragment was refused
        self._place: tuple[int, str] | None = None  # first entry of the fragment, and the source to replace
        self._sends: dict[int, Send] = {}  # requests in flight, by identity; replies to other requests are ignored
        self._copy: StripeCopy | None = None
        self._asks_others = False
        self._copied: StripeCopied | None = None
        self._change: MemberChange | None = None
        self._proof: tuple[int, int] = (0, 0)  # entries and digest that the target has reported so far
        self._proofs_left = 0
        self._is_doubtful = False  # list entries as lost if the metadata version is unchanged
        self._stored: LedgerMetadata | None = None  # metadata of the compare-and-set in flight
        self._retry_s = RETRY_S
        self._is_over = False

    def start(self) -> list[ReplicationEffect]:
        return self._next_fragment()

    # ---- fragments ------------------------------------------------------------------------------------------

    def _next_fragment(self) -> list[ReplicationEffect]:
        """Start on the first fragment that names a source and is not settled."""
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
        """Choose a target for a place of a fragment, and start to copy."""
        metadata, source = self._metadata, fragment.ensemble[index]
        if self._place != (fragment.first, source):
            self._place, self._proof_error = (fragment.first, source), None
        # A source whose drain has ended may take entries again: copies moved to it would be moved back and forth for
        # ever.
        target = self._choose(metadata, fragment, index, self._refused | self._sources)
        if target is None:
            lacking = NotEnoughBookiesError(
                f"ledger {metadata.ledger}: no bookie can take the place of {source} in the fragment from entry "
                f"{fragment.first} on; add a bookie"
            )
            return self._fail(self._proof_error or lacking)
        if end == fragment.first:
            return self._store_empty(source, target)
        self._change = MemberChange(metadata.ledger, fragment.first, end, index, source, target)
        return self._begin_copy(self._change, asks_others=False)

    def _begin_copy(self, change: MemberChange, *, asks_others: bool) -> list[ReplicationEffect]:
        """Copy from the members of the fragment, or, for entries that they lack, from all running bookies."""
        members = self._metadata.fragment_of(change.first).ensemble
        self._asks_others = asks_others
        self._copy = StripeCopy(
            self._metadata, first=change.first, end=change.end, index=change.index, target=change.target,
            absent=self._lost | {change.source} if self._is_away(change.source) else self._lost,
            others=sorted(self._others - {*members, change.target}) if asks_others else (),
            throttle=self._throttle, resume=True if asks_others else None,
        )  # fmt: skip
        return self._forward(self._copy.start())

    def _is_away(self, source: str) -> bool:
        """Return whether a source may return with copies that no other bookie has."""
        return source in self._away and source not in self._lost

    def _store_empty(self, source: str, target: str) -> list[ReplicationEffect]:
        """Name the target in a ledger without entries, where nothing is to be copied (BookKeeper #3220)."""
        changed = drop_empty(self._metadata, source, target)
        assert changed is not None
        self._stored = changed
        return [Store(changed, self._version)]

    # ---- copying --------------------------------------------------------------------------------------------

    def _forward(self, effects: Iterable[ReplicationEffect]) -> list[ReplicationEffect]:
        """Return the effects of the copy for the driver; when the copy has ended, continue with the next step."""
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
                passed += self._handle_copied(effect.result)
        return passed

    def _sent(self, send: Send) -> Send:
        self._sends[id(send)] = send
        return send

    def _copy_failed(self, error: Exception) -> list[ReplicationEffect]:
        copy, change = self._copy, self._change
        assert copy is not None and change is not None
        if not copy.is_refused:
            return self._fail(error)
        self._refused.add(change.target)  # try another target
        return self._next_fragment()

    def _handle_copied(self, copied: StripeCopied) -> list[ReplicationEffect]:
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
        """List entries as lost. The metadata still name the same members as when these denied the entries."""
        copied, change = self._copied, self._change
        assert copied is not None and change is not None
        self._is_doubtful = False
        return [lost_entries(self._metadata, copied.missing, change.source, self._lost)]

    def noted(self) -> list[ReplicationEffect]:
        """The lost entries are listed, so the metadata no longer need to name the source."""
        if self._is_over or self._copied is None:
            return []
        self._result = replace(self._result, lost=self._result.lost + len(self._copied.missing))
        return self._prove()

    def _keep(self, change: MemberChange, copied: StripeCopied) -> list[ReplicationEffect]:
        """Keep an absent source as member for the entries of which no other bookie has a copy."""
        kept = kept_ranges(self._metadata.stripes(change.index, change.first, change.end), copied.missing)
        self._result = replace(self._result, kept=self._result.kept + len(copied.missing))
        if not copied.held or len(kept) > min(KEPT_RANGES_MAX, self._splits_left):
            self._settled.add((change.first, change.source))  # retried when the source is back, or was declared lost
            return self._next_fragment()
        self._splits_left -= len(kept)
        self._settled.update((part.start, change.source) for part in kept)
        self._change = replace(change, kept=kept)
        return self._prove()

    # ---- proof ----------------------------------------------------------------------------------------------

    def _prove(self) -> list[ReplicationEffect]:
        """Request proof from the target that it has the entries on disk."""
        change = self._change
        assert change is not None
        stripes = [stripe for stripe in self._metadata.stripes(change.index, change.first, change.end) if stripe]
        self._proof, self._proofs_left = (0, 0), len(stripes)
        self._sends.clear()
        if not stripes:  # this member holds none of the entries of a short fragment
            return self._handle_proof()
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
            return self._fail(
                self._unproved_error(f"{send.bookie} does not report which entries it holds: {error_text(reply)}")
            )
        try:
            holdings = Holdings.decode(send.request, reply)
        except InvalidMessageError as error:
            return self._fail(self._unproved_error(f"{send.bookie}: {error}"))
        entries, digest = self._proof
        self._proof = entries + holdings.count, (digest + holdings.digest) % DIGEST_MODULUS
        rest = stripe[(reply.last - stripe[0]) // stripe.step + 1 :]
        if rest:
            return [self._ask_holdings(rest)]
        self._proofs_left -= 1
        return [] if self._proofs_left else self._handle_proof()

    def _handle_proof(self) -> list[ReplicationEffect]:
        copied, change = self._copied, self._change
        assert copied is not None and change is not None
        # the target has other records, and would have them at the next attempt
        if self._proof != (copied.held, copied.digest):
            self._proof_error = self._unproved_error(
                f"{change.target} was sent {copied.held} entries with digest {copied.digest:016x}, and holds "
                f"{self._proof[0]} with {self._proof[1]:016x}"
            )
            self._refused.add(change.target)
            return self._next_fragment()
        changed = change.applied(self._metadata)
        if changed is None:  # the metadata changed during the copy, and were read again after a conflict
            return self._next_fragment()
        self._stored = changed
        return [Store(changed, self._version)]

    def _unproved_error(self, reason: str) -> UnreadableError:
        return UnreadableError(self._metadata.ledger, f"the copies are not verified: {reason}")

    # ---- replies --------------------------------------------------------------------------------------------

    def replied(self, send: Send, reply: Reply) -> list[ReplicationEffect]:
        if self._is_over or self._sends.pop(id(send), None) is not send:
            return []
        if isinstance(send.about, _Proving):
            return self._check_holdings(send, reply)
        return [] if self._copy is None else self._forward(self._copy.replied(send, reply))

    def failed(self, send: Send, error: Exception) -> list[ReplicationEffect]:
        if self._is_over or self._sends.pop(id(send), None) is not send:
            return []
        if isinstance(send.about, _Proving):
            return self._fail(self._unproved_error(f"{send.bookie} does not report which entries it holds: {error}"))
        return [] if self._copy is None else self._forward(self._copy.failed(send, error))

    def woken(self, about: object) -> list[ReplicationEffect]:
        if self._is_over:
            return []
        if about is self:
            return self._reload()
        if not isinstance(about, _CopyWake) or about.copy is not self._copy:
            return []
        return self._forward(about.copy.woken(about.about))

    # ---- metadata -------------------------------------------------------------------------------------------

    def stored(self, version: int) -> list[ReplicationEffect]:
        if self._is_over or self._stored is None:
            return []
        self._metadata, self._version = self._stored, version
        return self._next_fragment()

    def conflicted(self, current: LedgerMetadata, version: int) -> list[ReplicationEffect]:
        """Another process changed the metadata. The copies remain valid where it left the fragment unchanged."""
        return self.loaded(current, version)

    def loaded(self, current: LedgerMetadata, version: int) -> list[ReplicationEffect]:
        if self._is_over:
            return []
        self._retry_s = RETRY_S
        if self._is_doubtful and version == self._version:
            return self._list_lost()
        was, self._metadata, self._version = self._stored, current, version
        if self._is_doubtful:  # another bookie may have the denied entries now
            return self._next_fragment()
        if was is not None and current == was:  # the compare-and-set succeeded, and its reply was lost
            return self._next_fragment()
        if self._copied is None or self._change is None or self._change.applied(current) is None:
            return self._next_fragment()
        if self._copied.missing and not self._change.kept:
            return self._next_fragment()  # members may have received entries that were listed as lost
        return self._prove()

    def store_unknown(self) -> list[ReplicationEffect]:
        """The store did not answer: it is unknown whether it stored the metadata."""
        if self._is_over:
            return []
        seconds, self._retry_s = self._retry_s, min(2 * self._retry_s, RETRY_MAX_S)
        return [Wake(seconds, self)]

    def _reload(self) -> list[ReplicationEffect]:
        """Read the metadata again.

        If the outcome of a list of lost entries is unknown, repeat it if the version is unchanged.
        """
        if self._stored is None and self._change is not None and self._copied is not None:
            self._is_doubtful = True
        return [Load()]

    def deleted(self) -> list[ReplicationEffect]:
        return [] if self._is_over else self._end(replace(self._result, is_deleted=True))

    def garbled(self, error: InvalidMetadataError) -> list[ReplicationEffect]:
        return [] if self._is_over else self._fail(error)

    # ---- finishing ------------------------------------------------------------------------------------------

    def _end(self, result: LedgerReplicated) -> list[ReplicationEffect]:
        self._is_over = True
        return [Finished(replace(result, metadata=self._metadata, version=self._version))]

    def _fail(self, error: Exception) -> list[ReplicationEffect]:
        self._is_over = True
        return [Finished(error=error)]
