"""Error codes and texts of refused changes."""

from __future__ import annotations

import logging
from collections.abc import Callable

from pyreplog.errors import ConfigError, ReplogError
from pyreplog.kafka.error_codes import error_code_of
from pyreplog.partition.protocol.error_codes import ErrorCode

logger = logging.getLogger(__name__)


class RefusedError(Exception):
    """A change that is refused with an error code of Kafka."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        self.code, self.message = code, message
        super().__init__(message)


def refusal_of(error: Exception) -> tuple[ErrorCode, str]:
    """Return the error code and text of a failed change."""
    if isinstance(error, RefusedError):
        return error.code, error.message
    if isinstance(error, ConfigError):
        return ErrorCode.INVALID_CONFIG, str(error)
    if not isinstance(error, ReplogError):
        logger.error("a change that a Kafka client asked for failed", exc_info=error)
    return error_code_of(error), str(error)


def outcome_of(change: Callable[[], object]) -> tuple[ErrorCode, str | None]:
    """Call `change`; return NONE, or the error code and text of its failure."""
    try:
        change()
    except Exception as error:  # continue with the other changes of the request
        return refusal_of(error)
    return ErrorCode.NONE, None
