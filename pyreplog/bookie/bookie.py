"""The bookie: a storage node as a state machine over the log in which it stores entries.

The rules, with the numbers of BookKeeper's bugs that they avoid:

- The fence check and the append are one step on one object for each ledger (#4462, #4701: two objects, two locks).
- A fence is durable before any reply to it, positive or negative, and a read that fences sees all earlier entries.
- Only an intact index says "not here"; damage, lost data and a failing disk give UNKNOWN (#2908, #2612).
- No reader gets an entry before it has the durability that its writer asked for.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Collection, Hashable, Iterable
from typing import TYPE_CHECKING, Protocol

from pyreplog._native.bookie.fast_add import FastAdd, FastAddHandler
from pyreplog._native.bookie.inspect_records import inspect_entries
from pyreplog.bookie.admission import VerifiedProofs, check_add, check_claim, check_key, check_writer, has_key
from pyreplog.bookie.commit_group import CommitGroup, PendingReply, discard_reply
from pyreplog.bookie.config import BookieConfig
from pyreplog.bookie.controls import Controls
from pyreplog.bookie.counts import BookieCounters, Gauges
from pyreplog.bookie.disk_space import DiskSpaceMonitor
from pyreplog.bookie.duplicates import are_stored
from pyreplog.bookie.entry_log import EntryLog
from pyreplog.bookie.failures import is_final, status_of
from pyreplog.bookie.holdings import holdings_reply
from pyreplog.bookie.key_verifier import KeyVerdict
from pyreplog.bookie.ledger_state import CONTROLS, FENCE, LedgerState
from pyreplog.bookie.ledger_state_cache import LedgerStateCache
from pyreplog.bookie.limbo import LIMBO_MAX, Limbo
from pyreplog.bookie.live_entries import LiveEntries
from pyreplog.bookie.long_polls import LongPoll, LongPolls, Respond
from pyreplog.bookie.protocol import (
    ID_MAX,
    OK,
    RECOVERY,
    UNSYNCED,
    WAIT_MS_MAX,
    Flag,
    Reply,
    ReplyStatus,
    Request,
    RequestKind,
)
from pyreplog.bookie.reading import read_entries
from pyreplog.bookie.scrub_report import ScrubReport
from pyreplog.errors import DiskError, DiskFullError, ReplogError

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

logger = logging.getLogger(__name__)

Handler = Callable[[Request, Respond], Reply | None]


class ScrubControl(Protocol):
    """The scrub of the bookie's segments. Calls neither wait for it nor call the bookie."""

    def scrub_now(self, bytes_per_s: int | None = None) -> None:
        """Begin a pass over all segments, at so many bytes a second; None: as configured."""
        ...

    def report(self) -> ScrubReport:
        """Return how far the scrub is."""
        ...


_OF_NO_LEDGER = frozenset({RequestKind.STATUS, RequestKind.SCRUB})
_KEYED, _FENCING = frozenset({RequestKind.ADD, RequestKind.SET_LAC}), frozenset({RequestKind.READ, RequestKind.LAST})
_LOST = b"entries of the ledger may have been lost in a crash"


class Bookie(FastAddHandler):
    """Handles requests one after the other, without threads, sockets, clocks or randomness.

    The driver passes requests to `handle`, calls `commit` when it has no more of them, and calls `expire` at
    `next_deadline_us` and regularly.

    Args:
        log: the log of entries.
        config: settings.
        limbo: ledgers that enter limbo at once (see `limbo`).
    """

    counts: BookieCounters
    _log: EntryLog
    _space: DiskSpaceMonitor
    _polls: LongPolls
    _group: CommitGroup
    _lacs: dict[int, LedgerState]

    def __init__(self, log: EntryLog, config: BookieConfig, limbo: Collection[int] = ()) -> None:
        space, polls = DiskSpaceMonitor(config, log.free_bytes), LongPolls(config.long_polls_max)
        self._ledgers = LedgerStateCache(log, config.ledger_states_max, polls.awaits)
        states, deleted = self._ledgers.states, self._ledgers.deleted
        super().__init__(log, space, polls, BookieCounters(), CommitGroup(), states, deleted)
        self.limbo = Limbo(log, self._ledgers, self._group)
        self._proofs = VerifiedProofs()
        self.live = LiveEntries(log)
        self._now_us = 0
        self._client: Hashable = None  # client of the current request
        self._handlers: dict[int, Handler] = {
            RequestKind.ADD: self._add,
            RequestKind.READ: self._read,
            RequestKind.LAST: self._last,
            RequestKind.SET_LAC: self._set_lac,
            RequestKind.WAIT_LAC: self._wait_lac,
            RequestKind.STATUS: self._status,
            RequestKind.HOLDINGS: self._holdings,
            RequestKind.SCRUB: self._scrub,
        }
        self.scrub: ScrubControl | None = None
        """Answers SCRUB requests; None: nothing verifies this bookie's segments."""
        self.limbo.enter(limbo)

    # ---- requests -------------------------------------------------------------------------------------------

    def handle(
        self, request: Request, respond: Respond, client: Hashable = None, verdict: KeyVerdict | None = None
    ) -> None:
        """Handle a request.

        Args:
            request: the request.
            respond: called once with the Reply, now or in a later call of any method of the bookie.
            client: the client that asks; see `leave`.
            verdict: verdict on the key of a request that `claims` its ledger; None: every key is accepted.
        """
        self.counts.count_request(request.kind)
        self._client = client
        reply = self._refuse_claim(request, verdict) or self._reply_to(request, respond)
        if reply is not None:
            self._answer(respond, reply)

    def claims(self, request: Request) -> bool:
        """Return whether a request needs the ledger's key or its proof, and has one that this bookie does not know."""
        if request.kind not in _KEYED and not (request.kind in _FENCING and request.flags & Flag.FENCE):
            return False
        if self._failure is not None or max(request.ledger, request.first, request.last) > ID_MAX:
            return False
        if request.is_copy:
            return not self._proofs.has(request.ledger, request.key)
        try:
            state = self._ledgers.get(request.ledger)
        except (ReplogError, OSError):  # `handle` answers with the error
            return False
        return self._ledgers.is_deleted(request.ledger) or not has_key(request, state)

    def _refuse_claim(self, request: Request, verdict: KeyVerdict | None) -> Reply | None:
        """Return the refusal of a request by the verdict on its key; None: it is allowed, or its key was noted
        meanwhile."""
        if verdict is None or not self.claims(request):
            return None
        deleted = self._ledgers.is_deleted(request.ledger)
        refusal = check_claim(request, self._ledgers.peek(request.ledger), verdict, deleted=deleted)
        if refusal is None and request.is_copy:
            self._proofs.note(request.ledger, request.key)
        return None if refusal is None else self._refuse(request, *refusal)

    def leave(self, client: Hashable) -> None:
        """End the long polls of a client that has disconnected, without replies."""
        self._polls.leave(client)

    def _answer(self, respond: Respond, reply: Reply) -> None:
        self.counts.count_reply(reply.status)
        respond(reply)

    def _reply_to(self, request: Request, respond: Respond) -> Reply | None:
        """Return the reply to a request; None: it is answered later."""
        if self._failure is not None:
            return self._refuse(request, ReplyStatus.UNKNOWN, self._failure)
        if max(request.ledger, request.first, request.last) > ID_MAX:
            return self._refuse(request, ReplyStatus.REFUSED, f"expected ledger and entry numbers up to {ID_MAX}")
        if self._ledgers.is_deleted(request.ledger) and request.kind not in _OF_NO_LEDGER:
            return self._refuse(request, ReplyStatus.REFUSED, "the ledger was deleted")
        try:
            return self._handlers[request.kind](request, respond)
        except (ReplogError, OSError) as error:
            if isinstance(error, DiskFullError):
                self._space.fill()
            elif is_final(error):
                self._fail(error)
            return self._refuse(request, status_of(error, request), str(error))

    def _refuse(self, request: Request, status: ReplyStatus, reason: str) -> Reply:
        state = self._ledgers.peek(request.ledger)
        lac = state.lac if state is not None else -1
        return Reply(status, request.ledger, request.first, request.last, lac, reason.encode())

    def _fail(self, error: Exception) -> None:
        """Answer every later request with UNKNOWN, because the log cannot be relied on any more."""
        self._failure = f"the bookie's log failed: {error}"
        logger.error("%s", self._failure)

    # ---- state of ledgers -----------------------------------------------------------------------------------

    def _store(
        self, request: Request, state: LedgerState | None, controls: Controls, entries: ReadableBuffer = b""
    ) -> LedgerState:
        """Append control records and entries, in this order; first the key of the ledger if it is not noted yet.

        A request that adds copies has no key: the key is noted, and copies are checked against it, when a request has
        one.
        """
        key = None if request.is_copy else request.key
        if state is None or state.key is None:
            controls = controls._replace(key=key, copied=state is None and key is None)
        prefix = controls.encode(request.ledger)
        self._append(b"".join((prefix, entries)) if prefix else entries)
        if state is None:
            state = LedgerState(request.ledger, controls, -1, -1)
            self._ledgers.add(state)
        elif state.key is None:
            state.key = key
        return state

    def _append(self, records: ReadableBuffer) -> None:
        self._log.append(records)
        self._space.add(memoryview(records).nbytes)

    def _answer_polls(self, polls: Iterable[LongPoll]) -> None:
        for poll in polls:
            state = self._ledgers.peek(poll.ledger)
            lac = state.lac if state is not None else -1
            self._answer(poll.respond, Reply(ReplyStatus.OK, poll.ledger, 0, -1, lac))

    # ---- adds -----------------------------------------------------------------------------------------------

    def _add(self, request: Request, respond: Respond) -> Reply | None:
        state = self._ledgers.get(request.ledger)
        if (refusal := check_add(request, state)) is not None:
            return self._refuse(request, *refusal)
        if not self._space.takes(recovery=bool(request.flags & RECOVERY)):
            return self._refuse(request, ReplyStatus.READ_ONLY, f"only {self._space.free} bytes are free")
        ledger, first, last = request.ledger, request.first, request.last
        if request.is_copy:
            self.live.note_copies(ledger)
        count, highest, lac = inspect_entries(request.records, ledger=ledger, first=first, last=last)
        if state is not None and first <= state.last and not state.is_durable(highest) and self._log.staged:
            kept = request._replace(records=bytes(request.records))  # compared after the commit: unreadable before
            self._group.wait(respond, Reply(ReplyStatus.UNKNOWN, ledger, first, last, state.lac), kept)
            return None
        if state is None or first > state.last or not are_stored(self.live.of(ledger), request):
            if state is not None and state.key is not None:
                self._append(request.records)
            else:
                state = self._store(request, state, Controls(), request.records)
        self._note_added(state, count, memoryview(request.records).nbytes, highest, lac)
        reply = Reply(OK, ledger, first, last, state.lac)
        if request.flags & UNSYNCED and not self._log.staged:
            return reply
        self._group.touch(state, first)
        self._group.wait(respond, reply)
        return None

    # ---- fences and reads -----------------------------------------------------------------------------------

    def _fence(self, request: Request) -> Reply | None:
        """Fence a ledger, also if the bookie has no record of it; return a reply only to refuse the request."""
        state = self._ledgers.get(request.ledger)
        if (refusal := check_key(request, state)) is not None:
            return self._refuse(request, *refusal)
        if state is None or not state.fenced:
            state = self._store(request, state, Controls(fenced=True))
            state.fenced = True
            self.counts.fences += 1
            self._group.touch(state, FENCE)
            self._answer_polls(self._polls.wake(request.ledger))
        return None

    def _read(self, request: Request, respond: Respond) -> Reply | None:
        if request.first > request.last:
            return self._refuse(request, ReplyStatus.REFUSED, f"entries {request.first} to {request.last}")
        if request.flags & Flag.FENCE and (refusal := self._fence(request)) is not None:
            return refusal
        return self._read_now(request, respond)

    def _read_now(self, request: Request, respond: Respond) -> Reply | None:
        """Read durable entries; return None while the first entry, or the fence, is not durable."""
        state = self._ledgers.get(request.ledger)
        if state is not None and self._read_waits(request, state):
            reply = Reply(ReplyStatus.UNKNOWN, request.ledger, request.first, request.last, state.lac)
            self._group.wait(respond, reply, request)
            return None
        reply = read_entries(self._log, request, state)
        self.counts.read_bytes += len(reply.body) if reply.status == ReplyStatus.OK else 0
        return reply

    def _read_waits(self, request: Request, state: LedgerState) -> bool:
        """Return whether a read waits for a commit: the fence is not durable yet, or the first entry is stored and not
        durable."""
        if state.durable_below == FENCE:
            return True
        return request.first <= state.last and not state.is_durable(request.first)

    def _holdings(self, request: Request, respond: Respond) -> Reply | None:
        """Answer a HOLDINGS request once the entries are on disk, even if the ledger's writer asked for less
        durability."""
        if request.first > request.last:
            return self._refuse(request, ReplyStatus.REFUSED, f"entries {request.first} to {request.last}")
        state = self._ledgers.get(request.ledger)
        if state is not None and self._read_waits(request, state):
            reply = Reply(ReplyStatus.UNKNOWN, request.ledger, request.first, request.last, state.lac)
            self._group.wait(respond, reply, request)
            return None
        if self.live.is_undecided(request.ledger):
            return self._refuse(request, ReplyStatus.UNKNOWN, "the surplus entries of the ledger are being determined")
        reply = holdings_reply(request, read_entries(self.live.of(request.ledger), request, state))
        if self._log.staged or reply.status != ReplyStatus.OK:
            return reply
        self._group.wait(respond, reply)  # entries that can be read may not be on disk before the next sync
        return None

    def _last(self, request: Request, respond: Respond) -> Reply | None:
        if request.flags & Flag.FENCE and (refusal := self._fence(request)) is not None:
            return refusal
        state = self._ledgers.get(request.ledger)
        if state is not None and state.limbo:
            reply = Reply(ReplyStatus.LIMBO, request.ledger, 0, state.last, state.lac, _LOST)
        elif state is None:
            reply = Reply(ReplyStatus.OK, request.ledger)
        else:
            reply = Reply(ReplyStatus.OK, request.ledger, 0, state.last, state.lac)
        if state is None or state.is_durable(state.last):
            return reply
        self._group.wait(respond, reply)
        return None

    # ---- LACs -----------------------------------------------------------------------------------------------

    def _set_lac(self, request: Request, respond: Respond) -> Reply | None:
        state = self._ledgers.get(request.ledger)
        if (refusal := check_writer(request, state)) is not None:
            return self._refuse(request, *refusal)
        if state is None or state.key is None:
            state = self._store(request, state, Controls())
            self._group.touch(state, CONTROLS)
        if request.last > state.lac:
            self._group.touch(state, CONTROLS)
            state.explicit_lac = request.last
            self._lacs[request.ledger] = state
            self._raise_lac(state, request.last)
        if self._ledgers.crowded:
            self._group.wait(discard_reply, Reply(ReplyStatus.OK))  # forces a sync, so that states can be released
        return Reply(ReplyStatus.OK, request.ledger, request.first, request.last, state.lac)

    def _wait_lac(self, request: Request, respond: Respond) -> Reply | None:
        state = self._ledgers.get(request.ledger)
        lac = state.lac if state is not None else -1
        if lac > request.last:
            return Reply(ReplyStatus.OK, request.ledger, 0, -1, lac)
        deadline_us = self._now_us + min(request.limit, WAIT_MS_MAX) * 1000
        if not self._polls.has_room:
            poll = self._polls.make_room(self._client)
            if poll is None:
                return self._refuse(
                    request, ReplyStatus.OVERLOADED, f"{self._polls.count} long polls are waiting already"
                )
            self._answer_polls([poll])
        self._polls.add(request.ledger, request.last, deadline_us, respond, self._client)
        return None

    def _status(self, request: Request, respond: Respond) -> Reply | None:
        status: dict[str, object] = {"free_bytes": self._space.free, "read_only": self._space.read_only}
        status.update(long_polls=self._polls.count, limbo=self.limbo.ledgers[:LIMBO_MAX])
        return Reply(ReplyStatus.OK, body=json.dumps(status).encode())

    def _scrub(self, request: Request, respond: Respond) -> Reply | None:
        if self.scrub is None:
            return self._refuse(
                request, ReplyStatus.UNSUPPORTED, "this bookie has no scrubber: its segments are not verified"
            )
        if request.first > 1:
            return self._refuse(request, ReplyStatus.REFUSED, f"first: expected 0 or 1, found {request.first}")
        if request.first:
            self.scrub.scrub_now(request.limit or None)
        return Reply(ReplyStatus.OK, request.ledger, request.first, request.last, body=self.scrub.report().encode())

    # ---- time -----------------------------------------------------------------------------------------------

    def expire(self, now_us: int) -> None:
        """Answer the long polls whose time is over, and check the free space.

        Args:
            now_us: monotonic time, microseconds. The time of a long poll begins at the last call before it.
        """
        self._now_us = now_us
        self._answer_polls(self._polls.expired(now_us))
        self._space.check()

    def next_deadline_us(self) -> int | None:
        """Return when `expire` has to answer the next long poll, monotonic microseconds; None: no long poll waits."""
        return self._polls.next_deadline_us()

    def end_polls(self) -> None:
        """Answer all long polls."""
        self._answer_polls(self._polls.wake_all())

    # ---- group commit ---------------------------------------------------------------------------------------

    def _end(self, waiting: PendingReply | FastAdd) -> None:
        if self._failure is not None:
            self._give_up(waiting, self._failure)
            return
        assert not isinstance(waiting, FastAdd)
        if waiting.request is None:
            self._answer(waiting.respond, waiting.reply)
        elif (reply := self._reply_to(waiting.request, waiting.respond)) is not None:
            self._answer(waiting.respond, reply)

    def _give_up(self, waiting: PendingReply | FastAdd, reason: str) -> None:
        if isinstance(waiting, FastAdd):
            reply = Reply(OK, waiting.ledger, waiting.first, waiting.last, waiting.confirmed)
        else:
            reply = waiting.reply
        self._answer(waiting.respond, reply._replace(status=ReplyStatus.UNKNOWN, body=reason.encode()))

    def _append_lacs(self) -> None:
        """Append explicit LACs as control records, one for each ledger; the next sync makes them durable."""
        states, self._lacs = self._lacs, {}
        if self._failure is not None:
            return
        records = [Controls(lac=state.explicit_lac).encode(ledger) for ledger, state in states.items()]
        try:
            self._log.append(b"".join(records))
        except DiskError as error:
            logger.warning("explicit LACs were not stored: %s", error)
        except (ReplogError, OSError) as error:
            self._fail(error)

    # ---- for drivers and garbage collection -----------------------------------------------------------------

    @property
    def read_only(self) -> bool:
        """Whether new entries are refused for lack of space."""
        return self._space.read_only

    @property
    def free_bytes(self) -> int:
        """Free bytes of the disk when they were checked last."""
        return self._space.free

    def gauges(self) -> Gauges:
        """Return the current numbers of states, ledgers in limbo and long polls."""
        return Gauges(len(self._ledgers), len(self._ledgers.limbo), self._polls.count)

    @property
    def failure(self) -> str | None:
        """The reason why every request is answered with UNKNOWN for good; None: the log works."""
        return self._failure

    def append_controls(self, ledger: int) -> None:
        """Append the control records of a ledger once more, because their segment is about to be removed."""
        state = self._ledgers.get(ledger)
        if state is not None:
            self._log.append(state.controls.encode(ledger))

    def forget(self, ledger: int) -> None:
        """Forget a deleted ledger. Its number is never used again; requests for it are refused (BookKeeper #4462)."""
        self._ledgers.forget(ledger)
        self._proofs.forget(ledger)
        self.live.restore(ledger)
        for poll in self._polls.wake(ledger):
            self._answer(poll.respond, Reply(ReplyStatus.REFUSED, ledger, body=b"the ledger was deleted"))
        self._lacs.pop(ledger, None)

    def stop(self, reason: str) -> None:
        """Answer all waiting requests, and from now on every request, with UNKNOWN."""
        self._failure = self._failure or reason
        for waiting in self._group.begin():
            self._give_up(waiting, self._failure)
        for poll in self._polls.wake_all():
            self._answer(poll.respond, Reply(ReplyStatus.UNKNOWN, poll.ledger, body=self._failure.encode()))
