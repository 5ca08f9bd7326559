"""Objects that are damaged, short, missing or another log's: told by URL, expected and found; or passed over."""

from __future__ import annotations

import json
import pickle
import random
from pathlib import Path

import pytest

import pyreplog
from pyreplog._native.system.checksum import crc32c
from pyreplog.errors import CorruptionError, FormatVersionError, NotALogError, ObjectCorruptionError
from pyreplog.offload import manifest, windows
from pyreplog.offload.copying import offload
from pyreplog.offload.manifest import Offloaded
from tests import samples
from tests.offload.places import Place
from tests.spark.reading import column

HEADER = 4096


@pytest.fixture
def log(tmp_path: Path) -> Path:
    samples.make_log(tmp_path / "log")
    return tmp_path / "log"


@pytest.fixture
def offloaded(folder: Place, log: Path) -> Offloaded:
    return folder.copy(log).manifest


def test_a_short_object_is_refused_or_passed_over(place: Place, log: Path) -> None:
    manifest = place.copy(log).manifest
    item = manifest.segments[1]
    place.storage.put(item.name, [place.bytes_of(item.name)[:-8]])
    told = rf"{place.url}/{item.name} at position {item.base}: expected an object of {item.length} bytes, found "
    with pytest.raises(ObjectCorruptionError, match=rf"{told}{item.length - 8} bytes") as caught:
        place.table()
    assert (caught.value.url, caught.value.exit_code) == (f"{place.url}/{item.name}", CorruptionError.exit_code)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
    place.storage.remove(item.name)
    with pytest.raises(ObjectCorruptionError, match=rf"{told}no object"):
        place.table(columns="offset")
    rows = place.column("offset", mode="DROPMALFORMED")
    assert rows == [n for n in range(manifest.end) if not item.first_entry <= n < item.end_entry]
    assert place.column("crcOk", mode="PERMISSIVE").count(False) == 1


def test_a_damaged_object_is_copied_again(folder: Place, log: Path, offloaded: Offloaded) -> None:
    """An object of its name and size is not believed to be it: exit code 0 says that all of the log is there."""
    for name in (offloaded.segments[1].name, offloaded.segments[0].index_name):
        path = folder.folder / name
        intact = path.read_bytes()
        path.write_bytes(intact[:-50] + bytes([intact[-50] ^ 1]) + intact[-49:])
        assert offload(log, folder.url, verify=False).segments == 0
        assert offload(log, folder.url).segments == 1 and path.read_bytes() == intact
        assert offload(log, folder.url).segments == 0


def test_a_damaged_object_that_the_log_has_no_more(folder: Place, log: Path, offloaded: Offloaded) -> None:
    with pyreplog.open(log) as writer:
        writer.trim(offloaded.segments[1].first_entry)
    path = folder.folder / offloaded.segments[0].name
    intact = path.read_bytes()
    path.write_bytes(intact[:5000] + bytes([intact[5000] ^ 1]) + intact[5001:])
    with pytest.raises(ObjectCorruptionError, match=r"expected CRC-32C .*, of a segment that the log no longer has"):
        offload(log, folder.url)


def test_an_object_of_another_segment_is_refused(folder: Place, offloaded: Offloaded, tmp_path: Path) -> None:
    """Of the same size, and intact by itself: of another log, or from elsewhere in this one."""
    item = offloaded.segments[0]
    samples.make_log(tmp_path / "other")
    other = (tmp_path / "other" / f"{0:020d}.log").read_bytes()[: item.length]
    folder.storage.put(item.name, [other])
    with pytest.raises(
        ObjectCorruptionError, match=rf"expected the segment at 0 of log {offloaded.uuid}, epoch \d+, found"
    ):
        folder.table()


def test_a_bit_of_a_record(folder: Place, log: Path, offloaded: Offloaded) -> None:
    position = samples.position_of(log, 500)
    item = offloaded.segments[1]
    at = position - item.base + 40
    folder.change(item.name, at, bytes([folder.bytes_of(item.name)[at] ^ 1]))
    with pytest.raises(ObjectCorruptionError, match=rf"{item.name} at position {position}: expected CRC-32C 0x"):
        folder.table()
    for tasks in (1, 9):
        rows = folder.column("offset", mode="DROPMALFORMED", verifyChecksum=True, minPartitions=tasks)
        assert rows == [n for n in range(offloaded.end) if n != 500]
    bad = [row for row in folder.table(includeMetadata=True, mode="PERMISSIVE").to_pylist() if not row["crcOk"]]
    assert [(row["position"], row["segment"]) for row in bad] == [(position, f"{item.base:020d}.log")]


def test_damaged_objects_give_the_rows_of_a_log_with_the_same_damage(
    folder: Place, log: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows are those of the log with the same damage, whatever the size of windows."""
    rng, manifest = random.Random(seed), folder.copy(log).manifest
    for _ in range(6):
        monkeypatch.setattr(windows, "WINDOW_BYTES", rng.choice([32, 1000, 5000, 1 << 20]))
        item = rng.choice(manifest.segments)
        start = rng.randrange(HEADER, item.stop - 100)
        rubbish = rng.randbytes(rng.choice([1, 8, 3000]))[: item.stop - start]
        folder.change(item.name, start, rubbish)
        with (log / f"{item.base:020d}.log").open("r+b") as file:
            file.seek(start)
            file.write(rubbish)
    wanted = column(log, "offset", mode="DROPMALFORMED", verifyChecksum=True, endingOffsets=manifest.end)
    assert folder.column("offset", mode="DROPMALFORMED", verifyChecksum=True) == wanted
    assert len(wanted) > manifest.end // 3


@pytest.mark.parametrize("size", [32, 40, 700, 100_000])
def test_rows_do_not_depend_on_the_size_of_windows(
    folder: Place, log: Path, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Records are larger than a window, and lie across two."""
    manifest = folder.copy(log).manifest
    monkeypatch.setattr(windows, "WINDOW_BYTES", size)
    some = {"startingOffsets": manifest.end - 300, "endingOffsets": manifest.end - 100}
    assert folder.column("value", minPartitions=3, **some) == column(log, "value", **some)


def test_reads_fetch_only_the_needed_ranges_once(folder: Place, log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The ranges of the slices, headers of segments, and no window twice."""
    folder.copy(log)
    read, fetched = type(folder.storage).read, []

    def counted(self: object, name: str, start: int, stop: int) -> bytes:
        if name.endswith(".log"):
            fetched.append(stop - start)
        return read(self, name, start, stop)  # type: ignore[arg-type]

    monkeypatch.setattr(type(folder.storage), "read", counted)
    rows = folder.column("value", startingOffsets=600, endingOffsets=620)
    assert len(rows) == 20
    assert sum(map(len, rows)) < sum(fetched) < sum(map(len, rows)) + 20 * 100 + HEADER + 2 * 4096
    fetched.clear()
    monkeypatch.setattr(windows, "WINDOW_BYTES", 10_000)
    folder.table()
    stored = sum(item.stop for item in folder.manifest.segments)
    assert stored <= sum(fetched) < stored + len(fetched) * 500
    assert max(fetched) <= HEADER + 10_000


def test_an_index_that_is_of_no_use(folder: Place, offloaded: Offloaded) -> None:
    """It costs time, no rows."""
    for item in offloaded.segments[:2]:
        folder.change(item.index_name, 100, b"rubbish")
    folder.storage.remove(offloaded.segments[2].index_name)
    for options in ({"minPartitions": 9}, {"startingOffsets": 100, "endingOffsets": 900}):
        low, high = int(options.get("startingOffsets", 0)), int(options.get("endingOffsets", offloaded.end))
        assert folder.column("offset", **options) == list(range(low, high))


def test_damaged_and_missing_manifests_are_refused(folder: Place, offloaded: Offloaded) -> None:
    name, url = manifest.name_of(1), folder.url
    whole = json.loads(folder.bytes_of(name))
    whole["content"]["segments"][0]["stop"] += 8
    told = rf"{url}/{name} .* expected an intact manifest of an offloaded log, found"
    for data in (json.dumps(whole).encode(), b"", b"[]", folder.bytes_of(name)[:-100]):
        folder.storage.put(name, [data])
        with pytest.raises(ObjectCorruptionError, match=told):
            folder.table()
    newer = manifest.VERSION + 1
    folder.storage.put(name, [json.dumps({**whole, "version": newer}).encode()])
    with pytest.raises(FormatVersionError, match=f"{url}/{name}: format version {newer}"):
        folder.table()
    folder.storage.remove(name)
    with pytest.raises(NotALogError):
        folder.table()


@pytest.mark.parametrize(
    ("field", "value"),
    [("base", 8), ("stop", 1 << 40), ("stop", 0), ("entries", -1), ("first_entry", 5), ("epoch", 1 << 32),
     ("crc32c", -1), ("index_bytes", 1 << 40), ("entries", "many"), ("time_low", 1 << 63), ("entries", 3)],
)  # fmt: skip
def test_a_manifest_with_numbers_out_of_bounds_is_refused(folder: Place, log: Path, field: str, value: object) -> None:
    """With a right CRC: whoever wrote them."""
    folder.copy(log)
    name = manifest.name_of(1)
    content = json.loads(folder.bytes_of(name))["content"]
    content["segments"][1][field] = value
    whole = {"format": manifest.FORMAT, "version": 1, "content": content}
    whole["crc32c"] = crc32c(json.dumps(content, sort_keys=True, separators=(",", ":")).encode())
    folder.storage.put(name, [json.dumps(whole).encode()])
    with pytest.raises(ObjectCorruptionError, match=name):
        folder.table()
