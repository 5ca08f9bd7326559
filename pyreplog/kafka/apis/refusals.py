"""Changes that are refused: their error codes and texts."""

from __future__ import annotations

import logging
from collections.abc import Callable

from pyreplog.errors import ConfigError, ReplogError
from pyreplog.kafka.error_codes import error_code_of
from pyreplog.partition.protocol.error_codes import ErrorCode

logger = logging.getLogger(__name__)


class RefusedError(Exception):
    """A change is refused with an error code of Kafka."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        self.code, self.message = code, message
        super().__init__(message)


def refusal_of(error: Exception) -> tuple[ErrorCode, str]:
    """Return error code and text for a change that failed."""
    if isinstance(error, RefusedError):
        return error.code, error.message
    if isinstance(error, ConfigError):
        return ErrorCode.INVALID_CONFIG, str(error)
    if not isinstance(error, ReplogError):
        logger.error("a change that a Kafka client asked for failed", exc_info=error)
    return error_code_of(error), str(error)


def outcome_of(change: Callable[[], object]) -> tuple[ErrorCode, str | None]:
    """Make a change; return NONE, or the error code and text of its failure."""
    try:
        change()
    except Exception as error:  # the other changes of the request go on
        return refusal_of(error)
    return ErrorCode.NONE, None
