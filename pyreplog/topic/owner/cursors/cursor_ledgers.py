"""The ledgers that cursors are kept in: opened, retired, and deleted when no subscription refers to them."""

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
from pyreplog.ledger.ledgermetadata import ID_DIGITS, State
from pyreplog.metadata.store import MetadataStore
from pyreplog.topic.model.names import TOPICS, unquote_name
from pyreplog.topic.model.subscription_metadata import list_subscriptions, load_subscription
from pyreplog.topic.owner.cursors.metadata_updates import Post
from pyreplog.topic.owner.cursors.slot import CursorLedger, CursorSlot

COPIES = 3


@dataclass(frozen=True, kw_only=True)
class CursorLogConfig(Settings):
    """Settings of the ledgers that a process keeps cursors in.

    flush_ms: what was acknowledged is persisted that late at most, while nothing fails.
    ensemble, write_quorum, ack_quorum, durability: of the ledgers, see `Cluster.create_ledger`. ensemble: None, as many
    bookies as the cluster has, whether they run or not, up to COPIES.
    roll_entries, roll_bytes, roll_ms: a new ledger is begun when one holds so much, or is so old.
    retry_ms, retry_max_ms: after a failure it is tried again that late, each time twice as late, up to retry_max_ms.
    cache_bytes, cache_ms: a former owner's ledger is read once for all its cursors; so much is kept of such, so long.
    sweep_ms: ledgers that nobody refers to any more are looked for that late after there may be one.
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


logger = logging.getLogger(__name__)

CURSOR_LEDGERS = "/cursor-ledgers"


def registry_key(ledger: int) -> str:
    """Who writes a cursor ledger."""
    return f"{CURSOR_LEDGERS}/{ledger:0{ID_DIGITS}d}"


def incarnation_of(owner: str) -> str:
    """The process that an owner of subscriptions belongs to."""
    return owner.partition("/")[0]


def delete_cursor_ledger(cluster: LedgerCluster, ledger: int) -> None:
    """The ledger first, then its key: a crash in between leaves something that a sweep finds. Errors: the store's."""
    with suppress(NoSuchLedgerError):
        cluster.delete_ledger(ledger)
    store, key = cluster.metadata, registry_key(ledger)
    item = store.get(key)
    if item is not None:
        try:
            store.delete(key, item.version)
        except (NoSuchKeyError, VersionConflictError):  # somebody else sweeps too
            return


class Sweep:
    """One look at all of it, in steps that are short. mine: the incarnation of this process. given_up: ledgers of its
    own that it will not name any more, all of them closed."""

    def __init__(self, cluster: LedgerCluster, mine: str, given_up: Set[int]) -> None:
        self._cluster, self._mine, self._given_up = cluster, mine, given_up
        self._store: MetadataStore = cluster.metadata
        self._named: set[int] = set()
        self._owners: set[str] = set()
        self._steps = self._run()
        self.deleted: set[int] = set()
        self.left: set[int] = set()
        """Which ledgers were in question and are still there."""

    def step(self) -> bool:
        """Do a little; False: that was all. Errors: those of the store, and of `open_ledger`."""
        return next(self._steps, None) is not None

    def _run(self) -> Iterator[bool]:
        candidates = self._candidates()
        if not candidates:
            return
        self.left = set(candidates)
        closed = {ledger for ledger in candidates if self._is_closed(ledger)}
        yield from self._look()
        unused = self._unused(candidates)
        yield from self._delete(unused & closed)
        if unused - closed:
            yield from self._close(unused - closed)
            yield from self._look()
            yield from self._delete(self._unused(candidates) & unused - closed)

    def _candidates(self) -> dict[int, str]:
        """Cursor ledgers, and who writes them."""
        writers = {}
        for name in self._store.list(CURSOR_LEDGERS):
            item = self._store.get(f"{CURSOR_LEDGERS}/{name}") if name.isdecimal() else None
            if item is not None:
                writers[int(name)] = item.value.decode(errors="replace")
        return {ledger: who for ledger, who in writers.items() if who != self._mine or ledger in self._given_up}

    def _is_closed(self, ledger: int) -> bool:
        try:
            return self._cluster.ledger_metadata(ledger).state is State.CLOSED
        except NoSuchLedgerError:
            return True
        except InvalidMetadataError:
            return False

    def _look(self) -> Iterator[bool]:
        """At every subscription. What cannot be read may refer to anything: nothing is deleted then."""
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
        return {ledger for ledger, who in candidates.items() if ledger not in self._named and who not in owners}

    def _close(self, ledgers: Set[int]) -> Iterator[bool]:
        """A dead owner's; should it be alive, without a subscription, it opens another."""
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
            logger.info("cursor ledger %d was deleted: nobody refers to it", ledger)
            yield True


CLOSE_S = 2.0
SWEEP_MAX_S = 86_400.0


class CursorLedgers:
    """Of one CursorLog, whose thread makes all calls, and does what it is given by `post`; what blocks is done by the
    threads that all ledgers share.

    incarnation: of this process, see `Sweep`. changed: called when something has ended that blocks.
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
        """How much is under way that blocks."""
        self._lock = threading.Lock()  # of these two
        self._has_ended = False
        self._opened: Ledger | None = None  # on its way to the log's thread
        self._error: BaseException | None = None  # the last one, while nothing has worked since
        self._failures = 0
        self._not_before = 0.0
        self._given_up: set[int] = set()  # ledgers that are a sweep's to delete
        self._sweeping = self._has_swept = False
        self._sweep_s = config.sweep_ms / 1000

    # ---- opening --------------------------------------------------------------------------------------------

    def look(self) -> None:
        """Begin to open a ledger if there is none, or it is full; this one is used meanwhile."""
        home = self.current
        if self.is_opening or self.wait_s > 0 or (home is not None and not self._is_full(home)):
            return
        self.is_opening = True
        self._work(self._open)

    def _work(self, job: Callable[[], Callable[[], None]]) -> None:
        """Have it done by a thread for what blocks; then what it returns, by the log's."""
        self.pending += 1
        self._runtime.work(lambda: self._post(partial(self._worked, job())))

    def _worked(self, then: Callable[[], None]) -> None:
        self.pending -= 1
        then()
        self._changed()

    def _is_full(self, home: CursorLedger) -> bool:
        config = self._config
        return home.handle is not None and (
            home.handle.last_add_pushed + 1 >= config.roll_entries
            or home.nbytes >= config.roll_bytes
            or time.monotonic() - home.began >= config.roll_ms / 1000
        )

    @property
    def wait_s(self) -> float:
        """How long nothing is tried, after a failure."""
        return max(0.0, self._not_before - time.monotonic())

    @property
    def lacks_bookies(self) -> bool:
        """Whether that is why there is no ledger: the metadata store may be there."""
        return not isinstance(self._error, MetadataUnavailableError | OutcomeUnknownError)

    def _open(self) -> Callable[[], None]:
        config = self._config
        try:
            ensemble = config.ensemble or min(max(self._cluster.bookie_count(), 1), COPIES)
            handle = self._cluster.create_ledger(
                ensemble, config.write_quorum, config.ack_quorum, durability=config.durability,
                metadata={"cursors": self._incarnation}, allow_degraded=True,
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
            return partial(self._not_opened, error)
        return partial(self._got, handle)

    def _discard(self, handle: Ledger, timeout: float = CLOSE_S) -> None:
        """Nothing is in it."""
        close_all([handle], self._runtime, timeout)
        try:
            delete_cursor_ledger(self._cluster, handle.id)
        except ReplogError as error:
            logger.warning("cursor ledger %d stays behind, empty: %s", handle.id, error)

    def _got(self, handle: Ledger) -> None:
        former = self.current
        self.is_opening, self._opened = False, None
        self.current = self.known[handle.id] = CursorLedger(handle.id, handle, time.monotonic())
        if former is not None:
            self.retire(former)
        if not self._has_swept:
            self._has_swept = True
            self._sweep_later()

    def _not_opened(self, error: Exception) -> None:
        self.is_opening = False
        if not isinstance(error, ReplogError):
            logger.error("a cursor ledger could not be opened", exc_info=error)
        self._back_off(error)

    def _back_off(self, error: BaseException) -> None:
        if not self._failures:
            logger.warning("cursors have no ledger: %s", error)
        config = self._config
        seconds = min(config.retry_ms * 2 ** min(self._failures, 20), config.retry_max_ms) / 1000
        self._error, self._failures, self._not_before = error, self._failures + 1, time.monotonic() + seconds

    # ---- what becomes of them -------------------------------------------------------------------------------

    def worked(self) -> None:
        """Something was stored in the current one."""
        self._failures, self._error = 0, None

    def failed(self, home: CursorLedger, error: BaseException) -> None:
        """Nothing can be stored there any more. The first time another one is opened at once."""
        if home is self.current:
            if self._failures:
                self._back_off(error)
            else:
                logger.info("cursor ledger %d is left: %s", home.ledger, error)
                self._error, self._failures = error, 1
        if not home.is_retired:
            self.retire(home)

    def retire(self, home: CursorLedger) -> None:
        """Whoever has its state there moves."""
        if home is self.current:
            self.current = None
        home.is_retired = True
        self._work(partial(self._close, home))
        for slot in home.slots:
            slot.dirty()

    def _close(self, home: CursorLedger) -> Callable[[], None]:
        if home.handle is not None:
            _close(home.handle)
        return partial(self._closed, home)

    def _closed(self, home: CursorLedger) -> None:
        home.is_closed = True
        self.drop_if_free(home)

    def end(self, timeout: float = CLOSE_S) -> None:
        """No more is stored, the log's thread has ended: close the current one, delete it if it is empty. Waits for at
        most `timeout` seconds."""
        with self._lock:
            self._has_ended = True
        if self._opened is not None:
            self._discard(self._opened, timeout)
        home, self.current = self.current, None
        if home is None or home.handle is None:
            return
        close_all([home.handle], self._runtime, timeout)
        home.is_retired = home.is_closed = True
        if home.is_free and not home.is_abandoned:
            self._delete(home.ledger)()

    # ---- who lives there ------------------------------------------------------------------------------------

    def settle_in(self, slot: CursorSlot, ledger: int) -> None:
        """A cursor that was just opened has its state there."""
        home = self.known.setdefault(ledger, CursorLedger(ledger))
        self.join(slot, home)
        if home.is_retired and home.handle is not None:
            slot.dirty()

    def join(self, slot: CursorSlot, home: CursorLedger) -> None:
        """A cursor's metadata name this ledger."""
        slot.home = home
        home.slots.add(slot)

    def leave(self, slot: CursorSlot, *, named: bool) -> None:
        """named: its metadata may name the ledger still."""
        home, slot.home = slot.home, None
        if home is not None:
            home.slots.discard(slot)
            home.is_abandoned = home.is_abandoned or named
            self.drop_if_free(home)

    def drop_if_free(self, home: CursorLedger) -> None:
        """Delete a ledger that nobody uses any more, or have it looked for who does."""
        if home.is_done or not home.is_free:
            return
        home.is_done = True
        del self.known[home.ledger]
        if home.is_abandoned:
            self._give_up(home.ledger)
        else:
            self._work(partial(self._delete, home.ledger))

    def _delete(self, ledger: int) -> Callable[[], None]:
        try:
            delete_cursor_ledger(self._cluster, ledger)
        except ReplogError as error:
            logger.warning("cursor ledger %d is deleted later: %s", ledger, error)
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
        """In one of the threads for what blocks, which others need between two steps."""
        try:
            goes_on = sweep.step()
        except ReplogError as error:
            logger.warning("cursor ledgers were not swept: %s", error)
            sweep.left |= self._given_up
            goes_on = False
        if goes_on:
            self._runtime.work(partial(self._step, sweep))
        else:
            self._post(partial(self._swept, sweep))

    def _swept(self, sweep: Sweep) -> None:
        """What others still refer to is looked at again, less and less often."""
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
