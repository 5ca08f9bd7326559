"""Bytes on the disks of three clusters: what a replicated entry takes more than the original has a bound."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import accumulate
from pathlib import Path
from random import Random

import pytest

from benchmarks.rows.geo.stored_bytes import DiskEntry, disk_entries
from pyreplog.cli.explaining.layout import stride
from pyreplog.origins.origin import GapCause
from pyreplog.topic.owner.topic import Topic
from tests.geo.places import Place
from tests.geo.sites import SYNCED
from tests.waiting import until

GOAL_BYTES = 64
"""At most so many bytes more for each entry of the source."""
ATTRIBUTE_BYTES, GAP_BYTES = 29, 17
"""Of the origin attribute, with the length of all attributes, its tag and its own length; and of each gap."""
PLACES = ("a", "b", "c")
LISTS: list[list[str] | None] = [None, None, [], ["b"], ["c"], ["a", "b"]]


class Region(Place):
    """A cluster of the test, and its directory."""

    def __init__(self, stack: ExitStack, path: Path) -> None:
        super().__init__(stack, path)
        self.path = path
        self.serve()

    def topic(self) -> Topic:
        topic = self.cluster.topic("t", **SYNCED)
        assert isinstance(topic, Topic)
        return topic

    def has_sent_all(self) -> bool:
        rows = self.cluster.geo.status("t")
        return bool(rows) and all(row.stored == row.end == self.topic().end and not row.unsent_messages for row in rows)

    def disk_entries(self) -> list[DiskEntry]:
        return disk_entries(self.path, self.topic())


def messages(entry: DiskEntry) -> int:
    """Return the number of messages of an entry."""
    count: int = struct.unpack_from("<8xI", entry.value)[0]
    return count


@pytest.fixture
def regions(tmp_path: Path) -> Iterator[dict[str, Region]]:
    """Cluster b receives from a and c, and forwards the messages of each to the other one."""
    with ExitStack() as stack:
        regions = {name: Region(stack, tmp_path / name) for name in PLACES}
        for name, targets in (("a", "b"), ("b", "ac"), ("c", "b")):
            regions[name].topic()
            for target in targets:
                regions[name].cluster.geo.add_cluster(target, f"pyreplog://{regions[target].wire.address}")
            forward = "all" if name == "b" else "own"
            regions[name].cluster.geo.set_policy("t", targets=list(targets), forward=forward)
        yield regions


def test_bytes_more_of_replicated_entries_are_bounded_for_each_entry_of_the_source(regions: dict[str, Region]) -> None:
    random = Random(1)
    for step in range(100):
        region = regions[random.choice(PLACES)]
        values = [
            b"%d %d " % (step, at) + random.randbytes(random.randint(0, 90)) for at in range(random.randint(1, 3))
        ]
        region.topic().publish_batch(values, replicate_to=random.choice(LISTS))
        if step % 30 == 20:
            region.wire.cut()
        if random.random() < 0.08:
            until(lambda: all(region.has_sent_all() for region in regions.values()))
    until(lambda: all(region.has_sent_all() for region in regions.values()))

    disks = {name: region.disk_entries() for name, region in regions.items()}
    gaps_seen: set[GapCause] = set()
    for origin, source in disks.items():
        key = regions[origin].topic().origin.key
        originals = {entry.value: entry for entry in source if entry.origin is None}
        ends = set(accumulate(map(messages, source), initial=0))
        for target in disks.keys() - {origin}:
            copies = [entry for entry in disks[target] if entry.origin is not None and entry.origin.key == key]
            assert copies, f"{target} has no message of {origin}"
            more, at = 0, 0
            for copy in copies:
                assert copy.origin is not None
                for gap in copy.origin.gaps:
                    assert at <= gap.start and {gap.start, gap.end} <= ends, "each gap is of other entries, whole ones"
                    at = gap.end
                    gaps_seen.add(gap.cause)
                assert at <= copy.origin.first
                at = copy.origin.first + messages(copy)
                added = copy.size - originals[copy.value].size
                assert 0 < added <= stride(ATTRIBUTE_BYTES + GAP_BYTES * len(copy.origin.gaps))
                more += added
            assert more <= stride(ATTRIBUTE_BYTES) * len(source) < GOAL_BYTES * len(source)
    assert gaps_seen == {GapCause.FOREIGN, GapCause.FILTERED}
