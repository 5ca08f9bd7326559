"""The chain of a topic in the metadata store: taken over, and changed by compare-and-set.

Every owner writes something that nobody else does (epoch and nonce), and makes one change after the other. So when the
outcome of a write is unknown, what is there tells: our epoch and nonce, and the change is made on top of it, which
changes nothing if it was stored before; another's, and this owner is fenced. An earlier write that comes late fails,
as its version is gone, or is found by the next conflict.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable
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
from pyreplog.topic.model.names import topic_key

Change = Callable[[LedgerChain], LedgerChain]


class StoredChain(NamedTuple):
    """A chain, and the version of its key; None: the key is there, the topic is not (it is the parent of others)."""

    chain: LedgerChain | None
    version: int


def find_chain(store: MetadataStore, name: str) -> StoredChain | None:
    """What there is of a topic; None: no key. Errors: InvalidMetadataError; those of `topic_key` and of the store."""
    there = store.get(topic_key(name))
    if there is None:
        return None
    if not there.value:
        return StoredChain(None, there.version)
    chain = LedgerChain.decode(there.value)
    if chain.topic != name:
        raise InvalidMetadataError(f"metadata of topic {name}: they say that they are of topic {chain.topic}")
    return StoredChain(chain, there.version)


class ChainStore:
    """One owner's hold on a chain. Calls block; any thread, one at a time."""

    def __init__(self, store: MetadataStore, name: str, owner: str) -> None:
        self._store, self._name, self._key = store, name, topic_key(name)
        self._owner, self._nonce = owner, secrets.token_hex(8)
        self._lock = threading.Lock()
        self._chain: LedgerChain | None = None
        self._version = -1

    @property
    def chain(self) -> LedgerChain:
        """As it is stored, as far as this owner knows."""
        assert self._chain is not None
        return self._chain

    # ---- taking over ----------------------------------------------------------------------------------------

    def take(self, config: TopicConfig | None, now_us: int, *, create: bool) -> LedgerChain:
        """Become the owner: from now on nobody who was it before can change the chain.

        config: of a topic that is made here. Errors: NoSuchTopicError; InvalidMetadataError; those of the store.
        """
        while True:
            found = find_chain(self._store, self._name)
            try:
                if found is None or found.chain is None:
                    if not create:
                        raise NoSuchTopicError(self._name, "there is none of that name, or it was deleted")
                    wanted = self._new(config or TopicConfig(), now_us)
                else:
                    wanted = found.chain.taken(self._owner, self._nonce)
                version = self._write(wanted, None if found is None else found.version)
            except (KeyExistsError, VersionConflictError, NoSuchKeyError):
                continue
            except OutcomeUnknownError:
                there = find_chain(self._store, self._name)
                if there is None or there.chain != wanted:
                    continue  # it may come late: then the next write meets a conflict
                version = there.version
            self._chain, self._version = wanted, version
            return wanted

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
        """Store `change(chain)`; returns it. The change is made anew when somebody else edited the chain meanwhile, or
        to one that has it already.

        Errors: TopicFencedError; those of `change`; InvalidMetadataError; those of the store: after an
        OutcomeUnknownError or MetadataUnavailableError the same change may be asked for again.
        """
        with self._lock:
            while True:
                wanted = change(self.chain)
                if wanted == self.chain and self._version >= 0:
                    return wanted
                try:
                    if self._version < 0:
                        self._look()
                        continue
                    self._version = self._write(wanted, self._version)
                except (VersionConflictError, NoSuchKeyError):
                    self._version = -1
                except OutcomeUnknownError:
                    self._version = -1
                    self._look()
                else:
                    self._chain = wanted
                    return wanted

    def check(self) -> LedgerChain:
        """Whether this owner still has the topic, and the store answers. Errors: as update."""
        with self._lock:
            self._look()
            return self.chain

    def _look(self) -> None:
        """What is there now is ours to go on with, or another's."""
        found = find_chain(self._store, self._name)
        if found is None or found.chain is None:
            raise TopicFencedError(self._name, "it was deleted")
        chain = found.chain
        if (chain.epoch, chain.nonce) != (self.chain.epoch, self.chain.nonce):
            raise TopicFencedError(self._name, f"{chain.owner or 'another owner'} took it over, in epoch {chain.epoch}")
        self._chain, self._version = chain, found.version

    def has(self, ledger: int) -> bool:
        """Whether the chain that is stored, whoever's it is, needs a ledger. Errors: as `find_chain`."""
        found = find_chain(self._store, self._name)
        return found is not None and found.chain is not None and ledger in {*found.chain.ids, *found.chain.doomed}

    def remove(self) -> None:
        """Remove the key of a topic that was condemned, and all below it. Errors: TopicFencedError, and the store's."""
        with self._lock:
            while True:
                self._look()
                try:
                    _remove_below(self._store, self._key)
                    self._store.delete(self._key, self._version)
                except (VersionConflictError, NoSuchKeyError):  # somebody edits or removes it, too
                    continue
                return


def _remove_below(store: MetadataStore, key: str) -> None:
    for name in store.list(key):
        child = f"{key}/{name}"
        _remove_below(store, child)
        there = store.get(child)
        if there is not None:
            store.delete(child, there.version)
