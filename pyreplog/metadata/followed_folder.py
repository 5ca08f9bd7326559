"""FollowedFolder: a local copy of the values of all keys in one folder of the metadata store."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence, Set
from typing import Generic, TypeVar

from pyreplog.errors import ClosedError, InvalidMetadataError, ReplogError
from pyreplog.metadata.keys import name_of
from pyreplog.metadata.store import MetadataStore
from pyreplog.metadata.watching import Watch

logger = logging.getLogger(__name__)

T = TypeVar("T")


class FollowedFolder(Generic[T]):
    """A local copy of the values of the keys in a folder, which is read again after each change. Thread-safe.

    Values that cannot be decoded are left out, with a warning. While the store cannot be read, the last values that
    were read stay.

    folder: the parent of the keys. decode: decodes a value, or raises InvalidMetadataError. on_change: called by one
    thread at a time with the names of the keys that were created, deleted or written; and with no names after the first
    read, which tells that an empty folder is empty. retry: calls a function, which repeats a failed read, a little
    later in a thread that may block.
    """

    def __init__(
        self,
        store: MetadataStore,
        folder: str,
        decode: Callable[[bytes], T],
        on_change: Callable[[Set[str]], object],
        retry: Callable[[Callable[[], None]], object],
    ) -> None:
        self._store, self._folder, self._decode = store, folder, decode
        self._on_change, self._retry = on_change, retry
        self._reading = threading.Lock()  # held by a read, so that an older value never replaces a newer one
        self._values: dict[str, tuple[T, int]] = {}  # value and version by name
        self._watches: dict[str, Watch] = {}  # by name
        self._read = threading.Event()
        self._is_closed = False
        self._names = store.watch(folder, lambda _: self._read_names())

    def wait(self, timeout_s: float) -> bool:
        """Wait for the first read of the values; return whether it succeeded within `timeout_s` seconds."""
        return self._read.wait(timeout_s)

    def get(self, name: str) -> T | None:
        """Return the value of a key; None if it does not exist or cannot be decoded."""
        value = self._values.get(name)
        return None if value is None else value[0]

    def versioned(self, name: str) -> tuple[int, T] | None:
        """Return the version and the value of a key; None if it does not exist or cannot be decoded."""
        value = self._values.get(name)
        return None if value is None else (value[1], value[0])

    def items(self) -> list[tuple[str, T]]:
        """Return all names and values, ordered by name."""
        return [(name, value) for name, (value, _) in sorted(self._values.copy().items())]

    def close(self) -> None:
        """Stop following the folder, and forget all values."""
        self._is_closed = True
        self._names.close()
        with self._reading:
            self._set_watches(frozenset())
            self._values = {}

    # ---- reading --------------------------------------------------------------------------------------------

    def _read_names(self) -> None:
        """Read the values of new keys, and drop those of deleted keys."""
        with self._reading:
            if self._is_closed:
                return
            try:
                names = frozenset(self._store.list(self._folder))
                self._set_watches(names)  # before the reads, so that no later change is missed
                values = self._read_values(sorted(names - self._values.keys()))
            except ReplogError as error:
                self._retry_later(error, self._read_names)
                return
            self._update({**values, **dict.fromkeys(self._values.keys() - names)})
            if not self._read.is_set():
                self._read.set()
                self._on_change(frozenset())

    def _read_value(self, key: str) -> None:
        """Read one value again after a change."""
        with self._reading:
            name = name_of(key)
            if name not in self._watches:
                return
            try:
                values = self._read_values([name])
            except ReplogError as error:
                self._retry_later(error, lambda: self._read_value(key))
                return
            self._update(values)

    def _set_watches(self, names: Set[str]) -> None:
        for name in self._watches.keys() - names:
            self._watches.pop(name).close()
        for name in names - self._watches.keys():
            self._watches[name] = self._store.watch(f"{self._folder}/{name}", self._read_value)

    def _read_values(self, names: Sequence[str]) -> dict[str, tuple[T, int] | None]:
        """Read values with their versions; None for keys that do not exist, and for values that cannot be decoded.

        Raises the errors of the store.
        """
        values: dict[str, tuple[T, int] | None] = {}
        stored = self._store.get_many([f"{self._folder}/{name}" for name in names])
        for name, value in zip(names, stored, strict=True):
            try:
                values[name] = None if value is None else (self._decode(value.value), value.version)
            except InvalidMetadataError as error:
                logger.warning("%s/%s is ignored, it cannot be read: %s", self._folder, name, error)
                values[name] = None
        return values

    def _retry_later(self, error: ReplogError, read: Callable[[], None]) -> None:
        """Keep the values that were read before, and schedule another read."""
        if not isinstance(error, ClosedError):
            logger.warning("%s cannot be read, another attempt follows: %s", self._folder, error)
            self._retry(read)

    def _update(self, values: dict[str, tuple[T, int] | None]) -> None:
        """Set the values of some names; None: remove the value."""
        changed = {name for name, value in values.items() if self._values.get(name) != value}
        for name in changed:
            value = values[name]
            if value is None:
                del self._values[name]
            else:
                self._values[name] = value
        if changed:
            self._on_change(changed)
