"""Where a ledger ended that takes nothing any more: its writer closed it, somebody else did, or it is recovered."""

from __future__ import annotations

import logging
from collections.abc import Callable

from pyreplog.errors import LedgerFencedError, NoSuchLedgerError, ReplogError
from pyreplog.future import AppendFuture
from pyreplog.ledger.driver import Runtime
from pyreplog.ledger.ledger_handle import Ledger
from pyreplog.ledger.ledgermetadata import LedgerMetadata, State
from pyreplog.topic.model.event_queue import EventQueue
from pyreplog.topic.owner.managed.jobs import Jobs
from pyreplog.topic.owner.managed.ledgermaker import LedgerMaker

logger = logging.getLogger(__name__)

END_S = 5.0
"""A ledger that is replaced gets all copies of its last entries within this time, or is closed without."""


class LedgerEnd:
    """Tries until it is known, and tells one of: known(metadata), of a closed ledger; known(None), it was deleted;
    fenced(error), somebody else is recovering it."""

    def __init__(
        self,
        ledger: Ledger,
        maker: LedgerMaker,
        runtime: Runtime,
        events: EventQueue,
        jobs: Jobs,
        *,
        known: Callable[[LedgerMetadata | None], object],
        fenced: Callable[[ReplogError], object],
    ) -> None:
        self._ledger, self._maker, self._runtime, self._events, self._jobs = ledger, maker, runtime, events, jobs
        self._known, self._fenced = known, fenced

    def begin(self, *, close: bool) -> None:
        """close: the ledger is well, and is to be closed; else it has failed."""
        ledger = self._ledger
        ledger.ended.add_done_callback(lambda _: self._events.post(self._ended))
        if close:
            ledger.begin_close()
            if not ledger.ended.done():
                self._runtime.wake_after(END_S, ledger.give_up)

    def _ended(self) -> None:
        """Its writer is done with it."""
        error = self._ledger.ended.exception()
        if isinstance(error, LedgerFencedError):
            self._fenced(error)
        elif self._ledger.metadata.state is State.CLOSED:
            self._known(self._ledger.metadata)
        else:
            self._runtime.work(self._recover)

    def _recover(self) -> None:
        try:
            recovery = self._maker.begin_recovery(self._ledger.id)
        except Exception as error:
            recovery = AppendFuture()
            recovery.fail(error)
        recovery.add_done_callback(lambda _: self._events.post(lambda: self._recovered(recovery)))

    def _recovered(self, recovery: AppendFuture[LedgerMetadata]) -> None:
        error = recovery.exception()
        if error is None:
            self._known(recovery.result())
        elif isinstance(error, NoSuchLedgerError):
            logger.error("ledger %d was deleted while it was written", self._ledger.id)
            self._known(None)
        else:
            self._jobs.rest(error, lambda: self._runtime.work(self._recover))
