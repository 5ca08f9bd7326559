"""Closes several ledgers at once, within one time limit."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterable

from pyreplog.errors import OutcomeUnknownError, ReplogError
from pyreplog.future import AppendFuture
from pyreplog.ledger.driver import Runtime
from pyreplog.ledger.ledger_handle import CLOSE_S, GIVE_UP_S, Ledger
from pyreplog.ledger.ledger_metadata import LedgerMetadata

logger = logging.getLogger(__name__)


def reserve_s(timeout: float) -> float:
    """Return the last seconds of `timeout`, which are kept for closing ledgers that had no outcome until then."""
    return min(GIVE_UP_S, timeout / 4)


def close_all(ledgers: Iterable[Ledger], runtime: Runtime, timeout: float | None = CLOSE_S) -> None:
    """Close the ledgers that are open, all at the same time, as `Ledger.close` does.

    Args:
        ledgers: the ledgers; errors of one are logged.
        runtime: runtime of their cluster.
        timeout: seconds for all of them; None: no limit. A ledger that cannot be closed in time stays open; the next
            `open_ledger` recovers it.
    """
    closing = [(ledger, ledger.begin_close()) for ledger in ledgers]
    deadline = math.inf if timeout is None else time.monotonic() + timeout
    patience = deadline if timeout is None else deadline - reserve_s(timeout)
    late = [(ledger, ended) for ledger, ended in closing if not _wait(ended, runtime, patience)]
    for ledger, _ in late:
        ledger.give_up()
    for _, ended in late:
        _wait(ended, runtime, deadline)
    for ledger, _ in closing:
        try:
            ledger.end_close()
        except ReplogError as error:
            logger.warning("%s", error)


def _wait(ended: AppendFuture[LedgerMetadata], runtime: Runtime, deadline: float) -> bool:
    """Wait until the deadline; return whether the future has an outcome."""
    try:
        runtime.wait(ended, None if deadline == math.inf else max(deadline - time.monotonic(), 0.0))
    except OutcomeUnknownError:
        return ended.done()
    except ReplogError:
        return True
    return True
