"""Durability model: computes durability, rebuild time and cost from quorums, racks, disks and failure rates.

docs/durability.md states each formula and what it leaves out; `durability_simulation` checks the formulas with random
failures. Times are in seconds and rates per year unless a name says otherwise.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

from pyreplog._native.quorum.quorum import check_quorums
from pyreplog.autorecovery.loss_chain import LossChain, LossRates, rack_layout
from pyreplog.config import Settings
from pyreplog.errors import ConfigError, InvalidArgumentError

YEAR_S = 365.25 * 86_400
YEAR_DAYS = 365.25
RECORD_HEADER_BYTES = 64
MANY_AWAY_SHARE = 1 / 3
"""If a larger share of the bookies is away, nothing is copied until an operator declares them lost."""
METADATA_OPERATIONS = 6
"""Operations of the metadata store to copy one ledger: a read, two claims, a change, a release, a read of the
bookie."""
METADATA_BYTES = 1200
"""Memory of the metadata store for one ledger with three bookies, bytes: value, name and node."""
WRITE_QUORUM_MAX = 16


def _setting(default: float, low: float, high: float, text: str) -> Any:
    """Return a field of `PlanInputs` with its bounds and a line of help."""
    return dataclasses.field(default=default, metadata={"low": low, "high": high, "help": text})


@dataclass(frozen=True, kw_only=True)
class PlanInputs(Settings):
    """A modelled cluster; each field's metadata has its bounds and its meaning.

    Raises:
        ConfigError: a value is outside its bounds, or the values contradict each other.
    """

    ensemble: int = _setting(3, 1, 64, "E, bookies that a ledger lies on")
    write_quorum: int = _setting(3, 1, WRITE_QUORUM_MAX, "Qw, copies of each entry")
    ack_quorum: int = _setting(2, 1, WRITE_QUORUM_MAX, "Qa, copies that confirm an entry")
    bookies: int = _setting(1000, 1, 100_000, "bookies of the cluster")
    racks: int = _setting(40, 1, 100_000, "racks, with equally many bookies each; 1: all are in one")
    disks: int = _setting(1, 1, 100, "disks of a bookie; it is lost with any of them")
    ledgers: int = _setting(1_000_000, 1, 10**10, "ledgers that are stored")
    ledger_bytes: float = _setting(2.0**30, 1, 2.0**50, "mean size of a ledger, one copy")
    entry_bytes: float = _setting(4096.0, 1, 4 << 20, "mean size of an entry")
    write_bytes_per_s: float = _setting(0.0, 0, 1e15, "bytes that clients append in a second, before copies")
    disk_bytes: float = _setting(8e12, 1, 1e18, "size of a disk")
    disk_bytes_per_s: float = _setting(150e6, 1, 1e12, "what a disk reads or writes in a second")
    network_bytes_per_s: float = _setting(1.25e9, 1, 1e13, "what a bookie's network takes in a second, each way")
    copy_bytes_per_s: float = _setting(50e6, 1, 1e12, "limit of a bookie's worker: what it copies in a second")
    delay_s: float = _setting(600.0, 0, 1e7, "how long a bookie may be away before its copies are made again")
    detect_s: float = _setting(10.0, 0, 1e6, "until a writer or the metadata notice that a bookie is away")
    operator_s: float = _setting(86_400.0, 0, 1e8, "until an operator replaces a lost bookie, or declares it lost")
    disk_failures_per_year: float = _setting(0.014, 0, 1e4, "of one disk")
    node_failures_per_year: float = _setting(0.04, 0, 1e4, "of one bookie: its data are lost with the machine")
    rack_failures_per_year: float = _setting(0.1, 0, 1e4, "of one rack: the data of all its bookies are lost")
    outages_per_year: float = _setting(12.0, 0, 1e5, "of one bookie, which comes back with its data")
    outage_s: float = _setting(300.0, 0.001, 1e7, "mean length of an outage; lengths are exponential")
    bits_per_latent_error: float = _setting(1e15, 1e6, 1e30, "bits read for one that is unreadable")
    reads_per_year: float = _setting(26.0, 0, 1e5, "how often a stored bit is read, so that it may become unreadable")
    scrub_days: float = _setting(14.0, 0.01, 1e4, "in which every copy is verified once")
    compacted_live_share: float = _setting(0.25, 0, 0.9, "share of a segment that is live when it is compacted")
    metadata_operations_per_s: float = _setting(5000.0, 1, 1e9, "writes that the metadata store takes")
    metadata_bytes: float = _setting(4e9, 1, 1e15, "memory of the metadata store")
    scan_ledgers_per_s: float = _setting(10_000.0, 1, 1e9, "ledgers that an auditor's scan reads in a second")
    scan_s: float = _setting(600.0, 1, 1e8, "how long a scan may take")

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            self._check(field)
        try:
            check_quorums(self.ensemble, self.write_quorum, self.ack_quorum)
        except InvalidArgumentError as error:
            raise ConfigError(str(error)) from None
        if self.bookies < self.ensemble:
            raise ConfigError(f"bookies: expected at least the ensemble of {self.ensemble}, found {self.bookies}")
        if self.racks > self.bookies:
            raise ConfigError(f"racks: expected at most the {self.bookies} bookies, found {self.racks}")
        room = self.bookies * self.disks * self.disk_bytes
        needed = self.ledgers * self.ledger_bytes * storage_factor(self)
        if needed > room:
            raise ConfigError(
                f"ledgers: {needed:.3g} bytes with all copies do not fit on {self.bookies} bookies of {self.disks} "
                f"disks, which hold {room:.3g}: give more bookies, or larger disks"
            )

    def _check(self, field: dataclasses.Field[Any]) -> None:
        low, high = field.metadata["low"], field.metadata["high"]
        if field.type == "int":
            self._check_int(field.name, low, high)
            return
        value = getattr(self, field.name)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ConfigError(f"{field.name}: expected a number, found {value!r}")
        if not low <= value <= high:
            raise ConfigError(f"{field.name}: expected {low:g} to {high:g}, found {value:g}")

    # ---- derived values -------------------------------------------------------------------------------------

    @property
    def windows(self) -> int:
        """Number of different sets of bookies that store entries of one ledger."""
        return self.ensemble if self.ensemble > self.write_quorum else 1

    @property
    def member_bytes(self) -> float:
        """Size of one ledger on one bookie of its ensemble, bytes."""
        return self.ledger_bytes * self.write_quorum / self.ensemble

    @property
    def ledgers_per_bookie(self) -> float:
        return self.ledgers * self.ensemble / self.bookies

    @property
    def bookie_bytes(self) -> float:
        """Size of the live copies on one bookie, bytes."""
        return self.ledgers_per_bookie * self.member_bytes

    @property
    def rack_bookies(self) -> float:
        return self.bookies / self.racks

    @property
    def bookie_losses_per_year(self) -> float:
        """Independent losses of one bookie per year, with a disk or with its machine."""
        return self.disks * self.disk_failures_per_year + self.node_failures_per_year

    @property
    def worker_bytes_per_s(self) -> float:
        """Bytes per second that one bookie copies: at most its limit, network, and half of its disks (read, write)."""
        return min(self.copy_bytes_per_s, self.network_bytes_per_s, self.disks * self.disk_bytes_per_s / 2)

    @property
    def long_outages_per_year(self) -> float:
        """Outages of one bookie per year that last longer than the delay."""
        return self.outages_per_year * math.exp(-self.delay_s / self.outage_s)

    def unreadable(self, copies: int) -> float:
        """Return the probability that an entry of one window of a ledger is unreadable on all of `copies` copies.

        A bit may turn out unreadable when it is read (1 in `bits_per_latent_error`), or have become so since the last
        scrub.
        """
        exposure = 1 + self.reads_per_year * self.scrub_days / YEAR_DAYS / 2
        entry = min(8 * self.entry_bytes * exposure / self.bits_per_latent_error, 1.0)
        entries = self.ledger_bytes / self.windows / self.entry_bytes
        return -math.expm1(-entries * float(entry**copies))

    def copying_s(self, bookies: float) -> float:
        """Return the seconds to replicate the copies of `bookies` bookies that were lost together.

        It is the largest of three bounds: the bytes, divided among the workers of the other bookies, one ledger each at
        a time; the operations of the metadata store; one ledger on one worker.
        """
        ledgers = bookies * self.ledgers_per_bookie
        workers = max(min(self.bookies - bookies, ledgers), 1.0)
        by_bytes = ledgers * self.member_bytes / (workers * self.worker_bytes_per_s)
        by_metadata = ledgers * METADATA_OPERATIONS / self.metadata_operations_per_s
        return max(by_bytes, by_metadata, self.member_bytes / self.worker_bytes_per_s)

    def waiting_s(self, bookies: float) -> float:
        """Return the seconds before the copying begins: the delay, or `operator_s` if only an operator can start it."""
        many = bookies > 1 and bookies > MANY_AWAY_SHARE * self.bookies
        no_spare = self.bookies - bookies < self.ensemble
        return self.operator_s if many or no_spare else min(self.delay_s, self.operator_s)


@dataclass(frozen=True)
class Durability:
    """Expected losses in a year. A ledger is lost when one of its entries has no copy left.

    Attributes:
        ledger_losses: probability that one ledger is lost.
        cluster_losses: expected number of ledgers of the cluster that are lost.
        cluster_events: expected number of times that any ledger is lost.
        cluster_probability: probability that the cluster loses any ledger.
        ledger_nines: -log10 of `ledger_losses`.
        cluster_nines: -log10 of `cluster_probability`.
        latent_share: share of `ledger_losses` in which the last copy existed but had an unreadable entry.
    """

    ledger_losses: float
    cluster_losses: float
    cluster_events: float
    cluster_probability: float
    ledger_nines: float
    cluster_nines: float
    latent_share: float


@dataclass(frozen=True)
class Rebuild:
    """The rebuild of the copies of one bookie.

    Attributes:
        bookie_bytes: bytes to copy.
        waiting_s: seconds before the copying begins.
        copying_s: seconds from the first byte to the last one.
        total_s: sum of `waiting_s` and `copying_s`.
        network_share: share of each bookie's network, in and out, that the copying uses.
        disk_share: share of each bookie's disk bandwidth that the copying uses: reading one copy and writing another.
    """

    bookie_bytes: float
    waiting_s: float
    copying_s: float
    total_s: float
    network_share: float
    disk_share: float


@dataclass(frozen=True)
class Traffic:
    """Bytes per year, of the whole cluster.

    Attributes:
        lost_bookies: bytes copied for bookies that were lost independently.
        lost_racks: bytes copied for racks.
        outages: bytes copied for bookies that returned after the delay.
        total: all bytes copied.
        scrubbed: bytes read by scrubs.
        share_of_writes: `total` divided by the bytes that clients write, with all copies; 0 if no write rate is given.
    """

    lost_bookies: float
    lost_racks: float
    outages: float
    total: float
    scrubbed: float
    share_of_writes: float


@dataclass(frozen=True)
class RackLoss:
    """The loss of one rack.

    Attributes:
        bookies: number of bookies in the rack.
        bytes: bytes to copy.
        copies_left: remaining copies of the entries that have the fewest.
        ledgers_lost: whether entries are lost at once.
        writes_continue: whether Qa bookies of each write quorum remain.
        waiting_s: seconds before the copying begins.
        copying_s: seconds from the first byte to the last one.
        fill_after: used share of the other bookies' disks after the rebuild; above 1 they are too small.
    """

    bookies: float
    bytes: float
    copies_left: int
    ledgers_lost: bool
    writes_continue: bool
    waiting_s: float
    copying_s: float
    fill_after: float


@dataclass(frozen=True)
class Cost:
    """Storage and write cost.

    Attributes:
        storage_factor: bytes on disks for each byte of entries.
        fill: used share of the disks.
        write_amplification: bytes written to disks for each byte that clients append.
    """

    storage_factor: float
    fill: float
    write_amplification: float


@dataclass(frozen=True)
class WriteAvailability:
    """Probability that an add reaches fewer than Qa of its Qw bookies.

    Attributes:
        without_spare: if no other bookie can replace one that is away.
        with_spare: if writers replace a bookie as soon as they notice.
    """

    without_spare: float
    with_spare: float


@dataclass(frozen=True)
class GrowthLimits:
    """Sizes up to which the cluster can grow before something other than bytes is the bottleneck.

    Attributes:
        ledgers_by_memory: number of ledgers whose metadata fit into the metadata store.
        ledgers_by_scan: number of ledgers that an auditor can scan in `scan_s`.
        ledgers_by_rebuild: number of ledgers from which on the metadata store, and not the bytes, bounds a rebuild.
        bookies_by_rebuild: number of bookies from which on more bookies do not shorten a rebuild.
    """

    ledgers_by_memory: float
    ledgers_by_scan: float
    ledgers_by_rebuild: float
    bookies_by_rebuild: float


@dataclass(frozen=True)
class Plan:
    """All results that are computed from `PlanInputs`."""

    durability: Durability
    rebuild: Rebuild
    traffic: Traffic
    rack_loss: RackLoss
    cost: Cost
    availability: WriteAvailability
    limits: GrowthLimits


def make_plan(inputs: PlanInputs) -> Plan:
    """Return the results of the model for a cluster.

    Args:
        inputs: the modelled cluster.

    Returns:
        The results, with the formulas of docs/durability.md.
    """
    return Plan(
        _durability(inputs),
        _rebuild(inputs),
        _traffic(inputs),
        _rack_loss(inputs),
        _cost(inputs),
        _availability(inputs),
        _limits(inputs),
    )


def storage_factor(inputs: PlanInputs) -> float:
    """Return the bytes on disks for each byte of entries: copies, record headers, and bytes not compacted yet."""
    live = (1 + inputs.compacted_live_share) / 2  # on average a segment is half way between full and compacted
    return inputs.write_quorum * (1 + RECORD_HEADER_BYTES / inputs.entry_bytes) / live


def loss_rates(inputs: PlanInputs) -> LossRates:
    """Return the rates, per year, at which copies of one window are lost and replicated again."""
    in_rack = inputs.rack_bookies
    # share of a lost bookie's ledgers that also have a given other bookie
    other = (inputs.ensemble - 1) / max(inputs.bookies - 1, 1)
    copying = (inputs.copying_s(1), inputs.copying_s(in_rack))
    waiting = (inputs.waiting_s(1), inputs.waiting_s(in_rack))
    return LossRates(
        bookie=inputs.bookie_losses_per_year,
        rack=inputs.rack_failures_per_year,
        single_s=waiting[0] + copying[0] / 2,
        rack_s=waiting[1] + copying[1] / 2,
        urgent_single_s=waiting[0] + max(copying[0] * other, inputs.member_bytes / inputs.worker_bytes_per_s) / 2,
        urgent_rack_s=waiting[1] + max(copying[1] * other, inputs.member_bytes / inputs.worker_bytes_per_s) / 2,
        unreadable=tuple(inputs.unreadable(copies) for copies in range(inputs.write_quorum + 1)),
    )


def _durability(inputs: PlanInputs) -> Durability:
    layout = rack_layout(inputs.write_quorum, inputs.racks)
    chain = LossChain(layout, loss_rates(inputs), YEAR_S)
    losses = chain.losses()
    windows = inputs.ledgers * inputs.windows
    per_window = sum(loss.per_year for loss in losses)
    events = sum(loss.events(windows, inputs.racks, inputs.rack_bookies) for loss in losses)
    latent = sum(loss.per_year for loss in losses if loss.is_latent)
    ledger = -math.expm1(-inputs.windows * per_window)
    probability = -math.expm1(-events)
    return Durability(
        ledger_losses=ledger,
        cluster_losses=inputs.ledgers * inputs.windows * per_window,
        cluster_events=events,
        cluster_probability=probability,
        ledger_nines=_nines(ledger),
        cluster_nines=_nines(probability),
        latent_share=latent / per_window if per_window else 0.0,
    )


def _nines(probability: float) -> float:
    return -math.log10(probability) if probability > 0 else math.inf


def _rebuild(inputs: PlanInputs) -> Rebuild:
    waiting, copying = inputs.waiting_s(1), inputs.copying_s(1)
    each = inputs.bookie_bytes / copying / max(inputs.bookies - 1, 1)
    return Rebuild(
        bookie_bytes=inputs.bookie_bytes,
        waiting_s=waiting,
        copying_s=copying,
        total_s=waiting + copying,
        network_share=each / inputs.network_bytes_per_s,
        disk_share=2 * each / (inputs.disks * inputs.disk_bytes_per_s),
    )


def _traffic(inputs: PlanInputs) -> Traffic:
    bookies = inputs.bookies * inputs.bookie_losses_per_year * inputs.bookie_bytes
    racks = inputs.racks * inputs.rack_failures_per_year * inputs.rack_bookies * inputs.bookie_bytes
    copying = inputs.copying_s(1)
    # mean share that is copied before the bookie returns
    share = inputs.outage_s / copying * -math.expm1(-copying / inputs.outage_s)
    outages = inputs.bookies * inputs.long_outages_per_year * inputs.bookie_bytes * share
    if inputs.bookies - 1 < inputs.ensemble:
        outages = 0.0
    total = bookies + racks + outages
    written = inputs.write_bytes_per_s * YEAR_S * inputs.write_quorum
    scrubbed = inputs.bookies * inputs.bookie_bytes * YEAR_DAYS / inputs.scrub_days
    return Traffic(bookies, racks, outages, total, scrubbed, total / written if written else 0.0)


def _rack_loss(inputs: PlanInputs) -> RackLoss:
    in_rack = inputs.rack_bookies
    left = inputs.write_quorum - max(rack_layout(inputs.write_quorum, inputs.racks))
    others = inputs.bookies - in_rack
    fill = _cost(inputs).fill
    return RackLoss(
        bookies=in_rack,
        bytes=in_rack * inputs.bookie_bytes,
        copies_left=left,
        ledgers_lost=left == 0,
        writes_continue=left >= inputs.ack_quorum,
        waiting_s=inputs.waiting_s(in_rack),
        copying_s=inputs.copying_s(in_rack),
        fill_after=fill * inputs.bookies / others if others > 0 else math.inf,
    )


def _cost(inputs: PlanInputs) -> Cost:
    factor = storage_factor(inputs)
    room = inputs.bookies * inputs.disks * inputs.disk_bytes
    written = inputs.write_quorum * (1 + RECORD_HEADER_BYTES / inputs.entry_bytes)
    return Cost(
        storage_factor=factor,
        fill=inputs.ledgers * inputs.ledger_bytes * factor / room,
        write_amplification=written / (1 - inputs.compacted_live_share),
    )


def _availability(inputs: PlanInputs) -> WriteAvailability:
    lost = inputs.bookie_losses_per_year + inputs.rack_failures_per_year
    away = (inputs.outages_per_year * inputs.outage_s + lost * inputs.operator_s) / YEAR_S
    noticed = (inputs.outages_per_year + lost) * inputs.detect_s / YEAR_S
    return WriteAvailability(_too_few(inputs, away), _too_few(inputs, noticed))


def _too_few(inputs: PlanInputs, away: float) -> float:
    """Return the probability that more than Qw - Qa of Qw bookies are away independently."""
    share, quorum = min(away, 1.0), inputs.write_quorum
    return sum(
        math.comb(quorum, count) * share**count * (1 - share) ** (quorum - count)
        for count in range(quorum - inputs.ack_quorum + 1, quorum + 1)
    )


def _limits(inputs: PlanInputs) -> GrowthLimits:
    rate = inputs.worker_bytes_per_s
    # Solve for equal time of both bounds: the bytes by workers, and the operations of the metadata store.
    bookies = inputs.member_bytes / rate * inputs.metadata_operations_per_s / METADATA_OPERATIONS + 1
    workers = max(inputs.bookies - 1, 1)
    stored = inputs.ledgers * inputs.ledger_bytes
    return GrowthLimits(
        ledgers_by_memory=inputs.metadata_bytes / (METADATA_BYTES * inputs.ensemble / 3),
        ledgers_by_scan=inputs.scan_ledgers_per_s * inputs.scan_s,
        ledgers_by_rebuild=stored
        * inputs.write_quorum
        / inputs.ensemble
        / rate
        / workers
        * inputs.metadata_operations_per_s
        / METADATA_OPERATIONS,
        bookies_by_rebuild=min(bookies, math.sqrt(inputs.ledgers * inputs.ensemble)),
    )
