"""Errors of bookies and their directories."""

from __future__ import annotations

from pyreplog.errors.base import ReplogError


class IdentityError(ReplogError):
    """Base of the errors of a directory that is not that of the bookie to be started. Nothing was changed."""

    exit_code = 4


class EmptyDirectoryError(IdentityError):
    """The bookie is registered, and its directory is empty."""


class MissingIdentityError(IdentityError):
    """The directory holds a bookie's data, and lacks the file that names the bookie."""


class WrongIncarnationError(IdentityError):
    """The directory belongs to another bookie, or to another incarnation of this one."""


class RetiredBookieError(IdentityError):
    """The bookie was retired: other bookies have its copies, no ledger names it, and it may not register again."""


class ForeignDirectoryError(IdentityError):
    """The directory belongs to a bookie of another cluster."""


class WrongLogError(IdentityError):
    """The log in the bookie's directory belongs to another bookie, or is an older copy of its own log."""


class StaleDirectoryError(IdentityError):
    """The directory is an older copy: the bookie was opened since, from another directory."""


class StaleMetadataError(IdentityError):
    """The metadata store is an older copy: it holds less than this bookie has seen in it before.

    Ledgers made since would count as deleted, and their ids would be given again.
    """


class UnknownBookieError(IdentityError):
    """The metadata store does not know this bookie: it is another store, or has lost its content."""


class UnknownBrokerError(IdentityError):
    """The metadata store does not know this broker: it is another store, an older copy, or has lost its content."""
