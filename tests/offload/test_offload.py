"""Offloading: what is sealed, once, whatever comes between; and the rows that are read from there."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

import pyreplog
from pyreplog.clock import ManualClock
from pyreplog.errors import (
    InvalidArgumentError,
    NotALogError,
    ObjectCorruptionError,
    OffloadConflictError,
    TrimmedError,
    UnnumberedError,
)
from pyreplog.offload import copying, manifest
from pyreplog.tables.objects import ObjectSlice
from pyreplog.tables.planning import plan
from tests import samples
from tests.offload.places import Place
from tests.spark.clusters import embedded, fill
from tests.spark.reading import bytes_planned, options_of, read_table

SEGMENT = 64 << 10


@pytest.fixture
def log(tmp_path: Path) -> Path:
    samples.make_log(tmp_path / "log")
    return tmp_path / "log"


def grow(path: Path, count: int, size: int = 300) -> int:
    """More entries; returns the log's end."""
    with pyreplog.open(path, segment_bytes=SEGMENT) as log:
        log.append_batch([b"%d." % n + b"v" * size for n in range(count)])
        return log.end


def sealed(path: Path) -> int:
    """The first entry behind what is sealed."""
    return samples.first_entries(path)[-1]


def test_an_offloaded_log_has_the_rows_of_the_log(place: Place, log: Path) -> None:
    archive = place.copy(log)
    assert (archive.manifest.start, archive.manifest.end, archive.segments) == (0, sealed(log), 3)
    for options in (
        {"includeMetadata": True, "includeHeaders": True, "batchBytes": 1000},
        {"columns": "offset,size,timestamp", "minPartitions": 7},
        {"columns": "value", "startingOffsets": 370, "endingOffsets": 390},
    ):
        wanted = read_table(log, **{"endingOffsets": archive.manifest.end, **options})
        assert place.table(**options).equals(wanted)
        assert len(wanted)


def test_a_repeated_offload_copies_new_segments_only(place: Place, log: Path) -> None:
    before = place.copy(log).manifest
    assert place.copy(log) == (before, 0, 0, 0)
    end = grow(log, 800)
    with pyreplog.open(log, "r") as reader:
        wanted = reader[: sealed(log)]
    archive = place.copy(log)
    assert archive.segments == len(archive.manifest.segments) - 3 >= 2
    assert archive.manifest.segments[:3] == before.segments
    assert place.column("value") == wanted
    assert sealed(log) < end


def test_offloaded_segments_stay_after_the_log_was_trimmed(folder: Place, log: Path) -> None:
    folder.copy(log)
    with pyreplog.open(log) as writer:
        writer.trim(samples.first_entries(log)[2])
        assert writer.start > 0
    grow(log, 500)
    assert folder.copy(log).manifest.start == 0
    assert folder.column("offset") == list(range(sealed(log)))


def test_an_offload_that_would_leave_a_gap_is_refused(folder: Place, log: Path) -> None:
    before = folder.copy(log).manifest
    end = grow(log, 1500)
    with pyreplog.open(log) as writer:
        writer.trim(end)
        assert writer.start > before.end
    with pytest.raises(TrimmedError, match=r"position 196608 to before \d+ were removed before they were copied"):
        folder.copy(log)
    assert folder.manifest == before


def test_a_trim_during_an_offload_moves_its_start_or_is_a_gap(
    folder: Place, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first segment goes when it is looked at: the copy begins behind it. The last one goes: that is a gap."""
    first, verify_segment = samples.first_entries(log), copying._Offload._verify_segment

    def trim_first(self: copying._Offload, base: int) -> copying._Local:
        if base == 0:
            with pyreplog.open(log) as writer:
                writer.trim(first[1])
        return verify_segment(self, base)

    monkeypatch.setattr(copying._Offload, "_verify_segment", trim_first)
    assert folder.copy(log).manifest.start == first[1]
    assert folder.column("offset") == list(range(first[1], first[3]))


def test_a_log_that_was_cut(folder: Place, log: Path) -> None:
    """What it was cut behind is replaced; who planned a read before goes on."""
    before = folder.copy(log).manifest
    options = options_of(folder.url, columns="offset")
    tasks = plan(options)
    cut = samples.first_entries(log)[1] + 5
    with pyreplog.open(log) as writer:
        writer.truncate(cut)
    archive = folder.copy(log)
    assert (archive.replaced, archive.segments, archive.manifest.end) == (2, 0, before.segments[0].end_entry)
    grow(log, 700)
    assert folder.copy(log).replaced == 0
    with pyreplog.open(log, "r") as reader:
        assert folder.column("value") == reader[: sealed(log)]
    assert sum(part.item.entries for task in tasks for part in task if isinstance(part, ObjectSlice)) == before.end
    for item in before.segments:
        assert folder.storage.size(item.name) == item.length


def test_missing_objects_are_copied_again(folder: Place, log: Path) -> None:
    items = folder.copy(log).manifest.segments
    folder.storage.remove(items[0].name)
    folder.storage.put(items[2].index_name, [b"short"])
    archive = folder.copy(log)
    assert (archive.segments, archive.manifest.segments) == (2, items)
    assert folder.column("offset") == list(range(sealed(log)))
    with pyreplog.open(log) as writer:
        writer.trim(samples.first_entries(log)[1])
    folder.storage.put(items[0].name, [b"short"])
    with pytest.raises(ObjectCorruptionError, match=rf"{items[0].name} .* expected \d+ bytes, .* found 5 bytes"):
        folder.copy(log)


def test_the_later_of_two_concurrent_offloads_is_told(place: Place, log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The one that is late is told, and nothing that the other one did is lost."""
    place.copy(log)
    grow(log, 800)
    publish = copying._Offload._publish

    def late(self: copying._Offload) -> None:
        monkeypatch.setattr(copying._Offload, "_publish", publish)
        for _ in range(3):  # the number that this one wants is taken, and then removed
            grow(log, 800)
            place.copy(log)
        publish(self)

    monkeypatch.setattr(copying._Offload, "_publish", late)
    with pytest.raises(OffloadConflictError, match="generation 4"):
        place.copy(log)
    assert place.manifest.generation == 4
    assert sorted(name for name in place.names() if name.startswith("manifests")) == [
        manifest.name_of(3), manifest.name_of(4)
    ]  # fmt: skip
    assert place.column("offset") == list(range(sealed(log)))


def test_an_offload_that_another_overtook_is_a_conflict(
    place: Place, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish = copying._Offload._publish

    def late(self: copying._Offload) -> None:
        monkeypatch.setattr(copying._Offload, "_publish", publish)
        place.copy(log)
        publish(self)

    monkeypatch.setattr(copying._Offload, "_publish", late)
    with pytest.raises(OffloadConflictError, match="generation 1"):
        place.copy(log)
    assert place.copy(log).segments == 0


def test_an_answer_that_was_lost(folder: Place, log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store has the manifest, and says that there is one: it is ours."""
    create = type(folder.storage).create
    monkeypatch.setattr(type(folder.storage), "create", lambda *given: create(*given) and False)
    assert folder.copy(log).manifest == folder.manifest


def test_offloads_refuse_foreign_places_and_logs(folder: Place, log: Path, tmp_path: Path) -> None:
    with pytest.raises(NotALogError, match="holds no offloaded log"):
        Place(f"memory://{tmp_path}/none", {}).table()
    folder.copy(log)
    samples.make_log(tmp_path / "other")
    with pytest.raises(InvalidArgumentError, match="or nothing, found log"):
        folder.copy(tmp_path / "other")
    with pytest.raises(InvalidArgumentError, match="url: expected a place outside the log"):
        Place(f"file://{log}/inside", {}).copy(log)
    with embedded(tmp_path / "cluster") as cluster:
        fill(cluster, [3])
    with pytest.raises(UnnumberedError):
        Place(f"file://{tmp_path}/ledgers", {}).copy(next((tmp_path / "cluster").glob("*/log")))


def test_an_offload_without_sealed_segments_copies_nothing(folder: Place, tmp_path: Path) -> None:
    pyreplog.open(tmp_path / "log", segment_bytes=SEGMENT).close()
    assert folder.copy(tmp_path / "log").manifest.segments == ()
    assert folder.column("offset") == []
    grow(tmp_path / "log", 500)
    assert folder.copy(tmp_path / "log").manifest.end == len(folder.column("offset")) > 100


# ---- planning --------------------------------------------------------------------------------------------------


def test_ranges_of_offsets_select_rows_of_an_offloaded_log(folder: Place, log: Path, seed: int) -> None:
    rng, end = random.Random(seed), folder.copy(log).manifest.end
    for _ in range(30):
        low = rng.randrange(end + 1)
        high = rng.randrange(low, end + 1)
        tasks = rng.randrange(1, 9)
        offsets = folder.column("offset", startingOffsets=low, endingOffsets=high, minPartitions=tasks)
        assert offsets == list(range(low, high))
    with pytest.raises(pyreplog.OutOfRangeError, match=f"the log ends at {end}"):
        folder.table(startingOffsets=end + 1)
    each = {"log": {"-1": 5}}
    assert folder.column("offset", startingOffsets=json.dumps(each)) == list(range(5, end))


def make_timed(path: Path) -> None:
    """Entry n is appended at second n // 3."""
    clock = ManualClock(0)
    with pyreplog.open(path, segment_bytes=SEGMENT, clock=clock) as log:
        for n in range(900):
            log.append(b"v" * 300)
            if n % 3 == 2:
                clock.advance(1_000_000)


def test_ranges_of_times_select_rows_of_an_offloaded_log(folder: Place, tmp_path: Path, seed: int) -> None:
    make_timed(tmp_path / "log")
    rng, end = random.Random(seed), folder.copy(tmp_path / "log").manifest.end
    for _ in range(30):
        low = rng.randrange(-5, 310)
        high = low + rng.choice([0, 1, 2, 50, 400])
        offsets = folder.column("offset", startingTimestamp=low * 1000, endingTimestamp=high * 1000)
        assert offsets == [n for n in range(end) if low <= n // 3 < high]
    few = plan(options_of(folder.url, startingTimestamp=100_000, endingTimestamp=103_000))
    assert 9 * 300 < bytes_planned(few) < 9 * 300 + 3 * 4096


def test_planning_fetches_no_record(folder: Place, log: Path) -> None:
    """Manifest and indexes are enough: there are no segments. For a range, those indexes that it is cut by."""
    items = folder.copy(log).manifest.segments
    for item in items:
        folder.storage.remove(item.name)
    options = options_of(folder.url, startingOffsets=100, endingOffsets=700, minPartitions=4)
    tasks = plan(options)
    assert len(tasks) == 4
    sizes = [bytes_planned([task]) for task in tasks]
    assert max(sizes) - min(sizes) < 3 * 4096
    for item in items:
        folder.storage.remove(item.index_name)
    assert plan(options_of(folder.url))


def test_local_and_offloaded_logs_are_read_together(folder: Place, log: Path) -> None:
    manifest = folder.copy(log).manifest
    offset = read_table(None, paths=json.dumps([str(log), folder.url]), columns="offset")["offset"].to_pylist()
    assert offset == [*range(samples.ENTRIES), *range(manifest.end)]
    assert read_table(folder.folder, columns="offset").num_rows == manifest.end  # a directory is known by its manifests


def test_logs_whose_urls_end_alike(place: Place, folder: Place, log: Path, tmp_path: Path) -> None:
    """Each is a topic of its own, in rows and in offsets, be it offloaded or not; by itself it is the last part."""
    unsealed = tmp_path / "other" / "log"
    with pyreplog.open(unsealed, segment_bytes=SEGMENT) as other:
        other.append_batch([b"v" * 300] * 700)
    away, beside = Place(f"{place.url}/a/log", place.options), Place(f"{folder.url}/b/log", {})
    ends = {"a/log": away.copy(log).manifest.end, "b/log": beside.copy(unsealed).manifest.end, "other/log": 700}
    options = {"storageOptions": json.dumps(place.options)} if place.url.startswith("s3") else {}
    paths = json.dumps([f"{away.url}/", away.url, beside.url, str(unsealed)])
    table = read_table(None, paths=paths, columns="topic,offset", **options)
    rows = list(zip(table["topic"].to_pylist(), table["offset"].to_pylist(), strict=True))
    assert sorted(rows) == [(name, n) for name, end in sorted(ends.items()) for n in range(end)]
    since = {name: {"-1": end - 1} for name, end in ends.items()}
    last = read_table(None, paths=paths, columns="topic", startingOffsets=json.dumps(since), **options)
    assert sorted(last["topic"].to_pylist()) == sorted(ends)
    assert set(read_table(away.url, columns="topic", **options)["topic"].to_pylist()) == {"log"}
