"""Cluster: bookies and metadata, in this process or elsewhere; makes and opens ledgers."""

from __future__ import annotations

import logging
import math
import os
import secrets
import ssl
import threading
import time
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any, Self, Unpack

import numpy as np
import numpy.typing as npt

from pyreplog._native.machines.serial_executor import check_may_wait
from pyreplog._native.quorum.quorum import check_quorums
from pyreplog.arguments import as_int, check_bool, check_mapping, check_seconds, check_type
from pyreplog.bookie.config import BookieConfig, BookieSettings
from pyreplog.bookie.identity import cluster_id, count_bookies, known_bookies
from pyreplog.clock import Clock, SystemClock
from pyreplog.errors import (
    ClosedError,
    InvalidArgumentError,
    KeyExistsError,
    NoSuchKeyError,
    NoSuchLedgerError,
    NotEnoughBookiesError,
    OutcomeUnknownError,
    ReplogError,
    UnauthorizedError,
    VersionConflictError,
)
from pyreplog.future import AppendFuture, as_timeout
from pyreplog.handles import Handle
from pyreplog.ledger.closing import close_all
from pyreplog.ledger.driver import Driver, StartingMachine
from pyreplog.ledger.embedded import open_embedded
from pyreplog.ledger.ledger_handle import CLOSE_S, WINDOW_BYTES, Ledger
from pyreplog.ledger.ledger_store import delete_garbled, find_ledger, list_ledgers, load_ledger, next_id, survey
from pyreplog.ledger.ledgermetadata import (
    Fragment,
    LedgerMetadata,
    State,
    key_proof,
    ledger_key,
    metadata_key,
)
from pyreplog.ledger.metrics import client_metrics
from pyreplog.ledger.openledgers import OpenLedgers
from pyreplog.ledger.placement import Candidate, choose
from pyreplog.ledger.protocol.copies import CopyCount
from pyreplog.ledger.protocol.lac import LedgerEnds
from pyreplog.ledger.protocol.recovery import LedgerRecovery
from pyreplog.ledger.protocol.writer import LedgerWriter
from pyreplog.ledger.reader import LedgerReader
from pyreplog.ledger.remote import RemoteRuntime
from pyreplog.ledger.repair import LedgerRepair, LimboQuery
from pyreplog.ledger.repair_notes import RepairNote, lacking_since_us, repairs
from pyreplog.ledger.runtime import RuntimeBase
from pyreplog.ledger.status import ClusterStatus, DegradedLedger, ledger_status
from pyreplog.log.files import Files, opening_told
from pyreplog.log.opening import as_path
from pyreplog.metadata.store import MetadataStore
from pyreplog.metadata.url import open_store
from pyreplog.metrics import Metric
from pyreplog.net.handshake import Secret
from pyreplog.net.limits import Limits, check_connecting
from pyreplog.net.reactor import check_not_patched
from pyreplog.net.sockets import weak_callback

logger = logging.getLogger(__name__)


class LedgerCluster(Handle):
    """Where ledgers live. `LedgerCluster.embedded(...)` or `LedgerCluster.connect(...)` make one; any thread may call
    anything."""

    def __init__(self, what: str, runtime: RuntimeBase, clock: Clock) -> None:
        self._runtime, self._clock = runtime, clock
        self._ledgers = OpenLedgers()
        super().__init__(what)
        runtime.belong_to(self)
        runtime.on_bookies = weak_callback(self._bookies_changed)

    @classmethod
    def embedded(
        cls,
        path: str | os.PathLike[str],
        *,
        bookies: int = 3,
        replace: bool = False,
        older_metadata: bool = False,
        clock: Clock | None = None,
        files: Files | None = None,
        **settings: Unpack[BookieSettings],
    ) -> Self:
        """Bookies of this process, in folders of `path`, with their metadata in SQLite beside them.

        bookies: at least so many; those that the directory has already are opened, whatever this says. replace:
        a bookie whose folder was lost begins anew; else that is an EmptyDirectoryError. older_metadata: go on with
        metadata from a backup, and lose the ledgers that were made since; else that is a StaleMetadataError. files: the
        disk. settings: fields of BookieConfig.

        Errors: LockedError names the process that has the directory; ConfigError; DiskError, no
        descriptor is left, or the disk refuses something; InvalidArgumentError, a name that is too long; those of
        `open_bookie`.
        """
        check_not_patched()
        folder = as_path(path)
        check_bool("replace", replace)
        check_bool("older_metadata", older_metadata)
        clock = clock or SystemClock()
        runtime = open_embedded(
            folder, bookies, BookieConfig.of(settings), clock, replace=replace, older_metadata=older_metadata,
            files=files,
        )  # fmt: skip
        return cls(f"cluster in {path}", runtime, clock)

    @classmethod
    def connect(
        cls,
        url: str,
        *,
        secret: bytes | Secret | None = None,
        tls: ssl.SSLContext | None = None,
        limits: Limits | None = None,
        request_timeout_s: float = 5.0,
        busy_poll_us: int = 0,
        clock: Clock | None = None,
    ) -> Self:
        """Bookies of other processes, which the metadata store at `url` knows: "zk://host:port/root", "sqlite:/path".

        secret: what the bookies were started with. tls: a client's context. limits: of each connection.
        request_timeout_s: after that long without an answer a bookie counts as failed. busy_poll_us: as of Reactor.
        Errors: those of `open_store` and of the store; InvalidArgumentError, a timeout of none or above a day;
        DiskError, no descriptor is left.
        """
        shared = Secret.of(secret)
        check_connecting(tls, limits)
        check_seconds("request_timeout_s", request_timeout_s)
        as_int("busy_poll_us", busy_poll_us)
        metadata = open_store(url)
        try:
            with opening_told(url):
                runtime = RemoteRuntime(
                    metadata, cluster_id(metadata), secret=shared, tls=tls,
                    limits=limits, request_timeout_s=request_timeout_s, busy_poll_us=busy_poll_us,
                )  # fmt: skip
        except BaseException:
            metadata.close()
            raise
        return cls(f"cluster at {url}", runtime, clock or SystemClock())

    # ---- ledgers --------------------------------------------------------------------------------------------

    def create_ledger(
        self,
        ensemble: int = 3,
        write_quorum: int | None = None,
        ack_quorum: int | None = None,
        *,
        durability: str = "synced",
        password: bytes = b"",
        metadata: Mapping[str, str] | None = None,
        window_bytes: int = WINDOW_BYTES,
        delay_ensemble_change: bool = False,
        allow_degraded: bool = False,
    ) -> Ledger:
        """Make a ledger striped over `ensemble` bookies, `write_quorum` copies of each entry (default: all of them), of
        which `ack_quorum` (default: a majority) confirm it.

        durability: "synced", a bookie acknowledges what is on its disk; "appended", what its memory holds. password:
        whoever reads, recovers or writes to it needs it. metadata: kept with the ledger. window_bytes: of entries that
        do not have all their copies yet, as encoded. allow_degraded: if too few bookies take entries, also choose some
        that are away or read-only, as long as every write set has its ack quorum without them: the ledger is degraded
        from its first entry on, until they come back or others take their places.
        Errors: InvalidArgumentError; NotEnoughBookiesError; MetadataUnavailableError, OutcomeUnknownError.
        """
        self._check_open()
        ensemble = as_int("ensemble", ensemble)
        copies = ensemble if write_quorum is None else as_int("write_quorum", write_quorum)
        check_quorums(ensemble, copies, 1)
        acks = copies // 2 + 1 if ack_quorum is None else as_int("ack_quorum", ack_quorum)
        check_quorums(ensemble, copies, acks)
        _check_choices(durability, window_bytes, metadata)
        check_bool("delay_ensemble_change", delay_ensemble_change)
        check_bool("allow_degraded", allow_degraded)
        key = _key(password)
        away_max = copies - acks if allow_degraded else 0
        self._members(0, ensemble, copies, away_max)  # an id is not taken in vain
        ledger = next_id(self._runtime.metadata)
        members = self._members(ledger, ensemble, copies, away_max)
        made = LedgerMetadata(
            ledger=ledger, ensemble_size=ensemble, write_quorum=copies, ack_quorum=acks,
            fragments=(Fragment(0, tuple(members)),), proof=key_proof(key), durability=durability,
            created_us=self._clock.now_us(), token=secrets.token_hex(16), custom=dict(metadata or {}),
        )  # fmt: skip
        writer = LedgerWriter(
            made, self._create(made), key, self._choose, delay_ensemble_change=delay_ensemble_change,
            entry_bytes_max=self._runtime.entry_bytes_max,
        )  # fmt: skip
        opened = Ledger(writer, self._runtime, self._clock, window_bytes=window_bytes)
        self._ledgers.add(opened, self)
        return opened

    def _members(self, ledger: int, ensemble: int, copies: int, away_max: int) -> list[str]:
        """Choose the first ensemble of a ledger. away_max: so many may be bookies that take no entries now."""
        members: list[str | None] = [None] * ensemble

        def fill(candidates: Iterable[Candidate]) -> int:
            """Choose bookies for the places that are left. Returns how many places stay empty."""
            places = [place for place, bookie in enumerate(members) if bookie is None]
            racks = self._runtime.racks()
            chosen = choose(ledger, members, places, candidates, write_quorum=copies, racks=racks)
            for place, bookie in chosen.items():
                members[place] = bookie
            return len(places) - len(chosen)

        missing = fill(self._runtime.candidates())
        missing = missing and fill(self._runtime.candidates(suspects=True))
        if not missing:
            return [bookie for bookie in members if bookie is not None]
        take, left = f"{ensemble - missing} take entries", missing
        if missing <= away_max:
            racks = self._runtime.racks()
            left = fill(Candidate(name, rack=racks.get(name, "")) for name in known_bookies(self._runtime.metadata))
            take += f", and the cluster has {ensemble - left}"
        if left:
            raise NotEnoughBookiesError(f"an ensemble of {ensemble} bookies was asked for, {take}")
        return [bookie for bookie in members if bookie is not None]

    def open_ledger(
        self, ledger: int, *, password: bytes = b"", recover: bool = True, force: bool = False
    ) -> LedgerReader:
        """Open a ledger for reading. recover: end its writer, if it has not closed the ledger, and find the last entry;
        else read up to what is confirmed, beside the writer. Waits while the metadata store is away.

        force: recover also when too many bookies may have lost entries in a power cut (limbo): what they do not have
        counts as never written. Entries that were confirmed may be lost that way.

        Errors: NoSuchLedgerError; UnauthorizedError; UnreadableError and NotEnoughBookiesError, it cannot be recovered
        now; InvalidMetadataError; those of the metadata store.
        """
        self._check_open()
        check_may_wait()
        key = _key(password)
        check_bool("recover", recover)
        check_bool("force", force)
        metadata, version = load_ledger(self._runtime.metadata, as_int("ledger", ledger))
        if not metadata.admits(key):
            raise UnauthorizedError(ledger, "the password is not the one it was made with")
        if recover:
            if metadata.state is not State.CLOSED:
                self._runtime.counts.recover()
            if force and metadata.state is not State.CLOSED:
                logger.warning("ledger %d is recovered by force: entries may be lost", ledger)
            metadata = self._runtime.wait(self.begin_recovery(metadata, version, key, force=force))
        reader = LedgerReader(metadata, key, self._runtime)
        if not recover:
            try:
                reader.refresh()
            except BaseException:
                reader.close()
                raise
        return reader

    def begin_recovery(
        self, metadata: LedgerMetadata, version: int, key: bytes, *, force: bool = False
    ) -> AppendFuture[LedgerMetadata]:
        """The recovery of `open_ledger`, without waiting: the AppendFuture gives the closed ledger's metadata, or
        fails."""
        return self._start(metadata.ledger, LedgerRecovery(metadata, version, key, self._choose, force=force))

    def delete_ledger(self, ledger: int) -> None:
        """Delete a ledger; its space comes back when the bookies collect garbage.

        Errors: NoSuchLedgerError; InvalidMetadataError, see `delete_garbled`.
        """
        self._check_open()
        ledger, store = as_int("ledger", ledger), self._runtime.metadata
        while True:
            try:
                store.delete(metadata_key(ledger), load_ledger(store, ledger).version)
            except VersionConflictError:
                continue
            except NoSuchKeyError:
                raise NoSuchLedgerError(ledger, "was deleted") from None
            return

    def delete_garbled(self, name: str) -> None:
        """Delete a ledger whose metadata cannot be read, or should not be, by the last name of its key or its id.

        Whatever was stored under it is lost. Errors: NoSuchKeyError.
        """
        self._check_open()
        delete_garbled(self._runtime.metadata, name)

    def ledgers(self) -> list[int]:
        """Ids of all ledgers, ascending."""
        self._check_open()
        return list_ledgers(self._runtime.metadata)

    def ledger_metadata(self, ledger: int) -> LedgerMetadata:
        """What is known of a ledger. Errors: NoSuchLedgerError."""
        self._check_open()
        return load_ledger(self._runtime.metadata, as_int("ledger", ledger)).metadata

    # ---- how it is ------------------------------------------------------------------------------------------

    def metrics(self) -> list[Metric]:
        """Numbers for `pyreplog.metrics`: of this client, and of the bookies in this process."""
        self._check_open()
        counts, degraded = self._runtime.counts, len(self._runtime.degraded)
        return [*client_metrics(list(self._ledgers), counts, degraded), *self._runtime.bookie_metrics()]

    def status(self) -> ClusterStatus:
        """Bookies, ledgers, and what lacks copies. Asks the bookies of open ledgers. Errors: those of the store."""
        self._check_open()
        check_may_wait()
        bookies, store = self._runtime.bookie_statuses(), self._runtime.metadata
        running = {bookie.bookie for bookie in bookies}
        found, garbled = survey(store)
        limbo = self._start(0, LimboQuery(running))
        ends = [(metadata, self._ask_ends(metadata)) for metadata in found]  # all are asked before one is waited for
        ledgers = [
            ledger_status(metadata, self._runtime.wait(asked), running, self._lacking(metadata))
            for metadata, asked in ends
        ]
        noted, odd = repairs(store)
        return ClusterStatus(bookies, ledgers, noted, self._runtime.wait(limbo), [*garbled, *odd])

    def _lacking(self, metadata: LedgerMetadata) -> dict[str, int]:
        """Of an open ledger. A closed one lacks what is noted for repair."""
        closed = metadata.state is State.CLOSED
        return {} if closed else lacking_since_us(self._runtime.metadata, metadata.ledger)

    @property
    def degraded(self) -> list[DegradedLedger]:
        """Ledgers that are written here, and go on without a bookie that no other can replace; see docs/ledgers.md."""
        self._check_open()
        return sorted(self._runtime.degraded.copy().values(), key=lambda one: one.ledger)

    def bookie_count(self) -> int:
        """How many bookies the cluster has, whether they run or not. Errors: those of the store."""
        self._check_open()
        return count_bookies(self._runtime.metadata)

    def _ask_ends(self, metadata: LedgerMetadata) -> AppendFuture[tuple[int, int]]:
        """(LAC, highest entry) as some bookie of an open ledger knows them; of a closed one, its last entry."""
        if metadata.state is State.CLOSED:
            known: AppendFuture[tuple[int, int]] = AppendFuture((metadata.last_entry, metadata.last_entry))
            known.complete()
            return known
        return self._start(metadata.ledger, LedgerEnds(metadata))

    def count_copies(self, ledger: int, *, password: bytes = b"") -> npt.NDArray[np.uint8]:
        """How many intact copies each entry of a closed ledger has where its metadata say; reads them all.

        Bookies that do not answer count for none. Errors: InvalidArgumentError, it is not closed; as ledger_metadata;
        UnauthorizedError.
        """
        key, metadata = _key(password), self.ledger_metadata(ledger)
        if metadata.state is not State.CLOSED:
            raise InvalidArgumentError(f"ledger {ledger} is {metadata.state}: its last entry is not known")
        if not metadata.admits(key):
            raise UnauthorizedError(ledger, "the password is not the one it was made with")
        counts: npt.NDArray[np.uint8] = self._run(ledger, CopyCount(metadata, key))
        return counts

    def repair(
        self, ledger: int | None = None, *, password: bytes = b""
    ) -> tuple[list[RepairNote], dict[RepairNote, ReplogError]]:
        """Write copies again; (those that are well now, why others are not).

        ledger: all that this one lacks, which must be closed; each of its copies is read. None: those that were noted
        as bad or missing, and those of closed ledgers that lie on bookies where they are in limbo. password: of the
        ledgers; those with another are left alone. Errors, of `ledger`: InvalidArgumentError, it is not closed;
        NoSuchLedgerError; UnauthorizedError.
        """
        self._check_open()
        check_may_wait()
        repair = LedgerRepair(self._runtime.metadata, _key(password), self._run)
        if ledger is not None:
            repair.repair_ledger(as_int("ledger", ledger))
        else:
            repair.repair_noted()
            repair.repair_limbo(self._run(0, LimboQuery(there.bookie for there in self._runtime.bookie_statuses())))
        return repair.done, repair.left

    def _run(self, ledger: int, machine: StartingMachine) -> Any:
        """Its result."""
        return self._runtime.wait(self._start(ledger, machine))

    def _start(self, ledger: int, machine: StartingMachine) -> AppendFuture[Any]:
        driver = Driver(ledger, machine, self._runtime)
        driver.post(machine.start)
        return driver.done

    # ---- metadata -------------------------------------------------------------------------------------------

    @property
    def metadata(self) -> MetadataStore:
        """The store that ledgers, bookies and repairs are kept in."""
        return self._runtime.metadata

    @property
    def open_ledgers(self) -> list[Ledger]:
        """Handles of ledgers that are open for appending here."""
        return list(self._ledgers)

    @property
    def runtime(self) -> RuntimeBase:
        """What is built on ledgers shares with them: timers, threads for what blocks."""
        return self._runtime

    def _create(self, made: LedgerMetadata) -> int:
        """Store a new ledger; when the reply was lost, its token tells whether it is there."""
        store = self._runtime.metadata
        try:
            return store.create(metadata_key(made.ledger), made.encode())
        except (KeyExistsError, OutcomeUnknownError):
            there = find_ledger(store, made.ledger)
            if there is None or there.metadata.token != made.token:
                raise
            return there.version

    def _choose(
        self, metadata: LedgerMetadata, places: Sequence[int], taken: Set[str], last_resort: bool
    ) -> dict[int, str]:
        """Choose bookies for places of the last fragment, see `protocol.writer.Choose`."""
        ensemble, racks = metadata.last_fragment.ensemble, self._runtime.racks()
        members: list[str | None] = [None if place in places else bookie for place, bookie in enumerate(ensemble)]
        chosen: dict[int, str] = {}
        for suspects in (False, True) if last_resort else (False,):
            more = choose(
                metadata.ledger, members, places[len(chosen) :], self._runtime.candidates(suspects=suspects),
                write_quorum=metadata.write_quorum, racks=racks, taken=taken, turn=len(metadata.fragments) + len(taken),
            )  # fmt: skip
            for place, bookie in more.items():
                members[place] = chosen[place] = bookie
        if chosen and not set(chosen.values()) & set(ensemble):  # else one takes up its own place again
            self._runtime.counts.change_ensemble()
        return chosen

    def _bookies_changed(self) -> None:
        """Some came, went, or say something else of themselves."""
        for ledger in self._ledgers:
            ledger.reconsider()

    # ---- the end --------------------------------------------------------------------------------------------

    def close(self, timeout: float | None = CLOSE_S) -> None:
        """Close the ledgers that are open for appending, all at once, as their own `close(timeout)` does, and let go of
        all, within `timeout` seconds (None: however long it takes): what has no outcome shortly before is given up,
        what waits for the metadata store then is left undone.

        Whoever waits for something of this cluster gets ClosedError. What the ledgers' closing raises is logged.
        Closing twice is fine. Errors: InvalidArgumentError, in a callback.
        """
        check_may_wait()
        self._close_s = as_timeout(timeout)
        super().close()

    def _let_go(self) -> None:
        timeout = self._close_s
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        self._runtime.end_calls_by(deadline)
        try:
            close_all(list(self._ledgers), self._runtime, timeout)
        finally:
            self._runtime.close(None if timeout is None else max(deadline - time.monotonic(), 0.0))

    def _close_forgotten(self) -> None:
        """A thread of its own does what waits for others."""
        threading.Thread(target=self._end_forgotten, name="pyreplog-close", daemon=True).start()

    def _end_forgotten(self) -> None:
        """Its ledgers stay open: who opens them next finds their end."""
        self._error = ClosedError(f"the {self._what} was forgotten")
        self._runtime.close()


def _key(password: bytes) -> bytes:
    return ledger_key(check_type("password", password, bytes, "bytes"))


def _check_choices(durability: str, window_bytes: int, metadata: Mapping[str, str] | None) -> None:
    if durability not in ("synced", "appended"):
        raise InvalidArgumentError(f"durability: expected synced or appended, found {durability!r}")
    if isinstance(window_bytes, bool) or not isinstance(window_bytes, int) or window_bytes < 1:
        raise InvalidArgumentError(f"window_bytes: expected at least 1, found {window_bytes!r}")
    if metadata is None:
        return
    check_mapping("metadata", metadata)
    for name, value in metadata.items():
        if any("\ud800" <= letter <= "\udfff" for letter in name + value):
            raise InvalidArgumentError(f"metadata: half of a surrogate pair is no text, found {name!r}: {value!r}")
