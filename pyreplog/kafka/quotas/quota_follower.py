"""QuotaFollower: the quotas of the metadata store, as a listener follows them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Set

from pyreplog.kafka.quotas.client_quotas import CLIENT_QUOTAS, ClientQuota, QuotaTable
from pyreplog.kafka.quotas.quota_manager import QuotaManager
from pyreplog.metadata.followed_folder import FollowedFolder
from pyreplog.metadata.store import MetadataStore

_RETRY_S = 0.2


class QuotaFollower:
    """Has the quotas of the metadata store count. Any thread may close it.

    Args:
        store: metadata store. Close this object first.
        manager: gets all quotas after each change.
    """

    def __init__(self, store: MetadataStore, manager: QuotaManager) -> None:
        self._manager = manager
        self._lock = threading.Lock()  # held while this object is made: the first call comes at once
        self._is_closed = False
        with self._lock:
            self._folder = FollowedFolder(store, CLIENT_QUOTAS, ClientQuota.decode, self._changed, _retry)

    def _changed(self, _: Set[str]) -> None:
        with self._lock:
            if not self._is_closed:
                self._manager.replace(QuotaTable(quota for _, quota in self._folder.items()))

    def close(self) -> None:
        """Stop following the store. The quotas stay as they are."""
        with self._lock:
            self._is_closed = True
        self._folder.close()


def _retry(call: Callable[[], None]) -> None:
    timer = threading.Timer(_RETRY_S, call)
    timer.daemon = True
    timer.start()
