"""Striped ledgers in a cluster's directory, with copies that are missing, damaged or others; and what plain Python finds
in the files of every bookie."""

from __future__ import annotations

import random
import shutil
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pyreplog
from pyreplog._native.ledger_log.entries import encode_entries
from pyreplog.bookie.identity import BookieIdentity
from pyreplog.bookie.ledger_log import LedgerLog
from pyreplog.config import LogConfig
from pyreplog.ledger.ledger_metadata import Fragment, LedgerMetadata, State, key_proof, ledger_key, metadata_key
from pyreplog.log import names
from pyreplog.metadata.sqlite import SQLiteStore
from pyreplog.reports.gathering import gather
from pyreplog.reports.snapshot import Snapshot
from tests import samples, twin
from tests.spark.reading import options_of

Copies = dict[tuple[str, int, int], list[int]]
"""(bookie, ledger, entry) -> the CRCs of its intact copies."""

BOOKIES = 5


@dataclass
class Striped:
    """A cluster's directory that is filled by hand. names: ids of its bookies. ledgers: what there is of them."""

    path: Path
    names: list[str]
    ledgers: list[LedgerMetadata] = field(default_factory=list)

    @classmethod
    def make(cls, path: Path) -> Striped:
        pyreplog.Cluster.embedded(path, bookies=BOOKIES, durability="appended", segment_bytes=64 << 10).close()
        folders = sorted(path.glob("bookie-*"))
        return cls(path, [BookieIdentity.decode(folder, (folder / "identity").read_bytes()).id for folder in folders])

    def folder(self, bookie: str) -> Path:
        return self.path / bookie.partition("@")[0] / "log"

    def add(self, metadata: LedgerMetadata) -> None:
        with SQLiteStore(self.path / "metadata.sqlite") as store:
            store.create(metadata_key(metadata.ledger), metadata.encode())
        self.ledgers.append(metadata)

    def write(self, bookie: str, records: list[bytes]) -> None:
        with LedgerLog(self.folder(bookie), LogConfig.of({"durability": "appended"})) as log:
            for record in records:
                log.append(record)

    def snapshot(self, **options: object) -> Snapshot:
        return gather(options_of(self.path, **options), 0)

    def segments(self, bookie: str) -> list[Path]:
        return sorted(self.folder(bookie).glob("*.log"))

    def used(self, bookie: str) -> list[Path]:
        """Those with records; the next one may be prepared already."""
        return [path for path in self.segments(bookie) if any(True for _ in records_in(path))]


def metadata_of(
    ledger: int, quorums: tuple[int, int, int], fragments: list[tuple[int, list[str]]], last: int | None
) -> LedgerMetadata:
    """last: None: it is open."""
    size, write, ack = quorums
    return LedgerMetadata(
        ledger=ledger, ensemble_size=size, write_quorum=write, ack_quorum=ack, durability="appended",
        fragments=tuple(Fragment(first, tuple(ensemble)) for first, ensemble in fragments),
        proof=key_proof(ledger_key(b"")), state=State.OPEN if last is None else State.CLOSED,
        last_entry=-1 if last is None else last, length=0 if last is None else 100 * (last + 1),
        messages=0 if last is None else last + 1,
    )  # fmt: skip


def record(ledger: int, entry: int, *, other: bool = False) -> bytes:
    """The record of an entry; other: another one of the same number, which is as intact."""
    value = b"%d/%d." % (ledger, entry) * (entry % 9 + 1) + b"other" * other
    entries = encode_entries([value], ledger=ledger, first=entry, lac=entry - 1, time=1_000_000 + entry,
                          ledger_bytes=100 * entry, ledger_messages=entry)  # fmt: skip
    return bytes(entries.view)


def write_set(metadata: LedgerMetadata, entry: int) -> list[str]:
    """As BookKeeper's round robin: Qw bookies of the ensemble from place `entry` mod E on."""
    ensemble = metadata.fragment_of(entry).ensemble
    return [ensemble[(entry + k) % len(ensemble)] for k in range(metadata.write_quorum)]


# ---- at random -------------------------------------------------------------------------------------------------


def fill(cluster: Striped, rng: random.Random, ledgers: int, *, is_whole: bool = False) -> None:
    """Ledgers of all shapes. Unless is_whole, stretches of them and single copies are missing, some copies are there
    twice, some differ, and some bookies have what they should not."""
    wanted: dict[str, list[bytes]] = {name: [] for name in cluster.names}
    for ledger in range(ledgers):
        metadata = random_metadata(cluster.names, rng, ledger)
        cluster.add(metadata)
        for entry in range(metadata.last_entry + 1):
            for bookie in write_set(metadata, entry):
                wanted[bookie].append(record(ledger, entry))
        if is_whole:
            continue
        for records in wanted.values():
            _spoil(records, rng, metadata)
    for bookie, records in wanted.items():
        cluster.write(bookie, records)


def random_metadata(names: list[str], rng: random.Random, ledger: int) -> LedgerMetadata:
    size = rng.randint(1, len(names))
    write = rng.randint(1, size)
    last = rng.choice([-1, 0, 1, rng.randint(2, 40), rng.randint(40, 400)])
    firsts = sorted({0, *(rng.randint(1, last) for _ in range(rng.randint(0, 3)) if last > 0)})
    fragments = [(first, rng.sample(names, size)) for first in firsts]
    return metadata_of(ledger, (size, write, rng.randint(1, write)), fragments, last)


def _spoil(records: list[bytes], rng: random.Random, metadata: LedgerMetadata) -> None:
    """Of the records of one bookie."""
    end = metadata.last_entry + 1
    for _ in range(rng.choice([0, 0, 1, 3])):
        start = rng.randrange(len(records) + 1)
        del records[start : start + rng.choice([1, 1, 2, 50])]
    for _ in range(rng.choice([0, 0, 2])):
        entry = rng.randrange(end + 3)
        records.append(record(metadata.ledger, entry, other=rng.random() < 0.5))


# ---- damage ----------------------------------------------------------------------------------------------------


def flip_some(cluster: Striped, rng: random.Random, count: int, spared: str = "") -> None:
    """Bits of values, or of headers behind the length; of all bookies but one."""
    names = [name for name in cluster.names if name != spared]
    places = [(path, record) for name in names for path in cluster.segments(name) for record in records_in(path)]
    for path, (at, _) in rng.sample(places, min(count, len(places))):
        samples.flip(path, at + rng.choice([4, 14, 33, 45, 66]), rng.randrange(8))


def tear(cluster: Striped, bookie: str) -> int:
    """A crash while a record was written: nobody closed the log, and the front of a record is behind its end. Returns
    the length of that record."""
    folder = cluster.folder(bookie)
    crashed = folder.with_name("crashed")
    with LedgerLog(folder, LogConfig.of({"durability": "appended"})) as log:
        log.append(record(0, 0))
        while log.segment_bytes - log.end_position % log.segment_bytes < len(record(0, 8)):
            log.append(record(0, 0))  # until there is room for what is torn
        shutil.copytree(folder, crashed, ignore=shutil.ignore_patterns("fresh-*", "spare-*", "*.new"))
    shutil.rmtree(folder)
    crashed.rename(folder)
    (folder / names.TAIL).unlink()  # as after a boot
    path = cluster.used(bookie)[-1]
    end = max(at + stride for at, stride in records_in(path))
    torn = bytearray(record(0, 8))
    torn[8:12] = twin.read_header(path.read_bytes()[: twin.HEADER_BYTES]).stamp.to_bytes(4, "little")
    with path.open("r+b") as file:
        file.seek(end)
        file.write(torn[: len(torn) // 2])
    return int.from_bytes(torn[:4], "little")


# ---- what is there, in plain Python ----------------------------------------------------------------------------


def records_in(path: Path) -> Iterator[tuple[int, int]]:
    """Offset and stride of each intact record of a segment file, wherever the one before it ends."""
    data = path.read_bytes()
    try:
        segment = twin.read_header(data[: twin.HEADER_BYTES])
    except AssertionError:
        return
    at = twin.HEADER_BYTES
    while at + 32 <= len(data):
        stride = _stride(data, at, segment)
        if stride:
            yield at, stride
        at += stride or 8


def _stride(data: bytes, at: int, segment: twin.TwinSegment) -> int:
    """0: no record of this segment begins here."""
    if data[at + 8 : at + 12] != segment.stamp.to_bytes(4, "little"):
        return 0
    try:
        record, stride = twin.read_record(data, at, segment)
    except (AssertionError, struct.error):
        return 0
    return 0 if record is None else stride


def copies_in(cluster: Striped) -> Copies:
    """Every intact copy of an entry, on every bookie that is there."""
    copies: Copies = {}
    for bookie in cluster.names:
        for path in cluster.segments(bookie):
            data = path.read_bytes()
            for at, _ in records_in(path):
                kind = data[at + 12]
                ledger, entry = struct.unpack_from("<qq", data, at + 24)
                if kind in (1, 2):
                    crc = int.from_bytes(data[at + 4 : at + 8], "little")
                    copies.setdefault((bookie, ledger, entry), []).append(crc)
    return copies
