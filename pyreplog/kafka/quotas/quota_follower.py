"""QuotaFollower: keeps a listener's quotas equal to those in the metadata store."""

from __future__ import annotations

import threading
from collections.abc import Callable, Set

from pyreplog.kafka.quotas.client_quotas import CLIENT_QUOTAS, ClientQuota, QuotaTable
from pyreplog.kafka.quotas.quota_manager import QuotaManager
from pyreplog.metadata.followed_folder import FollowedFolder
from pyreplog.metadata.store import MetadataStore

_RETRY_S = 0.2


class QuotaFollower:
    """Watches the quotas in the metadata store, and passes them to a QuotaManager. Any thread may close it.

    Args:
        store: metadata store. Close this object first.
        manager: receives all quotas after each change.
    """

    def __init__(self, store: MetadataStore, manager: QuotaManager) -> None:
        self._manager = manager
        # held during the construction: the first callback may come before `_folder` is set
        self._lock = threading.Lock()
        self._is_closed = False
        with self._lock:
            self._folder = FollowedFolder(store, CLIENT_QUOTAS, ClientQuota.decode, self._changed, _retry)

    def _changed(self, _: Set[str]) -> None:
        with self._lock:
            if not self._is_closed:
                self._manager.replace(QuotaTable(quota for _, quota in self._folder.items()))

    def close(self) -> None:
        """Stop watching the store. The manager keeps its quotas."""
        with self._lock:
            self._is_closed = True
        self._folder.close()


def _retry(call: Callable[[], None]) -> None:
    timer = threading.Timer(_RETRY_S, call)
    timer.daemon = True
    timer.start()
