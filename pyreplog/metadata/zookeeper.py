"""ZooKeeperStore: metadata in a ZooKeeper ensemble. A key is a node below the store's root."""

from __future__ import annotations

import builtins
import logging
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NoReturn

from kazoo.client import KazooClient, KazooState
from kazoo.exceptions import (
    AuthFailedError,
    BadVersionError,
    InvalidACLError,
    KazooException,
    NoAuthError,
    NoChildrenForEphemeralsError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    RolledBackError,
)
from kazoo.protocol.states import WatchedEvent

from pyreplog.clock import SystemClock
from pyreplog.errors import (
    ClosedError,
    InvalidArgumentError,
    KeyExistsError,
    KeyNotEmptyError,
    LeaseLostError,
    MetadataAccessError,
    MetadataUnavailableError,
    NoSuchKeyError,
    ReplogError,
    VersionConflictError,
)
from pyreplog.metadata.keys import ROOT, check_key, parent_of
from pyreplog.metadata.lease import Heartbeat, Lease, LeaseState
from pyreplog.metadata.operations import CheckExists, CreateKey, DeleteKey, Operation, PutValue
from pyreplog.metadata.store import MetadataStore, Versioned
from pyreplog.metadata.watching import Watch, Watchers
from pyreplog.metadata.zookeeper_session import ZooKeeperSession

_logger = logging.getLogger(__name__)

_VERSION_MAX = (1 << 31) - 1
_ARM_S = 5.0
_ANY_VERSION = -1
"""ZooKeeper's version of a check that a node exists."""


class ZooKeeperStore(MetadataStore):
    """A metadata store in a ZooKeeper ensemble. A key is a node below a root.

    A `sync` precedes each read, so that a server which lags behind its leader does not answer with old values. The
    server keeps a closed watch until its key changes again, or the session ends. Needs the extra `zookeeper`.

    Args:
        hosts: "host:port,host:port".
        root: key below which the keys of this store lie; created if it does not exist. "/": the root of ZooKeeper.
        timeout: seconds that a call may take.
        session_timeout: seconds of silence after which a server ends the session that reads, writes and watches use.
            Each lease has a session of its own.

    Raises:
        MetadataUnavailableError: no server answers.
        InvalidArgumentError: `root` is not a key.

    Example:
        ```python
        with ZooKeeperStore("zk1:2181,zk2:2181", "/pyreplog") as store:
            print(store.list("/ledgers"))
        ```
    """

    def __init__(self, hosts: str, root: str = ROOT, *, timeout: float = 10.0, session_timeout: float = 10.0) -> None:
        if root != ROOT:
            check_key(root)
        self._hosts, self._timeout = hosts, timeout
        self._root = "" if root == ROOT else root
        arming = _WatchRearmer(self._root)
        self._watchers = arming.watchers
        self._session = ZooKeeperSession(hosts, ttl=session_timeout, timeout=timeout, listener=arming.state_changed)
        arming.session = self._session
        super().__init__(f"metadata store zk://{hosts}{self._root}")

    def _path(self, key: str) -> str:
        return (self._root if key == ROOT else self._root + key) or ROOT

    def _get(self, key: str) -> Versioned | None:
        path = self._path(key)
        try:
            value, stat = self._session.read(lambda zk: (zk.sync_async(path), zk.get_async(path))[1])
        except NoNodeError:
            return None
        except KazooException as error:
            _raise_translated(key, error)
        return Versioned(value, stat.version)

    def _get_many(self, keys: Sequence[str]) -> builtins.list[Versioned | None]:
        """Send all reads before waiting for the first answer; the `sync` before them covers all of them."""
        try:
            answers = self._session.read(lambda zk: _CombinedResult(zk, [self._path(key) for key in keys]))
        except KazooException as error:
            _raise_translated(keys[0], error)
        return [None if answer is None else Versioned(answer[0], answer[1].version) for answer in answers]

    def _create(self, key: str, value: bytes) -> int:
        return self._make(self._session, key, value, ephemeral=False)

    def _make(self, session: ZooKeeperSession, key: str, value: bytes, *, ephemeral: bool) -> int:
        """Create a node. While a parent is missing, create the parents and retry: other processes may remove them."""
        path = self._path(key)
        while True:
            try:
                session.write(lambda zk: zk.create_async(path, value, ephemeral=ephemeral))
            except NoNodeError:
                self._make_parents(session, path)
                continue
            except KazooException as error:
                _raise_translated(key, error)
            return 0

    def _make_parents(self, session: ZooKeeperSession, path: str) -> None:
        missing: list[str] = []
        parent = parent_of(path)
        while parent != ROOT and session.read(partial(_exists, parent)) is None:
            missing.append(parent)
            parent = parent_of(parent)
        for parent in reversed(missing):
            try:
                session.write(partial(_create_empty, parent))
            except NodeExistsError:  # another process has created it
                continue
            except NoNodeError:  # another process has removed the parent that was created before
                return
            except KazooException as error:
                _raise_translated(path, error)

    def _put(self, key: str, value: bytes, version: int) -> int:
        self._check_version(key, version)
        try:
            stat = self._session.write(lambda zk: zk.set_async(self._path(key), value, version))
        except KazooException as error:
            _raise_translated(key, error, version)
        return int(stat.version)

    def _delete(self, key: str, version: int) -> None:
        self._check_version(key, version)
        try:
            self._session.write(lambda zk: zk.delete_async(self._path(key), version))
        except KazooException as error:
            _raise_translated(key, error, version)

    def _multi(self, operations: Sequence[Operation]) -> builtins.list[int | None]:
        """Send one transaction. While a parent of a new node is missing, create the parents and retry."""
        for operation in operations:
            self._check_version(operation.key, _expected_version(operation) or 0)
        while True:
            try:
                answers = self._session.write(partial(self._transaction, operations))
            except KazooException as error:
                _raise_translated(operations[0].key, error)
            failed = next(filter(_has_failed, zip(operations, answers, strict=True)), None)
            if failed is None:
                return [_new_version(*done) for done in zip(operations, answers, strict=True)]
            operation, refusal = failed
            if not isinstance(operation, CreateKey) or not isinstance(refusal, NoNodeError):
                _raise_translated(operation.key, refusal, _expected_version(operation))
            self._make_parents(self._session, self._path(operation.key))

    def _transaction(self, operations: Sequence[Operation], zk: KazooClient) -> Any:
        transaction = zk.transaction()
        for operation in operations:
            path = self._path(operation.key)
            match operation:
                case CheckExists():
                    transaction.check(path, _ANY_VERSION)
                case CreateKey(value=value):
                    transaction.create(path, bytes(value))
                case PutValue(value=value, version=version):
                    transaction.set_data(path, bytes(value), version)
                case DeleteKey(version=version):
                    transaction.delete(path, version)
        return transaction.commit_async()

    def _check_version(self, key: str, version: int) -> None:
        if version > _VERSION_MAX:  # more than ZooKeeper's protocol holds, so the key cannot have it
            raise VersionConflictError(f"{key}: expected version {version}")

    def _list(self, key: str) -> builtins.list[str]:
        path = self._path(key)
        try:
            children = self._session.read(lambda zk: (zk.sync_async(path), zk.get_children_async(path))[1])
        except NoNodeError:
            return []
        except KazooException as error:
            _raise_translated(key, error)
        return [name for name in children if path != ROOT or name != "zookeeper"]

    def _watch(self, key: str, callback: Callable[[str], object]) -> Watch:
        return self._watchers.add(key, callback)

    def _lease(self, ttl: float, on_loss: Callable[[], object] | None) -> ZooKeeperLease:
        return ZooKeeperLease(self, ttl, on_loss)

    def end_calls_by(self, deadline: float) -> None:
        """Set a time after which no call waits for the ensemble.

        Args:
            deadline: seconds of `time.monotonic()`.
        """
        self._session.deadline = deadline
        for lease in self._opened_leases():
            assert isinstance(lease, ZooKeeperLease), "they are all made here"
            lease._session_heartbeat.session.deadline = deadline

    def _do_close(self) -> None:
        self._session.close()
        self._watchers.stop()


class _CombinedResult:
    """The combined result of reads of several nodes, with the interface of kazoo's `IAsyncResult`."""

    def __init__(self, zk: KazooClient, paths: Sequence[str]) -> None:
        zk.sync_async(paths[0])
        self._results = [zk.get_async(path) for path in paths]

    def get(self, timeout: float) -> builtins.list[Any]:
        """Return an answer for each node, None for nodes that do not exist. Raises the errors of a single read."""
        deadline = time.monotonic() + timeout
        answers: builtins.list[Any] = []
        for result in self._results:
            try:
                answers.append(result.get(timeout=max(0.0, deadline - time.monotonic())))
            except NoNodeError:
                answers.append(None)
        return answers


def _has_failed(done: tuple[Operation, Any]) -> bool:
    """Return whether a transaction failed because of this operation; those before it are rolled back."""
    _, answer = done
    return isinstance(answer, KazooException) and not isinstance(answer, RolledBackError)


def _expected_version(operation: Operation) -> int | None:
    return operation.version if isinstance(operation, PutValue | DeleteKey) else None


def _new_version(operation: Operation, answer: Any) -> int | None:
    if isinstance(operation, PutValue):
        return int(answer.version)
    return 0 if isinstance(operation, CreateKey) else None


def _exists(path: str, zk: KazooClient) -> Any:
    return zk.exists_async(path)


def _create_empty(path: str, zk: KazooClient) -> Any:
    return zk.create_async(path, b"")


def _raise_translated(key: str, error: KazooException, version: int | None = None) -> NoReturn:
    """Translate an error of a server and raise it. version: the expected version, for the text."""
    match error:
        case NoNodeError():
            raise NoSuchKeyError(f"there is no {key}") from error
        case NodeExistsError():
            raise KeyExistsError(f"{key} exists") from error
        case BadVersionError():
            raise VersionConflictError(f"{key}: expected version {version}") from error
        case NotEmptyError():
            raise KeyNotEmptyError(f"{key} has children") from error
        case NoChildrenForEphemeralsError():
            raise InvalidArgumentError(f"{key}: its parent belongs to a lease and cannot have children") from error
        case NoAuthError() | AuthFailedError() | InvalidACLError():
            raise MetadataAccessError(
                f"{key}: ZooKeeper denied access ({type(error).__name__}): the ACLs of the keys, and of their parents, "
                "must let clients without credentials read, write, create and delete"
            ) from error
    raise MetadataUnavailableError(f"{key}: ZooKeeper refused: {type(error).__name__}") from error


class _WatchRearmer:
    """Sets ZooKeeper's watches again: before the callbacks of a watch that fired, and after every reconnection.

    ZooKeeper's watches fire once, and end with the session.
    """

    def __init__(self, root: str) -> None:
        self._root = root
        self.watchers = Watchers(arm=self._arm)
        self.session: ZooKeeperSession | None = None

    def state_changed(self, state: str) -> None:
        if state == KazooState.CONNECTED:
            self.watchers.all_changed()

    def _arm(self, key: str) -> bool:
        """Set ZooKeeper's watches of a key; return whether that succeeded.

        All keys share one callback function, which kazoo keeps once per path.
        """
        if self.session is None or not self.session.connected:
            return False
        path = (self._root if key == ROOT else self._root + key) or ROOT
        try:
            self.session.read_once(lambda zk: zk.exists_async(path, self._fired), _ARM_S)
            self.session.read_once(lambda zk: zk.get_children_async(path, self._fired), _ARM_S)
        except NoNodeError:  # the first watch fires when the node is created
            return True
        except ClosedError:
            return False
        except (ReplogError, KazooException) as error:
            _logger.warning("%s is not watched for the moment: %s", path, error)
            return False
        return True

    def _fired(self, event: WatchedEvent) -> None:
        if event.path is not None:  # None: the connection was lost; `state_changed` handles the reconnection
            self.watchers.changed([event.path[len(self._root) :] or ROOT])


class ZooKeeperLease(Lease):
    """A lease with its own session, whose timeout is the lease's ttl; its keys are ephemeral nodes."""

    def __init__(self, store: ZooKeeperStore, ttl: float, on_loss: Callable[[], object] | None) -> None:
        self._store = store
        self._session_heartbeat = _SessionHeartbeat(store._hosts, ttl, store._timeout)
        try:
            heartbeat = self._session_heartbeat.begin(on_loss)
        except BaseException:
            self._session_heartbeat.session.close()
            raise
        super().__init__(heartbeat)

    def _create(self, key: str, value: bytes) -> int:
        version = self._store._make(self._session_heartbeat.session, key, value, ephemeral=True)
        if self._heartbeat.state is LeaseState.LOST:  # kazoo has begun another session, which the heartbeat closes
            raise LeaseLostError(f"the lease was lost while {key} was created")
        return version

    def _do_close(self) -> None:
        self._heartbeat.stop()
        self._session_heartbeat.session.close()


class _SessionHeartbeat:
    """Connects the heartbeat of a lease with its session.

    It has no reference to the lease, so that a lease which was not closed is garbage-collected, and warns.
    """

    def __init__(self, hosts: str, ttl: float, timeout: float) -> None:
        self._clock = SystemClock()
        self._lost = False
        self._heartbeat: Heartbeat | None = None
        self.session = ZooKeeperSession(hosts, ttl=ttl, timeout=timeout, listener=self._state_changed)

    def begin(self, on_loss: Callable[[], object] | None) -> Heartbeat:
        self._heartbeat = Heartbeat(
            ttl=self.session.ttl, clock=self._clock, renew=self._renew, give_up=self.session.close, on_loss=on_loss
        )
        if self._lost:
            self._heartbeat.lose()
        return self._heartbeat

    def _renew(self) -> int:
        """Send a request, and return until when the session certainly lives. kazoo's pings keep the session.

        A server counts the session timeout from the arrival of the request, which is later than its sending. A third of
        the timeout is subtracted, since a follower may report the session to the leader late.
        """
        sent_us = self._clock.monotonic_us()
        self.session.read_once(lambda zk: zk.exists_async(ROOT), self.session.ttl / 3)
        if self._lost:
            raise LeaseLostError("the session has expired")
        return sent_us + round(self.session.ttl * 2 / 3 * 1e6)

    def _state_changed(self, state: str) -> None:
        self._lost = self._lost or (state == KazooState.LOST)
        if self._heartbeat is None:
            return
        if self._lost:
            self._heartbeat.lose()
        elif state == KazooState.SUSPENDED:
            self._heartbeat.suspend()
        else:
            self._heartbeat.renew_now()
