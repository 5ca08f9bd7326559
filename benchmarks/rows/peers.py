"""pyreplog beside other stores, column by column."""

from __future__ import annotations

from benchmarks.entries import SIZES
from benchmarks.peers import PEERS, Work
from benchmarks.peers.contest import APPENDS, RECYCLED, SYNCED, Crashed, Rates, append_rates, crashes, read_rates
from benchmarks.plan import Plan
from benchmarks.result import Comparison, Durability, Figure, Goal, Section, Table

_SIZES = (100, 1024, 16384)
_GOALS = {
    (100, Work.APPEND): 20.0, (100, Work.BATCH): 20.0, (100, Work.SYNCED_16): 1.3, (100, Work.SYNCED_256): 2.0,
}  # fmt: skip
_AHEAD = 1.0
_OURS = "Pyreplog"
_NOTES = (
    "Brackets: how many times as fast pyreplog is (append and x256: the recycled one). Empty: the store cannot, or not "
    "with that durability: persist-queue has no batches and no random reads, and only its SQLite queue syncs.",
    "append, x256: the entry survives the process when the call returns; Redis syncs once a second besides, and "
    "answers before it writes while a sync is under way: what it then loses by kill -9 stands under 'lost'. 'pyreplog, "
    "recycled' runs under retention, so that its segments are recycled ones; 'pyreplog' keeps all.",
    "pyreplog allocates segments of 64 MiB ahead, two beyond the active one; that is what 'allocated' shows of it.",
    "scan and read give bytes objects; pyreplog gives views at 16 KiB. It, LevelDB, RocksDB and file verify checksums "
    "in a scan; SQLite, LMDB, Redis and persist-queue keep none. LMDB could give unverified views, too (buffers=True).",
)
_TITLES = {RECYCLED: "pyreplog, recycled"} | {name: peer.title for name, peer in PEERS.items()}


def groups(plan: Plan) -> Section:
    """Groups of synced appends beside the best peer."""
    section = Section("groups", "Synced groups of 16 and 256, 100 B, beside the best peer")
    columns = {work: count for work, count in SYNCED.items() if count > 1}
    rates, read_back = append_rates(plan, 100, columns, synced=True)
    section.comparisons += _against_best(100, rates, f"{read_back:,} entries of all stores")
    return section


def peers(plan: Plan) -> Section:
    """The whole table, one per size."""
    section = Section("peers", "Peers, same work and same durability")
    for size in _SIZES:
        share = plan.shared(len(_SIZES))
        appended, appends_back = append_rates(share, size, APPENDS, synced=False)
        synced, synced_back = append_rates(share, size, SYNCED, synced=True)
        read, disk, reads_back = read_rates(share, size)
        crashed = crashes(share, size)
        for rates, read_back in ((appended, appends_back), (synced, synced_back), (read, reads_back)):
            section.comparisons += _against_best(size, rates, f"{read_back:,} entries of all stores")
        section.tables.append(_rates_table(size, appended | synced | read))
        section.tables.append(_state_table(size, disk, crashed))
    section.notes += [f"Versions: {'; '.join(peer.version() for peer in PEERS.values())}.", *_NOTES]
    return section


def _against_best(size: int, rates: Rates, verified: str) -> list[Comparison]:
    """Ours beside the fastest of the others, in each column."""
    found = []
    for work, by_store in rates.items():
        ours = RECYCLED if RECYCLED in by_store else _OURS
        best = max((name for name in by_store if name not in (RECYCLED, _OURS)), key=by_store.__getitem__)
        durability = _durability(work)
        found.append(
            Comparison(
                f"{work.value} {SIZES[size]}",
                Figure(_TITLES[ours], by_store[ours], "/s", durability, size),
                Figure(_TITLES[best], by_store[best], "/s", durability, size),
                Goal("at least", _GOALS.get((size, work), _AHEAD)),
                verified,
            )
        )
    return found


def _durability(work: Work) -> Durability:
    if work in APPENDS:
        return "appended"
    return "synced" if work in SYNCED else "reading"


def _rates_table(size: int, rates: Rates) -> Table:
    rows = []
    for name, title in _TITLES.items():
        cells = [_cell(by_store, name) for by_store in rates.values()]
        if any(cells):
            rows.append([title, *cells])
    return Table(f"{SIZES[size]}, entries/s", ["", *(work.value for work in rates)], rows)


def _cell(by_store: dict[str, float], name: str) -> str:
    if name not in by_store:
        return ""
    rate = str(Figure("", by_store[name], "/s", "reading")).removesuffix("/s")
    ours = RECYCLED if RECYCLED in by_store else _OURS
    return rate if name in (RECYCLED, _OURS) else f"{rate} ({by_store[ours] / by_store[name]:.1f})"


def _state_table(size: int, disk: dict[str, tuple[float, int]], crashed: dict[str, Crashed]) -> Table:
    headers = ["", "entries", "disk B/entry", "allocated", "private memory", "recovery after kill -9", "lost"]
    rows = []
    for name, peer in PEERS.items():
        used, allocated = disk[name]
        crash = crashed[name]
        rows.append(
            [
                peer.title,
                f"{crash.written:,}",
                f"{used:,.0f}",
                str(Figure("", allocated, "B", "reading")),
                str(Figure("", max(crash.private, 0), "B", "reading")),
                str(Figure("", crash.seconds, "s", "reading")),
                f"{crash.lost:,}",
            ]
        )
    return Table(f"{SIZES[size]}, disk, memory and recovery", headers, rows)
