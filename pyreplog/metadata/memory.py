"""MemoryStore: metadata in the memory of one process, for tests; the simplest implementation of MetadataStore."""

from __future__ import annotations

import builtins
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

from pyreplog.clock import Clock, SystemClock
from pyreplog.errors import (
    InvalidArgumentError,
    KeyExistsError,
    KeyNotEmptyError,
    LeaseLostError,
    MetadataUnavailableError,
    NoSuchKeyError,
    VersionConflictError,
)
from pyreplog.metadata.keys import ROOT, name_of, parent_of
from pyreplog.metadata.lease import Heartbeat, Lease, LeaseState
from pyreplog.metadata.operations import CheckExists, CreateKey, DeleteKey, Operation, PutValue
from pyreplog.metadata.store import MetadataStore, Versioned
from pyreplog.metadata.watching import Watch, Watchers


@dataclass(slots=True)
class _Node:
    value: bytes = b""
    version: int = 0
    leased: bool = False
    children: set[str] = field(default_factory=set)


class MemoryStore(MetadataStore):
    """A metadata store in the memory of one process, for tests. Closing it deletes the content.

    Versions begin at 0 whenever a key is created, as in ZooKeeper.

    Example:
        ```python
        with MemoryStore() as store:
            store.create("/app/leader", b"host-a")
        ```
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._nodes: dict[str, _Node] = {ROOT: _Node()}
        self._watchers = Watchers()
        super().__init__("metadata store in memory")

    def _get(self, key: str) -> Versioned | None:
        with self._lock:
            node = self._nodes.get(key)
            return None if node is None else Versioned(node.value, node.version)

    def _get_many(self, keys: Sequence[str]) -> builtins.list[Versioned | None]:
        with self._lock:
            nodes = [self._nodes.get(key) for key in keys]
            return [None if node is None else Versioned(node.value, node.version) for node in nodes]

    def _create(self, key: str, value: bytes) -> int:
        return self._insert(key, value, leased=False).version

    def _insert(self, key: str, value: bytes, *, leased: bool) -> _Node:
        with self._changing() as changed:
            changed += self._add(key, value, leased=leased)
            return self._nodes[key]

    def _add(self, key: str, value: bytes, *, leased: bool = False) -> builtins.list[str]:
        """Create a node and its missing parents; return the keys of the new nodes, and of the parent that existed."""
        if key in self._nodes:
            raise KeyExistsError(f"{key} exists")
        missing, parent = [key], parent_of(key)
        while parent not in self._nodes:
            missing.append(parent)
            parent = parent_of(parent)
        if self._nodes[parent].leased:
            raise InvalidArgumentError(f"{parent} belongs to a lease and cannot have children")
        for name in reversed(missing):
            self._nodes[name] = _Node()
            self._nodes[parent_of(name)].children.add(name_of(name))
        node = self._nodes[key]
        node.value, node.leased = value, leased
        return [*missing, parent]

    def _put(self, key: str, value: bytes, version: int) -> int:
        with self._changing() as changed:
            node = self._expect(key, version)
            node.value, node.version = value, version + 1
            changed.append(key)
        return version + 1

    def _delete(self, key: str, version: int) -> None:
        with self._changing() as changed:
            self._expect_leaf(key, version)
            changed += self._remove(key)

    def _multi(self, operations: Sequence[Operation]) -> builtins.list[int | None]:
        versions: builtins.list[int | None] = []
        with self._changing() as changed, ExitStack() as undo:
            for operation in operations:
                keys, version = self._execute(operation, undo)
                changed += keys
                versions.append(version)
            undo.pop_all()
        return versions

    def _execute(self, operation: Operation, undo: ExitStack) -> tuple[Sequence[str], int | None]:
        """Do an operation of `multi`; return the changed keys, and the new version. `undo` gets what undoes it."""
        key = operation.key
        match operation:
            case CheckExists():
                if key not in self._nodes:
                    raise NoSuchKeyError(f"there is no {key}")
                return (), None
            case CreateKey(value=value):
                changed = self._add(key, bytes(value))
                for name in reversed(changed[:-1]):  # `undo` begins with the last one, which has no children
                    undo.callback(self._remove, name)
                return changed, 0
            case PutValue(value=value, version=version):
                node = self._expect(key, version)
                undo.callback(self._restore, key, node.value, version)
                node.value, node.version = bytes(value), version + 1
                return (key,), version + 1
            case DeleteKey(version=version):
                node = self._expect_leaf(key, version)
                undo.callback(self._restore, key, node.value, version)
                undo.callback(self._add, key, node.value, leased=node.leased)
                return self._remove(key), None

    def _restore(self, key: str, value: bytes, version: int) -> None:
        self._nodes[key].value, self._nodes[key].version = value, version

    def _expect_leaf(self, key: str, version: int) -> _Node:
        node = self._expect(key, version)
        if node.children:
            raise KeyNotEmptyError(f"{key} has children")
        return node

    def _expect(self, key: str, version: int) -> _Node:
        node = self._nodes.get(key)
        if node is None:
            raise NoSuchKeyError(f"there is no {key}")
        if node.version != version:
            raise VersionConflictError(f"{key}: expected version {version}, found {node.version}")
        return node

    def _remove(self, key: str) -> tuple[str, str]:
        del self._nodes[key]
        self._nodes[parent_of(key)].children.remove(name_of(key))
        return key, parent_of(key)

    @contextmanager
    def _changing(self) -> Iterator[builtins.list[str]]:
        """Hold the lock in a `with` block, and call the watches of the keys that the block puts into the list."""
        changed: list[str] = []
        with self._lock:
            yield changed
        self._watchers.changed(changed)

    def _list(self, key: str) -> builtins.list[str]:
        with self._lock:
            node = self._nodes.get(key)
            return [] if node is None else list(node.children)

    def _watch(self, key: str, callback: Callable[[str], object]) -> Watch:
        return self._watchers.add(key, callback)

    def _lease(self, ttl: float, on_loss: Callable[[], object] | None) -> MemoryLease:
        return MemoryLease(self, ttl, on_loss, SystemClock())

    def _do_close(self) -> None:
        self._watchers.stop()
        with self._lock:
            self._nodes = {ROOT: _Node()}


class MemoryLease(Lease):
    """A lease that tests suspend, resume and expire."""

    def __init__(self, store: MemoryStore, ttl: float, on_loss: Callable[[], object] | None, clock: Clock) -> None:
        self._store = store
        self._keys: dict[str, _Node] = {}
        reachable = threading.Event()
        reachable.set()
        self._reachable = reachable

        def renew() -> int:
            if not reachable.is_set():
                raise MetadataUnavailableError("the lease was suspended")
            return clock.monotonic_us() + round(ttl * 1e6)

        super().__init__(Heartbeat(ttl=ttl, clock=clock, renew=renew, give_up=None, on_loss=on_loss))

    def _create(self, key: str, value: bytes) -> int:
        self._keys[key] = self._store._insert(key, value, leased=True)
        if self._heartbeat.state is LeaseState.LOST:  # it was lost meanwhile
            self._forget_keys()
            raise LeaseLostError(f"the lease was lost while {key} was created")
        return 0

    def _forget_keys(self) -> None:
        with self._store._changing() as changed:
            for key, node in self._keys.items():
                if self._store._nodes.get(key) is node:  # another caller may have deleted the key and created it again
                    changed += self._store._remove(key)
            self._keys.clear()

    def suspend(self) -> None:
        """Act as if the store could not be reached: the state becomes UNKNOWN."""
        self._reachable.clear()
        self._heartbeat.suspend()

    def resume(self) -> None:
        """Act as if the store could be reached again."""
        self._reachable.set()
        self._heartbeat.renew_now()

    def expire(self) -> None:
        """Act as if the lease had expired: its keys are deleted, and the state becomes LOST."""
        self._heartbeat.lose()
        self._forget_keys()

    def _do_close(self) -> None:
        self._heartbeat.stop()
        self._forget_keys()
