"""The chain of a topic in the metadata store: taken over, and changed by compare-and-set.

Every owner writes a unique epoch and nonce, and makes one change after the other. So if the outcome of a write is
unknown, the stored chain tells. If it has this owner's epoch and nonce, the change is made again on top of it, which
changes nothing if it was stored before. Otherwise this owner is fenced. An earlier write that arrives late fails,
because its version is gone, or is found by the next conflict.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Sequence
from typing import NamedTuple

from pyreplog.errors import (
    InvalidMetadataError,
    KeyExistsError,
    NoSuchKeyError,
    NoSuchTopicError,
    OutcomeUnknownError,
    TopicFencedError,
    VersionConflictError,
)
from pyreplog.metadata.store import MetadataStore
from pyreplog.topic.model.chain import LedgerChain
from pyreplog.topic.model.config import TopicConfig
from pyreplog.topic_names import topic_key

Change = Callable[[LedgerChain], LedgerChain]


class StoredChain(NamedTuple):
    """A stored chain, and the version of its key. chain: None if the key only exists as the parent of other keys."""

    chain: LedgerChain | None
    version: int


def find_chain(store: MetadataStore, name: str) -> StoredChain | None:
    """Return the stored chain of a topic; None: there is no key.

    Raises InvalidMetadataError, and the errors of `topic_key` and of the store.
    """
    stored = store.get(topic_key(name))
    return None if stored is None else StoredChain(_decoded(name, stored.value), stored.version)


def find_chains(store: MetadataStore, names: Sequence[str]) -> list[LedgerChain | None]:
    """Return the stored chains of several topics, in order, with few requests; None: there is none.

    Raises as `find_chain`.
    """
    stored = zip(names, store.get_many([topic_key(name) for name in names]), strict=True)
    return [None if each is None else _decoded(name, each.value) for name, each in stored]


def _decoded(name: str, value: bytes) -> LedgerChain | None:
    if not value:
        return None
    chain = LedgerChain.decode(value)
    if chain.topic != name:
        raise InvalidMetadataError(f"metadata of topic {name}: expected its name, found that of topic {chain.topic}")
    return chain


class ChainStore:
    """The chain as one owner sees and changes it. Calls block; any thread, one at a time."""

    def __init__(self, store: MetadataStore, name: str, owner: str) -> None:
        self._store, self._name, self._key = store, name, topic_key(name)
        self._owner, self._nonce = owner, secrets.token_hex(8)
        self._lock = threading.Lock()
        self._chain: LedgerChain | None = None
        self._version = -1

    @property
    def chain(self) -> LedgerChain:
        """The stored chain, as far as this owner knows."""
        assert self._chain is not None
        return self._chain

    # ---- taking over ----------------------------------------------------------------------------------------

    def take(self, config: TopicConfig | None, now_us: int, *, create: bool) -> LedgerChain:
        """Become the owner; from now on no former owner can change the chain.

        config: settings of a topic that is created here. Raises NoSuchTopicError, InvalidMetadataError, and errors of
        the store.
        """
        while True:
            stored = find_chain(self._store, self._name)
            try:
                if stored is None or stored.chain is None:
                    if not create:
                        raise NoSuchTopicError(self._name, "it does not exist, or was deleted")
                    changed = self._new(config or TopicConfig(), now_us)
                else:
                    changed = stored.chain.taken_over(self._owner, self._nonce)
                version = self._write(changed, None if stored is None else stored.version)
            except (KeyExistsError, VersionConflictError, NoSuchKeyError):
                continue
            except OutcomeUnknownError:
                current = find_chain(self._store, self._name)
                if current is None or current.chain != changed:
                    continue  # the write may arrive late: then the next one meets a conflict
                version = current.version
            self._chain, self._version = changed, version
            return changed

    def _new(self, config: TopicConfig, now_us: int) -> LedgerChain:
        return LedgerChain(
            topic=self._name, token=secrets.token_hex(8), epoch=1, owner=self._owner, nonce=self._nonce,
            created_us=now_us, config=config,
        )  # fmt: skip

    def _write(self, chain: LedgerChain, version: int | None) -> int:
        value = chain.encode()
        return self._store.create(self._key, value) if version is None else self._store.put(self._key, value, version)

    # ---- changes --------------------------------------------------------------------------------------------

    def update(self, change: Change) -> LedgerChain:
        """Store `change(chain)` and return it.

        The change is applied again if another writer edited the chain meanwhile, perhaps to a chain that has it
        already. Raises TopicFencedError, the errors of `change`, InvalidMetadataError, and errors of the store. After
        an OutcomeUnknownError or MetadataUnavailableError the same change may be repeated.
        """
        with self._lock:
            while True:
                changed = change(self.chain)
                if changed == self.chain and self._version >= 0:
                    return changed
                try:
                    if self._version < 0:
                        self._reload()
                        continue
                    self._version = self._write(changed, self._version)
                except (VersionConflictError, NoSuchKeyError):
                    self._version = -1
                except OutcomeUnknownError:
                    self._version = -1
                    self._reload()
                else:
                    self._chain = changed
                    return changed

    def check(self) -> LedgerChain:
        """Check that this owner still has the topic, and that the store answers. Raises the errors of `update`."""
        with self._lock:
            self._reload()
            return self.chain

    def _reload(self) -> None:
        """Read the chain; raise TopicFencedError if it has another owner."""
        stored = find_chain(self._store, self._name)
        if stored is None or stored.chain is None:
            raise TopicFencedError(self._name, "it was deleted")
        chain = stored.chain
        if (chain.epoch, chain.nonce) != (self.chain.epoch, self.chain.nonce):
            raise TopicFencedError(self._name, f"{chain.owner or 'another owner'} took it over, in epoch {chain.epoch}")
        self._chain, self._version = chain, stored.version

    def has(self, ledger: int) -> bool:
        """Return whether the stored chain, of any owner, needs a ledger. Raises the errors of `find_chain`."""
        stored = find_chain(self._store, self._name)
        return (
            stored is not None
            and stored.chain is not None
            and ledger in {*stored.chain.ids, *stored.chain.pending_deletion}
        )

    def remove(self) -> None:
        """Remove the key of a topic that is marked as deleted, and all keys below it.

        Raises TopicFencedError, and errors of the store.
        """
        with self._lock:
            while True:
                self._reload()
                try:
                    _remove_below(self._store, self._key)
                    self._store.delete(self._key, self._version)
                except (VersionConflictError, NoSuchKeyError):  # another process edits or removes it, too
                    continue
                return


def _remove_below(store: MetadataStore, key: str) -> None:
    for name in store.list(key):
        child = f"{key}/{name}"
        _remove_below(store, child)
        stored = store.get(child)
        if stored is not None:
            store.delete(child, stored.version)
