"""Closing several ledgers at once, within the time that one of them may take."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterable

from pyreplog.errors import OutcomeUnknownError, ReplogError
from pyreplog.future import AppendFuture
from pyreplog.ledger.driver import Runtime
from pyreplog.ledger.ledger_handle import CLOSE_S, GIVE_UP_S, Ledger
from pyreplog.ledger.ledgermetadata import LedgerMetadata

logger = logging.getLogger(__name__)


def reserve_s(timeout: float) -> float:
    """The last part of a time for closing: for what had no outcome by then, and is given up."""
    return min(GIVE_UP_S, timeout / 4)


def close_all(ledgers: Iterable[Ledger], runtime: Runtime, timeout: float | None = CLOSE_S) -> None:
    """Close those that are open, as their own `close` does, but all of it within `timeout` seconds (None: for as long
    as it takes): one that cannot be closed by then stays open, and is recovered by who opens it next. What goes wrong
    with one is logged."""
    closing = [(ledger, ledger.begin_close()) for ledger in ledgers]
    deadline = math.inf if timeout is None else time.monotonic() + timeout
    patience = deadline if timeout is None else deadline - reserve_s(timeout)
    late = [one for one in closing if not _wait(one[1], runtime, patience)]
    for ledger, _ in late:
        ledger.give_up()
    for _, done in late:
        _wait(done, runtime, deadline)
    for ledger, _ in closing:
        try:
            ledger.end_close()
        except ReplogError as error:
            logger.warning("%s", error)


def _wait(done: AppendFuture[LedgerMetadata], runtime: Runtime, deadline: float) -> bool:
    """Whether there is an outcome."""
    try:
        runtime.wait(done, None if deadline == math.inf else max(deadline - time.monotonic(), 0.0))
    except OutcomeUnknownError:
        return done.done()
    except ReplogError:
        return True
    return True
