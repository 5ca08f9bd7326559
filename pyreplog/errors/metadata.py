"""Errors of metadata stores."""

from __future__ import annotations

from pyreplog.errors.base import ReplogError


class KeyExistsError(ReplogError):
    """The key to be created exists already. Nothing was done."""


class NoSuchKeyError(ReplogError, LookupError):
    """The metadata store has no such key. Nothing was done."""


class VersionConflictError(ReplogError):
    """The key has another version than the expected one: another process changed it.

    Read the key again, and decide again.
    """

    retriable = True


class KeyNotEmptyError(ReplogError):
    """The key to be deleted has children. Nothing was done."""


class MetadataUnavailableError(ReplogError):
    """The metadata store cannot be reached, or is busy. Nothing was changed, and what it holds is unknown."""

    retriable = True
    exit_code = 7


class LeaseLostError(ReplogError):
    """The lease has ended: its keys are deleted, and other processes may hold what those keys stood for."""


class InvalidMetadataError(ReplogError):
    """The metadata of a ledger, bookie or cluster contradicts itself, or was written by another version."""

    exit_code = 4
