"""What a background thread of a log does again and again, and what becomes of it when it fails."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from pyreplog.errors import ReplogError

if TYPE_CHECKING:
    from pyreplog.log.commitlog import CommitLog

logger = logging.getLogger(__name__)

RETRY_FIRST_S, RETRY_MAX_S = 0.5, 30.0


class Duty:
    """A duty that fails is put off, longer each time, until it succeeds: a full disk need not stay full.

    trouble: what it failed with the last time, or "".
    """

    def __init__(self, what: str, act: Callable[[CommitLog], float]) -> None:
        self.trouble = ""
        self._what, self._act = what, act
        self._retry_s, self._not_before = RETRY_FIRST_S, 0.0

    def put_off(self) -> float:
        """Seconds for which it should not be tried again."""
        return max(self._not_before - time.monotonic(), 0.0)

    def attempt(self, log: CommitLog) -> float:
        """Do it; seconds until it may be due again.

        Lets through OSError (a sync failed: the caller poisons the log), and any error of a closed or poisoned log.
        """
        try:
            pause = self._act(log)
        except ReplogError as error:
            if log._error is not None:
                raise
            return self._fail(log, f"{self._what}: {error}")
        if self.trouble:
            logger.info("%s: %s: works again", log.path, self._what)
            self.trouble, self._retry_s, self._not_before = "", RETRY_FIRST_S, 0.0
        return pause

    def _fail(self, log: CommitLog, trouble: str) -> float:
        pause = self._retry_s
        if trouble != self.trouble:
            logger.error("%s: %s; it will be tried again", log.path, trouble)
        self.trouble = trouble
        self._not_before, self._retry_s = time.monotonic() + pause, min(2 * pause, RETRY_MAX_S)
        return pause
