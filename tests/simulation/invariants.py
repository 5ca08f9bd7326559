"""What must hold, by the names of the TLA+ specification of BookKeeper where it has one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyreplog._native.log.batch import RecordBatch
from pyreplog._native.quorum.quorum import write_set
from pyreplog.ledger.ledger_metadata import LedgerMetadata, State
from pyreplog.ledger.protocol.effects import Finished
from pyreplog.ledger.protocol.ledger_read_op import LedgerReadOp
from pyreplog.ledger.protocol.writer import LedgerWriter

from .clients import value_of

if TYPE_CHECKING:
    from .schedule import Schedule

_ORDER = [State.OPEN, State.IN_RECOVERY, State.CLOSED]


class BrokenInvariantError(AssertionError):
    """`name` does not hold."""

    def __init__(self, name: str, subject: str) -> None:
        super().__init__(f"{name}: {subject}")


def demand(holds: bool, name: str, subject: str) -> None:
    if not holds:
        raise BrokenInvariantError(name, subject)


class Invariants:
    """Checked whenever something that they speak of happens."""

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self.acked = -1  # the last entry that was
        self._lac = -1  # of the writer
        self.closed_well = False
        self._released = 0

    # ---- acks and LACs --------------------------------------------------------------------------------------

    def settled(self, last: int, error: BaseException | None) -> None:
        if error is not None:
            return
        metadata = self._schedule.store.metadata
        demand(last > self.acked, "NoOutOfOrderEntries", f"entry {last} was acknowledged after {self.acked}")
        demand(last <= self._lac, "NoOutOfOrderEntries", f"entry {last} was acknowledged, the LAC is {self._lac}")
        if metadata.state is State.CLOSED:
            demand(
                last <= metadata.last_entry,
                "NoDivergenceBetweenClientAndMetaData",
                f"entry {last} was acknowledged, the ledger is closed at {metadata.last_entry}",
            )
        first, self.acked = self.acked + 1, last
        self._readable(metadata, first, last, "AllAckedEntriesAreReadable")

    def confirmed(self, lac: int) -> None:
        demand(lac >= self._lac, "LacIsMonotone", f"it went from {self._lac} to {lac}")
        self._lac = lac

    def lac_seen(self, lac: int) -> None:
        demand(lac <= self._lac, "LacIsConfirmed", f"a bookie says {lac}, the writer's LAC is {self._lac}")

    def lac_read(self, before: int, lac: int) -> None:
        demand(before <= lac, "LacIsMonotone", f"a reader's went from {before} to {lac}")
        metadata = self._schedule.store.metadata
        limit = metadata.last_entry if metadata.state is State.CLOSED else self._lac
        demand(lac <= limit, "LacIsConfirmed", f"a reader's is {lac}, the last entry confirmed {limit}")

    # ---- copies ---------------------------------------------------------------------------------------------

    def _readable(self, metadata: LedgerMetadata, first: int, last: int, name: str) -> None:
        """As many copies as the ack quorum, on bookies that the metadata assign the entry to."""
        self._have_copies(metadata, first, last, metadata.ack_quorum, name)

    def let_go(self, machine: LedgerWriter) -> None:
        """Who keeps an entry no longer knows that it has all its copies, or has noted durably who lacks it."""
        store, nodes = self._schedule.store, self._schedule.nodes.by_name
        metadata, released = machine.metadata, machine._push.tracker.released
        for entry in range(self._released, released):
            if self._is_excused(entry):
                continue
            ensemble = metadata.fragment_of(entry).ensemble
            for i in write_set(entry, metadata.ensemble_size, metadata.write_quorum):
                node = nodes[ensemble[i]]
                fine = node.log.holds(metadata.ledger, entry) or node.has_lost or store.is_noted(metadata, node.name)
                demand(fine, "WhatIsLetGoOfHasItsCopiesOrIsNoted", f"entry {entry} is not on {node.name}")
        self._released = max(self._released, released)

    def all_appended(self, machine: LedgerWriter, entries: int) -> None:
        """With an ack quorum of every write set alive all the time, every append completes, and the ledger is closed."""
        metadata = self._schedule.store.metadata
        fine = metadata.state is State.CLOSED and metadata.last_entry == self.acked == entries - 1
        demand(fine, "Progress", f"{self.acked + 1} of {entries} are acknowledged, {metadata.state}: {machine.error}")

    def _is_excused(self, entry: int) -> bool:
        """Whether an entry needs no copies now."""
        return False

    def _have_copies(
        self, metadata: LedgerMetadata, first: int, last: int, copies: int, name: str, *, or_noted: bool = False
    ) -> None:
        """Bookies that lost their data, of which there are fewer than the ack quorum, may lack an entry. or_noted: those
        may that were noted for repair."""
        store = self._schedule.store
        nodes, ledger = self._schedule.nodes.by_name, metadata.ledger
        for entry in range(first, last + 1):
            if self._is_excused(entry):
                continue
            ensemble = metadata.fragment_of(entry).ensemble
            where = [ensemble[i] for i in write_set(entry, metadata.ensemble_size, metadata.write_quorum)]
            good = [bookie for bookie in where if nodes[bookie].log.holds(ledger, entry)]
            lacking = [bookie for bookie in where if bookie not in good]
            lossy = sum(nodes[item].has_lost or (or_noted and store.is_noted(metadata, item)) for item in lacking)
            enough = len(good) + lossy >= copies and bool(good)
            demand(enough, name, f"entry {entry} is on {good} of {where}, expected {copies} copies")

    # ---- metadata -------------------------------------------------------------------------------------------

    def metadata_changed(self, before: LedgerMetadata, after: LedgerMetadata) -> None:
        name = "NoDivergenceBetweenClientAndMetaData"
        steps = _ORDER.index(after.state) - _ORDER.index(before.state)
        closed = before.state is State.CLOSED
        demand(not closed or _end(before) == _end(after), name, f"the end moved from {_end(before)} to {_end(after)}")
        demand(steps >= 0, name, f"it went from {before.state} to {after.state}")
        demand(
            after.state is State.CLOSED or after.last_fragment.first <= self._lac + 1,
            "FragmentsBeginAtMostBehindTheLac",
            f"the last begins at {after.last_fragment.first}, the LAC is {self._lac}",
        )
        if after.state is not State.CLOSED:
            self._readable(after, 0, self.acked, "AllAckedEntriesAreReadable")
            return
        demand(
            after.last_entry >= self.acked, name, f"{self.acked} was acknowledged, it is closed at {after.last_entry}"
        )
        self._readable(after, 0, after.last_entry, "AllCommittedEntriesReachAckQuorum")
        length = sum(len(value_of(entry)) for entry in range(after.last_entry + 1))
        demand(
            (after.length, after.messages) == (length, after.last_entry + 1),
            name,
            f"{after.length} bytes and {after.messages} messages, expected {length} and {after.last_entry + 1}",
        )
        if before.state is not State.CLOSED:
            self._lacks_are_noted(after)

    def writer_ended(self, end: Finished, machine: LedgerWriter) -> None:
        metadata = self._schedule.store.metadata
        if end.error is not None:
            return
        demand(
            end.result.state is State.CLOSED and _end(end.result) == _end(metadata),
            "NoDivergenceBetweenClientAndMetaData",
            f"the writer closed at {_end(end.result)}, the metadata say {_end(metadata)}",
        )
        demand(self.acked == machine.last_add_pushed, "AcksComeBeforeTheClose", f"only up to {self.acked}")
        self._have_copies(
            metadata, 0, metadata.last_entry, metadata.write_quorum,
            "AllEntriesOfClosedLedgerReachedWriteQuorumOrAreNoted", or_noted=True,
        )  # fmt: skip

    def recovered(self, metadata: LedgerMetadata) -> None:
        actual_metadata = self._schedule.store.metadata
        demand(
            metadata.state is State.CLOSED and _end(actual_metadata) == _end(metadata),
            "NoDivergenceBetweenClientAndMetaData",
            f"a recoverer closed at {_end(metadata)}, the metadata say {_end(actual_metadata)}",
        )

    def _lacks_are_noted(self, metadata: LedgerMetadata) -> None:
        """At the moment of the close, whoever closes: nobody may be there afterwards to do it. A bookie that has a later
        entry has answered for all of them: what it lacks is found by a repair of the whole ledger."""
        nodes, ledger, store = self._schedule.nodes.by_name, metadata.ledger, self._schedule.store
        for entry in range(metadata.last_entry + 1):
            if self._is_excused(entry):
                continue
            ensemble = metadata.fragment_of(entry).ensemble
            for i in write_set(entry, metadata.ensemble_size, metadata.write_quorum):
                log = nodes[ensemble[i]].log
                has = log.holds(ledger, entry) or (log.last_entry(ledger) or -1) > entry
                demand(
                    has or store.is_noted(metadata, ensemble[i]) or nodes[ensemble[i]].has_lost,
                    "AllEntriesOfClosedLedgerReachedWriteQuorumOrAreNoted",
                    f"entry {entry} is not on {ensemble[i]}, and noted are {store.noted}",
                )

    # ---- reading --------------------------------------------------------------------------------------------

    def read(self, reading: LedgerReadOp, batch: RecordBatch) -> int:
        """Returns the next entry."""
        first: Any = reading._first
        times = batch.timestamp.tolist()
        demand(times == sorted(times), "TimesAscend", f"append times {times}")
        for record in batch:
            demand(
                record.entry == first and record.value == value_of(first),
                "NoOutOfOrderEntries",
                f"entry {first}: found {record.entry}, {record.value!r}",
            )
            first += 1
        demand(first > reading._first, "Liveness", "a read that succeeds brings nothing")
        return int(first)


def _end(metadata: LedgerMetadata) -> tuple[int, int, int]:
    return metadata.last_entry, metadata.length, metadata.messages
