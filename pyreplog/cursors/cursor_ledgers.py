"""The ledgers that hold cursors: opened, retired, and deleted when no subscription refers to them."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Set
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Literal

from pyreplog._native.quorum.quorum import check_quorums
from pyreplog.config import Settings
from pyreplog.cursors.cursor_persister import CursorLedger, CursorPersister
from pyreplog.cursors.metadata_updates import Post
from pyreplog.cursors.subscription_metadata import list_subscriptions, load_subscription
from pyreplog.errors import (
    ClosedError,
    ConfigError,
    InvalidMetadataError,
    MetadataUnavailableError,
    NoSuchKeyError,
    NoSuchLedgerError,
    NoSuchSubscriptionError,
    OutcomeUnknownError,
    ReplogError,
    VersionConflictError,
)
from pyreplog.ledger.closing import close_all
from pyreplog.ledger.cluster import LedgerCluster
from pyreplog.ledger.ledger_handle import Ledger
from pyreplog.ledger.ledger_metadata import ID_DIGITS, State
from pyreplog.metadata.store import MetadataStore
from pyreplog.topic_names import TOPICS, unquote_name

logger = logging.getLogger(__name__)

COPIES = 3


@dataclass(frozen=True, kw_only=True)
class CursorLogConfig(Settings):
    """Settings of the ledgers in which a process stores cursors.

    Attributes:
        flush_ms: longest time until an acknowledgement is persisted, while nothing fails.
        ensemble: bookies of each ledger, see `Cluster.create_ledger`; None: as many as the cluster has, running or not,
            up to COPIES.
        write_quorum: see `Cluster.create_ledger`.
        ack_quorum: see `Cluster.create_ledger`.
        durability: see `Cluster.create_ledger`.
        roll_entries: the next ledger is begun when one has so many entries.
        roll_bytes: the same for bytes.
        roll_ms: the same for the age of the ledger.
        retry_ms: delay before a retry; it doubles each time up to `retry_max_ms`.
        retry_max_ms: see `retry_ms`.
        cache_bytes: the ledger of a former owner is read once for all its cursors; so many bytes of such ledgers are
            cached.
        cache_ms: and for so long.
        sweep_ms: delay of the search for ledgers that no subscription refers to.
    """

    flush_ms: int = 100
    ensemble: int | None = COPIES
    write_quorum: int | None = None
    ack_quorum: int | None = None
    durability: Literal["synced", "appended"] = "synced"
    roll_entries: int = 50_000
    roll_bytes: int = 64 << 20
    roll_ms: int = 4 * 3_600_000
    retry_ms: int = 200
    retry_max_ms: int = 30_000
    cache_bytes: int = 256 << 20
    cache_ms: int = 60_000
    sweep_ms: int = 600_000

    def __post_init__(self) -> None:
        ensemble = COPIES if self.ensemble is None else self.ensemble
        copies = ensemble if self.write_quorum is None else self.write_quorum
        check_quorums(ensemble, copies, copies // 2 + 1 if self.ack_quorum is None else self.ack_quorum)
        if self.durability not in ("synced", "appended"):
            raise ConfigError(f"durability: expected synced or appended, found {self.durability!r}")
        self._check_int("flush_ms", 0, 3_600_000)
        self._check_int("roll_entries", 1, 1 << 40)
        self._check_int("roll_bytes", 1, 1 << 40)
        self._check_int("roll_ms", 1, 1 << 42)
        self._check_int("retry_ms", 1, 3_600_000)
        self._check_int("retry_max_ms", self.retry_ms, 3_600_000)
        self._check_int("cache_bytes", 0, 1 << 40)
        self._check_int("cache_ms", 0, 3_600_000)
        self._check_int("sweep_ms", 1, 1 << 42)


CURSOR_LEDGERS = "/cursor-ledgers"


def registry_key(ledger: int) -> str:
    """Return the key that names the writer of a cursor ledger."""
    return f"{CURSOR_LEDGERS}/{ledger:0{ID_DIGITS}d}"


def incarnation_of(owner: str) -> str:
    """Return the process to which an owner of subscriptions belongs."""
    return owner.partition("/")[0]


def delete_cursor_ledger(cluster: LedgerCluster, ledger: int) -> None:
    """Delete a cursor ledger, then its key: after a crash in between a sweep finds the key.

    Raises errors of the store.
    """
    with suppress(NoSuchLedgerError):
        cluster.delete_ledger(ledger)
    store, key = cluster.metadata, registry_key(ledger)
    item = store.get(key)
    if item is not None:
        try:
            store.delete(key, item.version)
        except (NoSuchKeyError, VersionConflictError):  # another process sweeps, too
            return


class Sweep:
    """Searches all subscriptions for references to cursor ledgers, and deletes the unreferenced ones, in short steps.

    Args:
        cluster: the cluster.
        mine: the incarnation of this process.
        given_up: closed ledgers of this process that it will not refer to any more.
    """

    def __init__(self, cluster: LedgerCluster, mine: str, given_up: Set[int]) -> None:
        self._cluster, self._mine, self._given_up = cluster, mine, given_up
        self._store: MetadataStore = cluster.metadata
        self._named: set[int] = set()
        self._owners: set[str] = set()
        self._steps = self._run()
        self.deleted: set[int] = set()
        self.left: set[int] = set()
        """Candidates that still exist."""

    def step(self) -> bool:
        """Do one step; return False at the end. Raises errors of the store, and of `open_ledger`."""
        return next(self._steps, None) is not None

    def _run(self) -> Iterator[bool]:
        candidates = self._candidates()
        if not candidates:
            return
        self.left = set(candidates)
        closed = {ledger for ledger in candidates if self._is_closed(ledger)}
        yield from self._read_references()
        unused = self._unused(candidates)
        yield from self._delete(unused & closed)
        if unused - closed:
            yield from self._close(unused - closed)
            yield from self._read_references()
            yield from self._delete(self._unused(candidates) & unused - closed)

    def _candidates(self) -> dict[int, str]:
        """Return the cursor ledgers that may be unused, and their writers."""
        writers = {}
        for name in self._store.list(CURSOR_LEDGERS):
            item = self._store.get(f"{CURSOR_LEDGERS}/{name}") if name.isdecimal() else None
            if item is not None:
                writers[int(name)] = item.value.decode(errors="replace")
        return {
            ledger: writer for ledger, writer in writers.items() if writer != self._mine or ledger in self._given_up
        }

    def _is_closed(self, ledger: int) -> bool:
        try:
            return self._cluster.ledger_metadata(ledger).state is State.CLOSED
        except NoSuchLedgerError:
            return True
        except InvalidMetadataError:
            return False

    def _read_references(self) -> Iterator[bool]:
        """Read every subscription. An error ends the sweep: metadata that cannot be read may refer to any ledger."""
        self._named, self._owners = set(), set()
        for topic in self._store.list(TOPICS):
            for name in list_subscriptions(self._store, unquote_name(topic)):
                try:
                    metadata = load_subscription(self._store, unquote_name(topic), name)
                except NoSuchSubscriptionError:
                    continue
                self._named.add(metadata.cursor_ledger)
                self._owners.add(incarnation_of(metadata.owner))
            yield True

    def _unused(self, candidates: dict[int, str]) -> set[int]:
        owners = self._owners - {self._mine}
        return {ledger for ledger, writer in candidates.items() if ledger not in self._named and writer not in owners}

    def _close(self, ledgers: Set[int]) -> Iterator[bool]:
        """Close ledgers of an owner that is not alive; if it is, without a subscription, it opens another one."""
        for ledger in sorted(ledgers):
            try:
                self._cluster.open_ledger(ledger).close()
            except NoSuchLedgerError:
                logger.debug("cursor ledger %d was deleted meanwhile", ledger)
            yield True

    def _delete(self, ledgers: Set[int]) -> Iterator[bool]:
        for ledger in sorted(ledgers):
            delete_cursor_ledger(self._cluster, ledger)
            self.deleted.add(ledger)
            self.left.discard(ledger)
            logger.info("cursor ledger %d was deleted: no subscription refers to it", ledger)
            yield True


CLOSE_S = 2.0
SWEEP_MAX_S = 86_400.0


class CursorLedgers:
    """The cursor ledgers of one CursorLog, whose thread makes all calls.

    The log's thread runs what is passed to `post`. Blocking calls are made by the threads that all ledgers share.

    Args:
        cluster: the cluster.
        config: settings.
        incarnation: of this process, see `Sweep`.
        post: runs a call in the log's thread.
        changed: called when a blocking call has ended.
    """

    def __init__(
        self,
        cluster: LedgerCluster,
        config: CursorLogConfig,
        incarnation: str,
        post: Post,
        changed: Callable[[], object],
    ) -> None:
        self._cluster, self._runtime, self._config = cluster, cluster.runtime, config
        self._incarnation, self._post, self._changed = incarnation, post, changed
        self.current: CursorLedger | None = None
        self.known: dict[int, CursorLedger] = {}
        self.is_opening = False
        self.pending = 0
        """Number of blocking calls that run."""
        self._lock = threading.Lock()  # guards the next two
        self._has_ended = False
        self._opened: Ledger | None = None  # opened, and not yet handed to the log's thread
        self._error: BaseException | None = None  # the last error since the last success
        self._failures = 0
        self._not_before = 0.0
        self._given_up: set[int] = set()  # ledgers that a sweep has to delete
        self._sweeping = self._has_swept = False
        self._sweep_s = config.sweep_ms / 1000

    # ---- opening --------------------------------------------------------------------------------------------

    def open_if_needed(self) -> None:
        """Begin to open a ledger if there is none, or the current one is full; that is used meanwhile."""
        cursor_ledger = self.current
        if self.is_opening or self.wait_s > 0 or (cursor_ledger is not None and not self._is_full(cursor_ledger)):
            return
        self.is_opening = True
        self._work(self._open)

    def _work(self, job: Callable[[], Callable[[], None]]) -> None:
        """Run a blocking job in a shared thread, and its result in the log's thread."""
        self.pending += 1
        self._runtime.work(lambda: self._post(partial(self._work_done, job())))

    def _work_done(self, then: Callable[[], None]) -> None:
        self.pending -= 1
        then()
        self._changed()

    def _is_full(self, cursor_ledger: CursorLedger) -> bool:
        config = self._config
        return cursor_ledger.handle is not None and (
            cursor_ledger.handle.last_add_pushed + 1 >= config.roll_entries
            or cursor_ledger.nbytes >= config.roll_bytes
            or time.monotonic() - cursor_ledger.began >= config.roll_ms / 1000
        )

    @property
    def wait_s(self) -> float:
        """Seconds until the next attempt after a failure."""
        return max(0.0, self._not_before - time.monotonic())

    @property
    def lacks_bookies(self) -> bool:
        """Whether there is no ledger for lack of bookies, so that the metadata store may be available."""
        return not isinstance(self._error, MetadataUnavailableError | OutcomeUnknownError)

    def _open(self) -> Callable[[], None]:
        config = self._config
        try:
            ensemble = config.ensemble or min(max(self._cluster.bookie_count(), 1), COPIES)
            handle = self._cluster.create_ledger(
                ensemble, config.write_quorum, config.ack_quorum, durability=config.durability,
                properties={"cursors": self._incarnation}, allow_degraded=True,
            )  # fmt: skip
            try:
                self._cluster.metadata.create(registry_key(handle.id), self._incarnation.encode())
                with self._lock:
                    if self._has_ended:
                        raise ClosedError("the cursor log was closed")
                    self._opened = handle
            except ReplogError:
                self._discard(handle)
                raise
        except Exception as error:
            return partial(self._open_failed, error)
        return partial(self._ledger_opened, handle)

    def _discard(self, handle: Ledger, timeout: float = CLOSE_S) -> None:
        """Close and delete an empty ledger."""
        close_all([handle], self._runtime, timeout)
        try:
            delete_cursor_ledger(self._cluster, handle.id)
        except ReplogError as error:
            logger.warning("cursor ledger %d is empty and could not be deleted: %s", handle.id, error)

    def _ledger_opened(self, handle: Ledger) -> None:
        former = self.current
        self.is_opening, self._opened = False, None
        self.current = self.known[handle.id] = CursorLedger(handle.id, handle, time.monotonic())
        if former is not None:
            self.retire(former)
        if not self._has_swept:
            self._has_swept = True
            self._sweep_later()

    def _open_failed(self, error: Exception) -> None:
        self.is_opening = False
        if not isinstance(error, ReplogError):
            logger.error("a cursor ledger could not be opened", exc_info=error)
        self._back_off(error)

    def _back_off(self, error: BaseException) -> None:
        if not self._failures:
            logger.warning("cursors cannot be stored in a ledger now: %s", error)
        config = self._config
        seconds = min(config.retry_ms * 2 ** min(self._failures, 20), config.retry_max_ms) / 1000
        self._error, self._failures, self._not_before = error, self._failures + 1, time.monotonic() + seconds

    # ---- retiring -------------------------------------------------------------------------------

    def succeeded(self) -> None:
        """Note that records were stored in the current ledger."""
        self._failures, self._error = 0, None

    def failed(self, cursor_ledger: CursorLedger, error: BaseException) -> None:
        """Retire a ledger in which nothing can be stored any more.

        After the first failure another one is opened at once.
        """
        if cursor_ledger is self.current:
            if self._failures:
                self._back_off(error)
            else:
                logger.info("cursor ledger %d is retired: %s", cursor_ledger.ledger, error)
                self._error, self._failures = error, 1
        if not cursor_ledger.is_retired:
            self.retire(cursor_ledger)

    def retire(self, cursor_ledger: CursorLedger) -> None:
        """Close a ledger, and have the cursors whose state it holds write snapshots to the next one."""
        if cursor_ledger is self.current:
            self.current = None
        cursor_ledger.is_retired = True
        self._work(partial(self._close, cursor_ledger))
        for persister in cursor_ledger.persisters:
            persister.dirty()

    def _close(self, cursor_ledger: CursorLedger) -> Callable[[], None]:
        if cursor_ledger.handle is not None:
            _close(cursor_ledger.handle)
        return partial(self._closed, cursor_ledger)

    def _closed(self, cursor_ledger: CursorLedger) -> None:
        cursor_ledger.is_closed = True
        self.drop_if_free(cursor_ledger)

    def end(self, timeout: float = CLOSE_S) -> None:
        """Close the current ledger, and delete it if it is empty, within `timeout` seconds.

        The log's thread has ended.
        """
        with self._lock:
            self._has_ended = True
        if self._opened is not None:
            self._discard(self._opened, timeout)
        cursor_ledger, self.current = self.current, None
        if cursor_ledger is None or cursor_ledger.handle is None:
            return
        close_all([cursor_ledger.handle], self._runtime, timeout)
        cursor_ledger.is_retired = cursor_ledger.is_closed = True
        if cursor_ledger.is_free and not cursor_ledger.is_abandoned:
            self._delete(cursor_ledger.ledger)()

    # ---- persisters ------------------------------------------------------------------------------------

    def adopt(self, persister: CursorPersister, ledger: int) -> None:
        """Note the ledger of a cursor that was just opened."""
        cursor_ledger = self.known.setdefault(ledger, CursorLedger(ledger))
        self.join(persister, cursor_ledger)
        if cursor_ledger.is_retired and cursor_ledger.handle is not None:
            persister.dirty()

    def join(self, persister: CursorPersister, cursor_ledger: CursorLedger) -> None:
        """Note that the metadata of a cursor refer to a ledger."""
        persister.cursor_ledger = cursor_ledger
        cursor_ledger.persisters[persister] = None

    def leave(self, persister: CursorPersister, *, named: bool) -> None:
        """Note that a cursor leaves its ledger. named: its metadata may still refer to it."""
        cursor_ledger, persister.cursor_ledger = persister.cursor_ledger, None
        if cursor_ledger is not None:
            cursor_ledger.persisters.pop(persister, None)
            cursor_ledger.is_abandoned = cursor_ledger.is_abandoned or named
            self.drop_if_free(cursor_ledger)

    def drop_if_free(self, cursor_ledger: CursorLedger) -> None:
        """Delete a ledger that is not used any more; have a sweep decide if other processes may refer to it."""
        if cursor_ledger.is_done or not cursor_ledger.is_free:
            return
        cursor_ledger.is_done = True
        del self.known[cursor_ledger.ledger]
        if cursor_ledger.is_abandoned:
            self._give_up(cursor_ledger.ledger)
        else:
            self._work(partial(self._delete, cursor_ledger.ledger))

    def _delete(self, ledger: int) -> Callable[[], None]:
        try:
            delete_cursor_ledger(self._cluster, ledger)
        except ReplogError as error:
            logger.warning("cursor ledger %d cannot be deleted yet: %s", ledger, error)
            return partial(self._give_up, ledger)
        return partial(logger.debug, "cursor ledger %d was deleted", ledger)

    # ---- sweeping -------------------------------------------------------------------------------------------

    def _give_up(self, ledger: int) -> None:
        self._given_up.add(ledger)
        self._sweep_s = self._config.sweep_ms / 1000
        self._sweep_later()

    def _sweep_later(self) -> None:
        if not self._sweeping:
            self._sweeping = True
            self._runtime.wake_after(self._sweep_s, partial(self._post, self._sweep))

    def _sweep(self) -> None:
        self._runtime.work(partial(self._step, Sweep(self._cluster, self._incarnation, frozenset(self._given_up))))

    def _step(self, sweep: Sweep) -> None:
        """Do a step of a sweep in a shared thread, which others may use between two steps."""
        try:
            has_more = sweep.step()
        except ReplogError as error:
            logger.warning("cursor ledgers were not swept: %s", error)
            sweep.left |= self._given_up
            has_more = False
        if has_more:
            self._runtime.work(partial(self._step, sweep))
        else:
            self._post(partial(self._swept, sweep))

    def _swept(self, sweep: Sweep) -> None:
        """Search again, less and less often, while other processes refer to ledgers."""
        self._sweeping = False
        self._given_up &= sweep.left
        if self._given_up:
            self._sweep_s = min(self._sweep_s * 2, SWEEP_MAX_S)
            self._sweep_later()


def _close(handle: Ledger) -> None:
    try:
        handle.close(CLOSE_S)
    except ReplogError as error:
        logger.debug("cursor ledger %d was left open: %s", handle.id, error)
