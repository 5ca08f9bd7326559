"""A ledger that was made for a topic, and is not in its chain yet."""

from __future__ import annotations

import logging

from pyreplog.errors import ReplogError
from pyreplog.ledger.driver import Runtime
from pyreplog.ledger.ledger_handle import Ledger
from pyreplog.topic.owner.managed.ledgermaker import LedgerMaker

logger = logging.getLogger(__name__)


class PreallocatedLedger:
    """is_offered: a write that adds it to the chain may be on its way."""

    def __init__(self, ledger: Ledger, maker: LedgerMaker, runtime: Runtime) -> None:
        self.ledger, self._maker, self._runtime = ledger, maker, runtime
        self.is_offered = False

    def discard(self, *, certain: bool) -> None:
        """It is not needed. certain: no write of this owner can reach the chain any more; without that, one that was
        offered is left: it may be in the chain yet, and if not, it is a stray."""
        let_go(self.ledger)
        if certain or not self.is_offered:
            self._runtime.work(self._delete)

    def _delete(self) -> None:
        try:
            self._maker.discard(self.ledger.id)
        except ReplogError as error:
            logger.warning("ledger %d is left behind: %s", self.ledger.id, error)


def let_go(ledger: Ledger) -> None:
    """Of a ledger that has ended, or is somebody else's to end; nothing is waited for, in a callback."""
    ledger.on_progress = None
    try:
        ledger.end_close()
    except ReplogError as error:
        logger.debug("%s", error)
