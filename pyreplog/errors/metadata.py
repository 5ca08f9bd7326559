"""Errors of metadata stores."""

from __future__ import annotations

from pyreplog.errors.base import ReplogError


class KeyExistsError(ReplogError):
    """A key that was to be created exists in the metadata store; nothing was done."""


class NoSuchKeyError(ReplogError, LookupError):
    """The metadata store holds no such key; nothing was done."""


class VersionConflictError(ReplogError):
    """The key's version is not the expected one: somebody else changed it. Read it again, and decide again."""

    retriable = True


class KeyNotEmptyError(ReplogError):
    """A key that was to be deleted has children; nothing was done."""


class MetadataUnavailableError(ReplogError):
    """The metadata store could not be reached, or is busy. Nothing was changed; what it holds is unknown."""

    retriable = True
    exit_code = 7


class LeaseLostError(ReplogError):
    """The lease has ended: its keys are gone, and others may hold what they stood for."""


class InvalidMetadataError(ReplogError):
    """What the metadata store says of a ledger, bookie or cluster contradicts itself, or is of another version."""

    exit_code = 4
