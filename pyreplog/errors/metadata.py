"""Errors of metadata stores."""

from __future__ import annotations

from pyreplog.errors.base import ReplogError


class KeyExistsError(ReplogError):
    """The key to be created exists already. Nothing was done."""


class NoSuchKeyError(ReplogError, LookupError):
    """The metadata store has no such key. Nothing was done."""


class VersionConflictError(ReplogError):
    """The key has another version than the expected one: another process changed it. Nothing was done.

    The same call would fail again. Read the key again, and decide again, with the version that was read.
    """


class KeyNotEmptyError(ReplogError):
    """The key to be deleted has children. Nothing was done."""


class MetadataUnavailableError(ReplogError):
    """The metadata store cannot be reached, or is busy. Nothing was changed, and what it holds is unknown."""

    retriable = True
    exit_code = 7


class MetadataAccessError(MetadataUnavailableError):
    """The metadata store denies access to a key: its access control does not admit this client. Nothing was done."""

    retriable = False


class LeaseLostError(ReplogError):
    """The lease has ended: its keys are deleted, and other processes may own the resources that the keys stand for."""


class InvalidMetadataError(ReplogError):
    """The metadata of a ledger, bookie or cluster contradicts itself, or was written by another version."""

    exit_code = 4


class MetadataVersionError(InvalidMetadataError):
    """A newer version of pyreplog wrote the value, and this build must not read it. Nothing was changed.

    Attributes:
        kind: what the value is of.
        found: lowest version of a reader that may read it.
        supported: highest version that this build knows.
    """

    def __init__(self, kind: str, found: int = 0, supported: int = 0) -> None:
        self.kind, self.found, self.supported = kind, found, supported
        super().__init__(
            f"{kind}: a reader of version {found} or later is needed, this build reads up to {supported}: upgrade "
            "pyreplog in this process"
            if found
            else kind  # the text of an error of another process
        )

    def __reduce__(self) -> tuple[type[MetadataVersionError], tuple[str, int, int]]:
        return type(self), (self.kind, self.found, self.supported)


class MetadataLayoutError(ReplogError):
    """The metadata store has an older layout, or its migration did not end. Nothing was changed.

    Attributes:
        why: the layout that was found.
    """

    exit_code = 4

    def __init__(self, why: str) -> None:
        self.why = why
        super().__init__(
            why
            if "cluster migrate" in why
            else f"{why}; stop all that uses it, and run: pyreplog cluster migrate (docs/operations.md)"
        )

    def __reduce__(self) -> tuple[type[MetadataLayoutError], tuple[str]]:
        return type(self), (self.why,)
