"""Errors of auto-recovery, for operators."""

from __future__ import annotations

from pyreplog.errors.base import ReplogError


class NoSuchBookieError(ReplogError, LookupError):
    """The cluster knows no bookie of that name or id. Nothing was done."""

    exit_code = 2


class BookieStateError(ReplogError):
    """The bookie runs, or ledgers name it, or its state does not allow the change. Nothing was done."""

    exit_code = 6


class LastCopyError(ReplogError):
    """The bookie has the last copies of entries. Nothing was done."""

    exit_code = 6


class DrainBlockedError(ReplogError):
    """Copies of a bookie that is draining cannot be moved now.

    The bookie stays draining, and other workers keep trying.
    """

    exit_code = 6


class RebalanceError(ReplogError):
    """Copies are not moved between bookies now: auto-recovery is on hold or busy, or another rebalance is under way."""

    exit_code = 6
