"""StoredBookies answers the requests of readers from the directories of bookies, which need not run."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, cast

from pyreplog.bookie.controls import Controls
from pyreplog.bookie.entry_log import EntryLog
from pyreplog.bookie.ledger_state import LedgerState, load_state
from pyreplog.bookie.protocol import Reply, ReplyStatus, Request, RequestKind
from pyreplog.bookie.reading import read_entries
from pyreplog.errors import NotConnectedError, ReplogError
from pyreplog.future import AppendFuture
from pyreplog.ledger.driver import Add
from pyreplog.ledger.protocol.effects import BadCopy, Degraded
from pyreplog.metadata.store import MetadataStore
from pyreplog.tables.cluster.stored_log import StoredLog

logger = logging.getLogger(__name__)

T = TypeVar("T")
OnReply = Callable[[Reply | Exception], None]


class StoredBookies:
    """A `Runtime` over directories. Each reply is there when the call returns; nothing waits.

    logs: logs of the bookies that have a directory, by bookie id.
    """

    def __init__(self, metadata: MetadataStore, logs: Mapping[str, StoredLog]) -> None:
        self.metadata, self.logs = metadata, logs

    def send(self, bookie: str, request: Request, on_reply: OnReply) -> None:
        log = self.logs.get(bookie)
        if log is None:
            on_reply(NotConnectedError(f"the cluster has no readable directory of bookie {bookie}"))
            return
        try:
            reply = _answer(cast("EntryLog", log), request)
        except (ReplogError, OSError) as error:  # damaged, or being trimmed: whether the entry is here is unknown
            reply = Reply(ReplyStatus.UNKNOWN, request.ledger, request.first, request.last, body=str(error).encode())
        on_reply(reply)

    def add(self, adds: Sequence[Add]) -> None:
        for bookie, request, answer in adds:
            self.send(bookie, request, answer)

    def expect(self, done: AppendFuture[Any]) -> None:
        """Do nothing: each future is done before this runtime could be closed."""

    def wait(self, future: AppendFuture[T], timeout: float | None = None) -> T:
        return future.result(timeout)

    def wake_after(self, seconds: float, call: Callable[[], None]) -> None:
        """Do nothing: no request waits, so no timer is needed."""

    def work(self, job: Callable[[], object]) -> None:
        job()

    def report(self, ledger: int, bad: BadCopy) -> None:
        logger.info("ledger %d: the copy of entry %d on %s is bad or missing", ledger, bad.entry, bad.bookie)

    def note_lacking(self, ledger: int, copies: Sequence[BadCopy]) -> None:
        """Do nothing: readers do not close ledgers."""

    def note_waiting(self, change: int) -> None:
        """Do nothing: waiting readers are not counted."""

    def suspect(self, bookie: str) -> None:
        """Do nothing: readers do not choose bookies."""

    def note_degraded(self, ledger: int, degraded: Degraded | None) -> None:
        """Do nothing: readers do not write ledgers."""


def _answer(log: EntryLog, request: Request) -> Reply:
    if request.kind == RequestKind.READ:
        return read_entries(log, request, LedgerState(request.ledger, Controls(), request.last, -1))
    if request.kind != RequestKind.LAST:
        return Reply(
            ReplyStatus.REFUSED,
            request.ledger,
            request.first,
            request.last,
            body=b"a stored cluster answers only requests of readers",
        )
    state = load_state(log, request.ledger)
    if state is None:
        return Reply(ReplyStatus.OK, request.ledger)
    return Reply(ReplyStatus.LIMBO if state.limbo else ReplyStatus.OK, request.ledger, 0, state.last, state.lac)
