"""Operations of `MetadataStore.multi`, which does several of them atomically."""

from __future__ import annotations

from typing import NamedTuple

from pyreplog.metadata.keys import check_key, check_value, check_version


class CheckExists(NamedTuple):
    """Check that a key exists.

    Attributes:
        key: the key.
    """

    key: str


class CreateKey(NamedTuple):
    """Create a key, and its missing parents.

    Attributes:
        key: the key.
        value: its value.
    """

    key: str
    value: bytes


class PutValue(NamedTuple):
    """Replace the value of a key, if the key has the expected version.

    Attributes:
        key: the key.
        value: its new value.
        version: the expected version.
    """

    key: str
    value: bytes
    version: int


class DeleteKey(NamedTuple):
    """Delete a key, if it has the expected version, and no children.

    Attributes:
        key: the key.
        version: the expected version.
    """

    key: str
    version: int


Operation = CheckExists | CreateKey | PutValue | DeleteKey
"""An operation of `MetadataStore.multi`."""


def check_operation(operation: Operation) -> None:
    """Check the arguments of an operation. Raises InvalidArgumentError and WrongTypeError."""
    check_key(operation.key)
    if isinstance(operation, CreateKey | PutValue):
        check_value(operation.value)
    if isinstance(operation, PutValue | DeleteKey):
        check_version(operation.version)
