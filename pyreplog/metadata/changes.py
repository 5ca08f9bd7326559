"""Changes of single keys of the metadata store, repeated until no other process interferes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from pyreplog.errors import KeyExistsError, NoSuchKeyError, OutcomeUnknownError, VersionConflictError
from pyreplog.metadata.store import MetadataStore

_ATTEMPTS_MAX = 64


def change_key(store: MetadataStore, key: str, change: Callable[[bytes | None], bytes | None]) -> bytes | None:
    """Replace the value of a key by compare-and-set.

    Args:
        store: metadata store.
        key: the key.
        change: gets the value, None if the key does not exist; returns the new value, None to delete the key. It may be
            called several times, also after a write with an unknown outcome: it has to accept its own result.

    Returns:
        The new value of the key, or None.

    Raises:
        VersionConflictError: other processes changed the key at each attempt.
        ReplogError: errors of the store, and of `change`.
    """
    for _ in range(_ATTEMPTS_MAX):
        stored = store.get(key)
        value = None if stored is None else stored.value
        changed = change(value)
        if changed == value:
            return value
        with suppress(KeyExistsError, VersionConflictError, NoSuchKeyError, OutcomeUnknownError):
            if stored is None:
                assert changed is not None
                store.create(key, changed)
            elif changed is None:
                store.delete(key, stored.version)
            else:
                store.put(key, changed, stored.version)
            return changed
    raise VersionConflictError(f"{key} was changed by others {_ATTEMPTS_MAX} times in a row; try again later")


def delete_key(store: MetadataStore, key: str) -> None:
    """Delete a key with any value; no effect if it does not exist. Raises the errors of `change_key`."""
    change_key(store, key, lambda value: None)
