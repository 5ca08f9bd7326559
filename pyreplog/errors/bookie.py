"""Errors of bookies and their directories."""

from __future__ import annotations

from pyreplog.errors.base import ReplogError


class IdentityError(ReplogError):
    """Base of: this directory is not that of the bookie which is to run. Nothing was changed."""

    exit_code = 4


class EmptyDirectoryError(IdentityError):
    """The bookie is registered, and its directory holds nothing."""


class MissingIdentityError(IdentityError):
    """The directory holds a bookie's data, and not the file that says whose."""


class WrongIncarnationError(IdentityError):
    """The directory is another bookie's, or of another incarnation of this one."""


class ForeignDirectoryError(IdentityError):
    """The directory is that of a bookie of another cluster."""


class WrongLogError(IdentityError):
    """The log in the bookie's directory is another one's, or an older copy of its own."""


class StaleDirectoryError(IdentityError):
    """The directory is an older copy of the bookie's: the bookie was opened since, somewhere else."""


class StaleMetadataError(IdentityError):
    """The metadata store is an older copy: it says less than it has said to this bookie before. Ledgers that were made
    since would count as deleted, and their numbers would be given again."""


class UnknownBookieError(IdentityError):
    """The metadata store knows nothing of this bookie: it is another one, or has lost what it held."""
