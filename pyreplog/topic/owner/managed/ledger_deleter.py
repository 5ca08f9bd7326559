"""Deleting the ledgers that a chain has given up: in the background, again and again until they are gone."""

from __future__ import annotations

import logging
import random
import threading

from pyreplog.errors import ReplogError
from pyreplog.ledger.driver import Runtime
from pyreplog.net.backoff import BACKOFF_MOST_S, Backoff
from pyreplog.topic.owner.managed.chainstore import ChainStore
from pyreplog.topic.owner.managed.ledgermaker import LedgerMaker

logger = logging.getLogger(__name__)

AT_A_TIME = 32
"""Ledgers that one job deletes; then other topics have their turn."""

RETRY_FIRST_S = 1.0


class LedgerDeleter:
    """Of one owner of a topic. Any thread. Whoever comes after finds in the chain what is left to be deleted."""

    def __init__(self, name: str, store: ChainStore, maker: LedgerMaker, runtime: Runtime) -> None:
        self._name, self._store, self._maker, self._runtime = name, store, maker, runtime
        self._lock = threading.Lock()
        self._is_under_way = self._is_over = False
        self._backoff = Backoff(RETRY_FIRST_S, 12 * BACKOFF_MOST_S, random.random)

    def begin(self) -> None:
        """Delete what the chain has given up, unless that is under way."""
        with self._lock:
            if self._is_under_way or self._is_over or not self._store.chain.doomed:
                return
            self._is_under_way = True
        self._runtime.work(self._delete_pending)

    def end(self) -> None:
        """Leave the rest to others."""
        self._is_over = True

    def _delete_pending(self) -> None:
        try:
            pending_deletion = self._store.chain.doomed[:AT_A_TIME]
            for ledger in pending_deletion:
                self._maker.delete(ledger)
            self._store.update(lambda chain: chain.without_deleted(pending_deletion))
        except ReplogError as error:
            logger.warning("topic %s: ledgers that it does not need are not deleted yet: %s", self._name, error)
            self._runtime.wake_after(self._backoff.next_s(), self._go_on)
        else:
            self._backoff.reset()
            self._go_on()

    def _go_on(self) -> None:
        with self._lock:
            self._is_under_way = False
        self.begin()
