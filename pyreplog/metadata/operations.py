"""Operations of `MetadataStore.multi`, which does several of them atomically."""

from __future__ import annotations

from typing import NamedTuple

from pyreplog.metadata.keys import check_key, check_value, check_version


class CheckExists(NamedTuple):
    """Check that a key exists."""

    key: str


class CreateKey(NamedTuple):
    """Create a key, and its missing parents. See `MetadataStore.create`."""

    key: str
    value: bytes


class PutValue(NamedTuple):
    """Replace the value of a key, if the key has the expected version. See `MetadataStore.put`."""

    key: str
    value: bytes
    version: int


class DeleteKey(NamedTuple):
    """Delete a key, if it has the expected version. See `MetadataStore.delete`."""

    key: str
    version: int


Operation = CheckExists | CreateKey | PutValue | DeleteKey


def check_operation(operation: Operation) -> None:
    """Check the arguments of an operation. Raises InvalidArgumentError and WrongTypeError."""
    check_key(operation.key)
    if isinstance(operation, CreateKey | PutValue):
        check_value(operation.value)
    if isinstance(operation, PutValue | DeleteKey):
        check_version(operation.version)
