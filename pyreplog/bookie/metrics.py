"""Metrics of a bookie for Prometheus; docs/operations.md explains each of them."""

from __future__ import annotations

from collections.abc import Iterator

from pyreplog._native.ledger_log.entries import CONTROL
from pyreplog._native.system.histogram import Histogram
from pyreplog.bookie.collector import Collector
from pyreplog.bookie.local_bookie import LocalBookie
from pyreplog.bookie.protocol import ReplyStatus, RequestKind
from pyreplog.metrics import Labels, Metric
from pyreplog.net.server import Server

_PREFIX = "pyreplog_bookie_"


def bookie_metrics(name: str, bookie: LocalBookie, collector: Collector, server: Server | None) -> Iterator[Metric]:
    """Yield the metrics of a bookie; takes time in proportion to the number of its ledgers.

    Args:
        name: id of the bookie.
        bookie: the bookie.
        collector: its garbage collector.
        server: the server that serves it; None in an embedded cluster.
    """
    labels = {"bookie": name}
    yield from _counted(labels, bookie)
    yield from _gauge_metrics(labels, bookie)
    yield from _collected(labels, collector)
    yield from _scrubbed(labels, bookie)
    if server is not None:
        yield _gauge("connections", "Connections that are open.", labels, len(server.connections))
        yield _counter(
            "refused_connections", "Connections that were refused, or whose hello failed.", labels, server.refused
        )
        yield _gauge(
            "inflight_bytes", "Bytes of requests whose replies have not been sent.", labels, server.inflight_bytes
        )  # fmt: skip


def _counted(labels: Labels, bookie: LocalBookie) -> Iterator[Metric]:
    counts = bookie.counts
    kinds = [({**labels, "kind": RequestKind(kind).name.lower()}, float(n)) for kind, n in counts.requests.items()]
    statuses = [
        ({**labels, "status": ReplyStatus(status).name.lower()}, float(n)) for status, n in counts.replies.items()
    ]
    yield Metric(f"{_PREFIX}requests", "counter", "Requests, by kind.", [*kinds])
    yield Metric(
        f"{_PREFIX}replies",
        "counter",
        "Replies, by status; each status but ok is a refusal or an unknown outcome.",
        [*statuses],
    )
    yield _counter(
        "added_entries", "Entries added, including those that the bookie had already.", labels, counts.added_entries
    )
    yield _counter("added_bytes", "Bytes of the entries added, as encoded.", labels, counts.added_bytes)
    yield _counter("read_bytes", "Bytes of entries read by clients.", labels, counts.read_bytes)
    yield _counter("fences", "Ledgers fenced.", labels, counts.fences)
    yield _histogram("commit_entries", "Entries that one sync made durable.", labels, counts.commit_entries)
    yield _histogram("sync_seconds", "Duration of a sync of the log.", labels, counts.sync_seconds)


def _gauge_metrics(labels: Labels, bookie: LocalBookie) -> Iterator[Metric]:
    gauges = bookie.gauges()
    ledgers = {ledger % CONTROL for ledger in bookie.log.log.ledgers()}
    yield _gauge("ledgers", "Ledgers of which the bookie has entries, a fence or a key.", labels, len(ledgers))
    yield _gauge("ledger_states", "Ledgers whose state is kept in memory.", labels, gauges.ledger_states)
    yield _gauge(
        "limbo_ledgers",
        "Ledgers in limbo: the bookie may have lost entries of them; found since the start.",
        labels,
        gauges.limbo,
    )
    yield _gauge("long_polls", "Requests that wait for the LAC to advance.", labels, gauges.long_polls)
    yield _gauge("free_bytes", "Free space on the disk of the log, at the last look.", labels, bookie.free_bytes)
    yield _gauge("read_only", "1 if the bookie takes no new entries, for lack of space.", labels, bookie.read_only)
    yield _gauge(
        "failed", "1 if the log failed; each request is then answered with unknown.", labels, bool(bookie.failure)
    )


def _collected(labels: Labels, collector: Collector) -> Iterator[Metric]:
    yield _counter("trimmed_segments", "Segments removed from the beginning of the log.", labels, collector.trimmed)
    yield _counter(
        "hollowed_segments", "Segments in the middle of the log whose space was given back.", labels, collector.hollowed
    )
    yield _counter(
        "compacted_bytes",
        "Bytes of live entries that were copied so that their segments could be freed.",
        labels,
        collector.copied_bytes,
    )
    surplus = collector.surplus
    yield _counter(
        "surplus_bytes",
        "Bytes of surplus entries: the metadata assign them to other bookies.",
        labels,
        surplus.marked_bytes,
    )
    yield _counter(
        "surplus_conflicts",
        "Decisions to remove surplus that were given up because the metadata changed.",
        labels,
        surplus.conflicts,
    )
    yield _gauge("surplus_ledgers", "Ledgers whose surplus entries are being removed.", labels, len(surplus))


def _scrubbed(labels: Labels, bookie: LocalBookie) -> Iterator[Metric]:
    scrubber = bookie.scrubber
    yield _gauge(
        "lost_segments", "Segments that were missing or damaged when the bookie started.", labels, bookie.lost_segments
    )
    progress = scrubber.progress()
    since_s = progress.since_complete_s if progress.since_complete_s is not None else -1.0
    yield _counter("scrub_bytes", "Bytes of segments verified on the disk.", labels, scrubber.verified_bytes)
    yield _counter(
        "scrub_bad_records",
        "Damaged records found of which the bookie has no newer copy.",
        labels,
        scrubber.bad_records,
    )
    yield _counter(
        "scrub_mended",
        "Damaged headers, ends, indexes and control records that a scrub wrote anew.",
        labels,
        scrubber.mended,
    )
    yield _gauge(
        "scrub_damaged_segments",
        "Segments that have damage now and wait for new copies.",
        labels,
        progress.damaged_segments,
    )
    yield _gauge(
        "scrub_oldest_seconds", "Longest time for which a segment was not verified.", labels, scrubber.oldest_s()
    )
    yield _gauge(
        "scrub_complete_seconds", "Time since all segments had been verified; -1 if they never were.", labels, since_s
    )


def _gauge(name: str, text: str, labels: Labels, value: float) -> Metric:
    return Metric(_PREFIX + name, "gauge", text, [(labels, float(value))])


def _counter(name: str, text: str, labels: Labels, value: float) -> Metric:
    return Metric(_PREFIX + name, "counter", text, [(labels, float(value))])


def _histogram(name: str, text: str, labels: Labels, value: Histogram) -> Metric:
    return Metric(_PREFIX + name, "histogram", text, [(labels, value)])
