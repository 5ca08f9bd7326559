"""The revision of all keys of geo-replication: one key that is written after each change of another key.

Servers watch this key alone, in place of a watch for each policy of thousands of topics.
"""

from __future__ import annotations

import secrets
from contextlib import suppress

from pyreplog.errors import KeyExistsError, NoSuchKeyError, OutcomeUnknownError, VersionConflictError
from pyreplog.metadata.store import MetadataStore

REVISION = "/geo/revision"


def raise_revision(store: MetadataStore) -> None:
    """Notify the servers that keys below /geo were changed.

    If another process writes between the read and the write here, its write serves as well, since it comes after the
    change. If this process dies before its write, servers see the change when they read all keys again.

    Raises:
        ReplogError: errors of the store.
    """
    stored, value = store.get(REVISION), secrets.token_hex(8).encode()
    with suppress(KeyExistsError, VersionConflictError, NoSuchKeyError, OutcomeUnknownError):
        if stored is None:
            store.create(REVISION, value)
        else:
            store.put(REVISION, value, stored.version)
