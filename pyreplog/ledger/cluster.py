"""LedgerCluster: bookies and a metadata store, in this process or elsewhere; creates and opens ledgers."""

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
from pyreplog.arguments import as_int, check_bool, check_mapping, check_type
from pyreplog.bookie.config import BookieConfig, BookieSettings
from pyreplog.bookie.identity import count_bookies, known_bookies
from pyreplog.clock import Clock, SystemClock
from pyreplog.coroutines import check_may_block, in_thread, opening
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
from pyreplog.future import AppendFuture, as_timeout, set_result
from pyreplog.handles import Handle
from pyreplog.ledger.closing import close_all
from pyreplog.ledger.driver import StartingMachine, run_machine
from pyreplog.ledger.embedded import open_embedded
from pyreplog.ledger.ledger_handle import CLOSE_S, WINDOW_BYTES, Ledger
from pyreplog.ledger.ledger_metadata import (
    Fragment,
    LedgerMetadata,
    State,
    key_proof,
    ledger_key,
    metadata_key,
)
from pyreplog.ledger.ledger_store import (
    delete_garbled,
    find_ledger,
    list_ledgers,
    load_ledger,
    next_id,
    remove_empty_shard,
    survey,
)
from pyreplog.ledger.metrics import client_metrics
from pyreplog.ledger.open_ledger_set import OpenLedgers
from pyreplog.ledger.placement import Candidate, choose
from pyreplog.ledger.protocol.copies import CopyCount
from pyreplog.ledger.protocol.lac import LedgerEnds
from pyreplog.ledger.protocol.recovery import LedgerRecovery
from pyreplog.ledger.protocol.writer import LedgerWriter
from pyreplog.ledger.reader import LedgerReader
from pyreplog.ledger.remote_runtime import RemoteRuntime
from pyreplog.ledger.repair import LedgerRepair, LimboQuery
from pyreplog.ledger.repair_notes import RepairNote, lacking_since_us, repairs
from pyreplog.ledger.replacement_pacing import MemberReplacement
from pyreplog.ledger.runtime import RuntimeBase
from pyreplog.ledger.status import ClusterStatus, DegradedLedger, ledger_status
from pyreplog.ledger.writer_keys import WriterKeys
from pyreplog.log.files import Files, translate_open_errors
from pyreplog.log.opening import as_path
from pyreplog.metadata.layout import cluster_id
from pyreplog.metadata.store import MetadataStore
from pyreplog.metadata.url import open_store
from pyreplog.metrics import Metric
from pyreplog.net.handshake import Secret
from pyreplog.net.limits import Limits, check_connecting
from pyreplog.net.reactor import check_not_patched
from pyreplog.net.sockets import weak_callback

logger = logging.getLogger(__name__)


class LedgerCluster(Handle):
    """A set of bookies and a metadata store that hold ledgers; made by `embedded` or `connect`.

    `pyreplog.Cluster` is this class with topics. Any thread may use it. Close it, or use `with`.

    Example:
        ```python
        with LedgerCluster.embedded("data/cluster", bookies=3) as cluster:
            with cluster.create_ledger() as ledger:
                ledger.append(b"order 1")
            with cluster.open_ledger(ledger.id) as reader:
                print(reader[0])
        ```

    See docs/ledgers.md.
    """

    def __init__(self, what: str, runtime: RuntimeBase, clock: Clock) -> None:
        self._runtime, self._clock = runtime, clock
        self._ledgers = OpenLedgers()
        self._replacement = MemberReplacement(self._ledgers, runtime)
        self._writer_keys = WriterKeys(runtime, self)
        super().__init__(what)
        runtime.belong_to(self)
        runtime.on_bookies = weak_callback(self._bookies_changed)
        runtime.before_store_closes = self._writer_keys.close

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
        """Open a cluster whose bookies run in this process, with their metadata in SQLite.

        Each bookie has a folder in the directory; a new directory is made.

        Args:
            path: directory of the cluster.
            bookies: number of bookies, 1 to 1000; missing ones are made. Bookies that the directory has are all opened.
            replace: let a bookie whose folder was lost start anew, without its entries.
            older_metadata: go on with metadata from a backup, and lose the ledgers that were created since.
            clock: source of time; None: the clock of the machine.
            files: access to the disk; None: the real one. For tests.
            settings: fields of `BookieConfig` as keywords.

        Returns:
            The open cluster.

        Raises:
            LockedError: another process has the directory open; the message names it.
            ConfigError: a setting is unknown or outside its bounds.
            InvalidArgumentError: `bookies` is out of range, or a path is too long.
            EmptyDirectoryError: the folder of a bookie was lost, and `replace` is False.
            StaleMetadataError: the metadata are older than the bookies, and `older_metadata` is False.
            DiskError: no file descriptor is left, or the disk refuses a call.
            IdentityError: the folder of a bookie does not belong to this cluster; see docs/troubleshooting.md.
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
        request_timeout_ms: int = 5_000,
        busy_poll_us: int = 0,
        clock: Clock | None = None,
    ) -> Self:
        """Connect to a cluster whose bookies run in other processes.

        Args:
            url: metadata store that knows the bookies: "zk://host:port/root" or "sqlite:/path".
            secret: secret that the bookies were started with; None: no authentication.
            tls: TLS context of a client; None: no TLS.
            limits: limits of each connection; None: the defaults.
            request_timeout_ms: milliseconds without an answer after which a bookie counts as failed; 1 to 86,400,000.
            busy_poll_us: microseconds that a waiting thread polls its connections before it sleeps.
            clock: source of time; None: the clock of the machine.

        Returns:
            The open cluster. Bookies are connected to when they are first needed.

        Raises:
            InvalidArgumentError: the URL is malformed, or the timeout is out of range.
            MetadataUnavailableError: the metadata store cannot be reached or read.
            DiskError: no file descriptor is left.
        """
        shared = Secret.of(secret)
        check_connecting(tls, limits)
        as_int("request_timeout_ms", request_timeout_ms)
        as_int("busy_poll_us", busy_poll_us)
        metadata = open_store(url)
        try:
            with translate_open_errors(url):
                runtime = RemoteRuntime(
                    metadata, cluster_id(metadata), secret=shared, tls=tls,
                    limits=limits, request_timeout_ms=request_timeout_ms, busy_poll_us=busy_poll_us,
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
        properties: Mapping[str, str] | None = None,
        window_bytes: int = WINDOW_BYTES,
        delay_ensemble_change: bool = False,
        allow_degraded: bool = False,
    ) -> Ledger:
        """Create a ledger and open it for appending.

        Args:
            ensemble: number of bookies over which the entries are striped.
            write_quorum: number of copies of each entry; None: one on each bookie of the ensemble.
            ack_quorum: number of copies that confirm an entry; None: a majority of `write_quorum`.
            durability: "synced": a bookie acknowledges an entry when it is on its disk; "appended": when it is in
                memory.
            password: password that is needed to read, recover or write the ledger.
            properties: names and values that are kept with the ledger; see `Ledger.properties`. BookKeeper calls them
                custom metadata.
            window_bytes: encoded bytes of entries that may lack copies before `append` waits.
            delay_ensemble_change: keep the place of a failed bookie while entries reach their ack quorum without it.
            allow_degraded: if too few bookies take entries, also choose some that are away or read-only, as long as
                every write set has its ack quorum without them. The ledger is then degraded from its first entry on.

        Returns:
            The open `Ledger`.

        Raises:
            InvalidArgumentError: an argument is out of range.
            NotEnoughBookiesError: too few bookies take entries.
            MetadataUnavailableError: the metadata store does not answer.
            OutcomeUnknownError: the metadata store may have created the ledger; it stays empty.
            ClosedError: the cluster was closed.
        """
        check_may_block("create_ledger")
        self._check_open()
        ensemble = as_int("ensemble", ensemble)
        copies = ensemble if write_quorum is None else as_int("write_quorum", write_quorum)
        check_quorums(ensemble, copies, 1)
        acks = copies // 2 + 1 if ack_quorum is None else as_int("ack_quorum", ack_quorum)
        check_quorums(ensemble, copies, acks)
        _check_choices(durability, window_bytes, properties)
        check_bool("delay_ensemble_change", delay_ensemble_change)
        check_bool("allow_degraded", allow_degraded)
        key = _key(password)
        away_max = copies - acks if allow_degraded else 0
        self._members(0, ensemble, copies, away_max)  # fails before a ledger id is taken
        ledger = next_id(self._runtime.metadata)
        members = self._members(ledger, ensemble, copies, away_max)
        created = LedgerMetadata(
            ledger=ledger, ensemble_size=ensemble, write_quorum=copies, ack_quorum=acks,
            fragments=(Fragment(0, tuple(members)),), proof=key_proof(key), durability=durability,
            created_us=self._clock.now_us(), token=secrets.token_hex(16), custom=dict(properties or {}),
        )  # fmt: skip
        writer = LedgerWriter(
            created, self._create(created), key, self._choose, delay_ensemble_change=delay_ensemble_change,
            entry_bytes_max=self._runtime.entry_bytes_max,
        )  # fmt: skip
        keys = self._writer_keys
        handle = Ledger(writer, self._runtime, self._clock, window_bytes=window_bytes, on_end=keys.release)
        keys.hold(ledger)
        self._ledgers.add(handle, self)
        if not set(members).isdisjoint(self._runtime.leaving_bookies()):  # they left since they were chosen
            self._replacement.begin()
        return handle

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
        take, left = f"{ensemble - missing} that take entries", missing
        if missing <= away_max:
            racks = self._runtime.racks()
            leaving = set(self._runtime.leaving_bookies())
            known = [name for name in known_bookies(self._runtime.metadata) if name not in leaving]
            left = fill(Candidate(name, rack=racks.get(name, "")) for name in known)
            take += f", and the cluster has {ensemble - left}"
        if left:
            raise NotEnoughBookiesError(
                f"expected {ensemble} bookies for the ensemble, found {take}: start or add bookies"
            )
        return [bookie for bookie in members if bookie is not None]

    def open_ledger(
        self, ledger: int, *, password: bytes = b"", recover: bool = True, force: bool = False
    ) -> LedgerReader:
        """Open a ledger for reading, and recover it if its writer has not closed it.

        Recovery ends the writer, finds the last entry and closes the ledger. It waits while the metadata store is away.

        Args:
            ledger: number of the ledger.
            password: password of the ledger.
            recover: recover an open ledger. False: read beside its writer, up to the last confirmed entry.
            force: recover also when too many bookies may have lost entries in a power cut (limbo), and when no bookie
                has the last entry any more. Entries that bookies in limbo lack count as never written, so confirmed
                entries may be lost; the length of the ledger counts up to the last entry that can be read.

        Returns:
            A `LedgerReader`.

        Raises:
            NoSuchLedgerError: the ledger does not exist.
            UnauthorizedError: the password is wrong.
            UnreadableError: too few bookies answer for a recovery.
            NotEnoughBookiesError: too few bookies take the copies that a recovery writes.
            InvalidMetadataError: the metadata of the ledger are damaged.
            MetadataUnavailableError: the metadata store does not answer.
            ClosedError: the cluster was closed.
        """
        check_may_block("open_ledger")
        self._check_open()
        key = _key(password)
        check_bool("recover", recover)
        check_bool("force", force)
        metadata, version = load_ledger(self._runtime.metadata, as_int("ledger", ledger))
        if not metadata.admits(key):
            raise UnauthorizedError(ledger, "the password differs from the one of create_ledger")
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
        """Begin the recovery of `open_ledger` without waiting.

        Args:
            metadata: metadata of the ledger.
            version: version of the metadata in the store.
            key: key of the ledger, derived from its password.
            force: as `open_ledger`.

        Returns:
            An AppendFuture that gives the metadata of the closed ledger, or fails as `open_ledger` does.
        """
        machine = LedgerRecovery(metadata, version, key, self._choose, force=force)
        return run_machine(metadata.ledger, machine, self._runtime)

    def delete_ledger(self, ledger: int) -> None:
        """Delete a ledger; the bookies free its space when they collect garbage.

        Args:
            ledger: number of the ledger.

        Raises:
            NoSuchLedgerError: the ledger does not exist.
            InvalidMetadataError: the metadata of the ledger are damaged; `delete_garbled` deletes it.
            MetadataUnavailableError: the metadata store does not answer.
            ClosedError: the cluster was closed.
        """
        check_may_block("delete_ledger")
        self._check_open()
        ledger, store = as_int("ledger", ledger), self._runtime.metadata
        while True:
            try:
                store.delete(metadata_key(ledger), load_ledger(store, ledger).version)
            except VersionConflictError:
                continue
            except NoSuchKeyError:
                raise NoSuchLedgerError(ledger, "was deleted") from None
            return remove_empty_shard(store, ledger)

    def delete_garbled(self, name: str) -> None:
        """Delete a ledger whose metadata cannot be read. Its entries are lost.

        Args:
            name: number of the ledger, or the last part of its key in the metadata store; see `ClusterStatus.garbled`.

        Raises:
            NoSuchKeyError: there is no such key.
            WrongTypeError: `name` is no str.
            MetadataUnavailableError: the metadata store does not answer.
            ClosedError: the cluster was closed.
        """
        check_may_block("delete_garbled")
        self._check_open()
        delete_garbled(self._runtime.metadata, name)

    def ledgers(self) -> list[int]:
        """List the numbers of all ledgers, ascending.

        Raises:
            MetadataUnavailableError: the metadata store does not answer.
            ClosedError: the cluster was closed.
        """
        check_may_block("ledgers")
        self._check_open()
        return list_ledgers(self._runtime.metadata)

    def ledger_metadata(self, ledger: int) -> LedgerMetadata:
        """Load the metadata of a ledger: quorums, fragments, state.

        Args:
            ledger: number of the ledger.

        Raises:
            NoSuchLedgerError: the ledger does not exist.
            InvalidMetadataError: the metadata are damaged.
            MetadataUnavailableError: the metadata store does not answer.
            ClosedError: the cluster was closed.
        """
        check_may_block("ledger_metadata")
        self._check_open()
        return load_ledger(self._runtime.metadata, as_int("ledger", ledger)).metadata

    # ---- status ---------------------------------------------------------------------------------------------

    def metrics(self) -> list[Metric]:
        """Return the metrics of this client and of the bookies in this process, for `pyreplog.metrics`.

        Raises:
            ClosedError: the cluster was closed.
        """
        self._check_open()
        counts, degraded = self._runtime.counts, len(self._runtime.degraded)
        return [*client_metrics(list(self._ledgers), counts, degraded), *self._runtime.bookie_metrics()]

    def status(self) -> ClusterStatus:
        """Report on bookies, ledgers and missing copies; asks the bookies of open ledgers, and waits for them.

        Returns:
            A `ClusterStatus`.

        Raises:
            MetadataUnavailableError: the metadata store does not answer.
            ClosedError: the cluster was closed.
        """
        check_may_block("status")
        self._check_open()
        bookies, store = self._runtime.bookie_statuses(), self._runtime.metadata
        running = {bookie.bookie for bookie in bookies}
        intact, garbled = survey(store)
        limbo = run_machine(0, LimboQuery(running), self._runtime)
        ends = [(metadata, self._ask_ends(metadata)) for metadata in intact]  # ask for all before the first wait
        ledgers = [
            ledger_status(metadata, self._runtime.wait(future), running, self._lacking(metadata))
            for metadata, future in ends
        ]
        noted, garbled_notes = repairs(store)
        absent = self._runtime.absent_bookies()
        return ClusterStatus(bookies, ledgers, noted, self._runtime.wait(limbo), [*garbled, *garbled_notes], absent)

    def limbo(self) -> list[tuple[int, str]]:
        """Ask the bookies that run which ledgers they have in limbo.

        Returns:
            Pairs of a ledger and a bookie that may have lost entries of it; bookies that do not answer are left out.

        Raises:
            ClosedError: the cluster was closed.
        """
        check_may_block("limbo")
        self._check_open()
        asked = LimboQuery(status.bookie for status in self._runtime.bookie_statuses())
        in_limbo: list[tuple[int, str]] = self._run(0, asked)
        return in_limbo

    def _lacking(self, metadata: LedgerMetadata) -> dict[str, int]:
        """Return the bookies that the writer of an open ledger goes on without.

        Copies that a closed ledger lacks are in the repair notes.
        """
        closed = metadata.state is State.CLOSED
        return {} if closed else lacking_since_us(self._runtime.metadata, metadata.ledger)

    @property
    def degraded(self) -> list[DegradedLedger]:
        """Ledgers of this client that go on without a failed bookie that no other can replace; see docs/ledgers.md."""
        self._check_open()
        return sorted(self._runtime.degraded.copy().values(), key=lambda degraded: degraded.ledger)

    def bookie_count(self) -> int:
        """Count the bookies of the cluster, running or not.

        Raises:
            MetadataUnavailableError: the metadata store does not answer.
            ClosedError: the cluster was closed.
        """
        check_may_block("bookie_count")
        self._check_open()
        return count_bookies(self._runtime.metadata)

    def _ask_ends(self, metadata: LedgerMetadata) -> AppendFuture[tuple[int, int]]:
        """Ask the bookies of an open ledger for its (LAC, highest entry); of a closed ledger, both are the last
        entry."""
        if metadata.state is State.CLOSED:
            ends: AppendFuture[tuple[int, int]] = AppendFuture((metadata.last_entry, metadata.last_entry))
            set_result(ends)
            return ends
        return run_machine(metadata.ledger, LedgerEnds(metadata), self._runtime)

    def count_copies(self, ledger: int, *, password: bytes = b"") -> npt.NDArray[np.uint8]:
        """Count the intact copies of each entry of a closed ledger; reads every copy.

        A bookie that does not answer counts for none.

        Args:
            ledger: number of the ledger.
            password: password of the ledger.

        Returns:
            An array of one uint8 per entry: the number of copies on the bookies that the metadata name.

        Raises:
            InvalidArgumentError: the ledger is not closed, or has too many entries.
            UnauthorizedError: the password is wrong.
            NoSuchLedgerError: the ledger does not exist.
            MetadataUnavailableError: the metadata store does not answer.
            ClosedError: the cluster was closed.
        """
        check_may_block("count_copies")
        key, metadata = _key(password), self.ledger_metadata(ledger)
        if metadata.state is not State.CLOSED:
            raise InvalidArgumentError(
                f"ledger {ledger} is {metadata.state}, not closed; open_ledger() recovers and closes it"
            )
        if not metadata.admits(key):
            raise UnauthorizedError(ledger, "the password differs from the one of create_ledger")
        counts: npt.NDArray[np.uint8] = self._run(ledger, CopyCount(metadata, key))
        return counts

    def repair(
        self, ledger: int | None = None, *, password: bytes = b""
    ) -> tuple[list[RepairNote], dict[RepairNote, ReplogError]]:
        """Write missing and damaged copies again.

        Args:
            ledger: number of a closed ledger; each of its copies is read. None: repair the copies that are noted, and
                those of closed ledgers on bookies that have them in limbo.
            password: password of the ledgers; ledgers with another one are not repaired.

        Returns:
            The copies that were repaired, and the errors of the others.

        Raises:
            InvalidArgumentError: `ledger` is not closed.
            NoSuchLedgerError: `ledger` does not exist.
            UnauthorizedError: the password of `ledger` is wrong.
            MetadataUnavailableError: the metadata store does not answer.
            ClosedError: the cluster was closed.
        """
        check_may_block("repair")
        self._check_open()
        repair = LedgerRepair(self._runtime.metadata, _key(password), self._run)
        if ledger is not None:
            repair.repair_ledger(as_int("ledger", ledger))
        else:
            repair.repair_noted()
            repair.repair_limbo(self._run(0, LimboQuery(status.bookie for status in self._runtime.bookie_statuses())))
        return repair.done, repair.left

    def _run(self, ledger: int, machine: StartingMachine) -> Any:
        """Run a state machine and wait for its result."""
        return self._runtime.wait(run_machine(ledger, machine, self._runtime))

    # ---- for coroutines -------------------------------------------------------------------------------------

    create_ledger_async = opening(create_ledger)
    open_ledger_async = opening(open_ledger)
    delete_ledger_async = in_thread(delete_ledger)
    delete_garbled_async = in_thread(delete_garbled)
    ledgers_async = in_thread(ledgers)
    ledger_metadata_async = in_thread(ledger_metadata)
    status_async = in_thread(status)
    limbo_async = in_thread(limbo)
    bookie_count_async = in_thread(bookie_count)
    count_copies_async = in_thread(count_copies)
    repair_async = in_thread(repair)

    # ---- metadata -------------------------------------------------------------------------------------------

    @property
    def metadata(self) -> MetadataStore:
        """The metadata store of the cluster. The cluster closes it."""
        return self._runtime.metadata

    @property
    def open_ledgers(self) -> list[Ledger]:
        """Handles of ledgers that are open for appending here."""
        return list(self._ledgers)

    @property
    def runtime(self) -> RuntimeBase:
        """Timers and worker threads of the cluster, for modules that are built on ledgers."""
        return self._runtime

    def _create(self, created: LedgerMetadata) -> int:
        """Store a new ledger. When the reply was lost, the token tells whether the ledger was stored."""
        store = self._runtime.metadata
        try:
            return store.create(metadata_key(created.ledger), created.encode())
        except (KeyExistsError, OutcomeUnknownError):
            stored = find_ledger(store, created.ledger)
            if stored is None or stored.metadata.token != created.token:
                raise
            return stored.version

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
        own = {place: ensemble[place] for place in places[len(chosen) :] if ensemble[place] not in taken}
        draining = self._runtime.draining() if own else set()
        chosen.update((place, bookie) for place, bookie in own.items() if bookie in draining)
        if chosen and not set(chosen.values()) & set(ensemble):  # otherwise a failed bookie takes its own place again
            self._runtime.counts.change_ensemble()
        return chosen

    def _bookies_changed(self) -> None:
        """Let the open ledgers look for replacements after registrations or states of bookies changed."""
        for ledger in self._ledgers:
            ledger.reconsider()
        self._replacement.begin()

    # ---- the end --------------------------------------------------------------------------------------------

    def close(self, timeout: float | None = CLOSE_S) -> None:
        """Close the ledgers that are open for appending, all at once, and release all resources.

        Shortly before the time is over, ledgers without an outcome are closed at their last confirmed entry. A ledger
        that still waits for the metadata store stays open. Threads that wait for this cluster get ClosedError. Errors
        of single ledgers are logged. A second call does nothing.

        Args:
            timeout: seconds for all of it; None: as long as it takes.

        Raises:
            InvalidArgumentError: the call is in a callback of an AppendFuture.
        """
        check_may_wait()
        self._close_s = as_timeout(timeout)
        super().close()

    def _do_close(self) -> None:
        timeout = self._close_s
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        self._writer_keys.stop()
        self._runtime.end_calls_by(deadline)
        try:
            close_all(list(self._ledgers), self._runtime, timeout)
        finally:
            try:
                self._runtime.close(None if timeout is None else max(deadline - time.monotonic(), 0.0))
            finally:
                self._writer_keys.close()

    def _close_forgotten(self) -> None:
        """Close the cluster on a new thread, because closing waits for other threads."""
        threading.Thread(target=self._end_forgotten, name="pyreplog-close", daemon=True).start()

    def _end_forgotten(self) -> None:
        """Release the resources. Ledgers stay open; the next `open_ledger` recovers them."""
        self._error = ClosedError(f"the {self._label} was garbage-collected before it was closed")
        self._writer_keys.stop()
        self._runtime.close()
        self._writer_keys.close()


def _key(password: bytes) -> bytes:
    return ledger_key(check_type("password", password, bytes, "bytes"))


def _check_choices(durability: str, window_bytes: int, properties: Mapping[str, str] | None) -> None:
    if durability not in ("synced", "appended"):
        raise InvalidArgumentError(f"durability: expected synced or appended, found {durability!r}")
    if isinstance(window_bytes, bool) or not isinstance(window_bytes, int) or window_bytes < 1:
        raise InvalidArgumentError(f"window_bytes: expected at least 1, found {window_bytes!r}")
    if properties is None:
        return
    check_mapping("properties", properties)
    for name, value in properties.items():
        if any("\ud800" <= letter <= "\udfff" for letter in name + value):
            raise InvalidArgumentError(f"properties: expected text without lone surrogates, found {name!r}: {value!r}")
