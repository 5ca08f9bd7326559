"""KeyWaiter: waits for changes of keys, instead of polling them."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from types import TracebackType
from typing import Self

from pyreplog.metadata.store import MetadataStore


class KeyWaiter:
    """Watches keys while it is open. One thread at a time calls `wait`.

    Args:
        store: metadata store.
        keys: keys whose value, existence or set of children is watched.

    Example:
        ```python
        with KeyWaiter(store, ["/autorecovery/status"]) as waiter:
            while not is_done():
                waiter.wait(5.0)
        ```
    """

    def __init__(self, store: MetadataStore, keys: Iterable[str]) -> None:
        self._changed = threading.Event()
        self._watches = [store.watch(key, lambda _: self._changed.set()) for key in keys]

    def wait(self, timeout: float) -> bool:
        """Wait for a change since the previous call, or since the beginning.

        Args:
            timeout: seconds to wait, for callers that also check conditions without a key.

        Returns:
            Whether a key may have changed; False: the time-out expired.
        """
        changed = self._changed.wait(timeout)
        self._changed.clear()
        return changed

    def close(self) -> None:
        """Stop watching the keys."""
        for watch in self._watches:
            watch.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
