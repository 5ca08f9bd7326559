"""Embedded clusters: each entry of their ledgers once, whatever a bookie has lost; or every copy there is."""

from __future__ import annotations

import shutil
import socket
from collections import Counter
from pathlib import Path

import pytest

import pyreplog
from pyreplog.bookie.ledger_log import LedgerLog
from pyreplog.config import LogConfig
from pyreplog.errors import ConfigError, NoSuchLedgerError, NotALogError, UnauthorizedError, UnreadableError
from pyreplog.ledger.ledger_metadata import ledger_key
from pyreplog.ledger.ledger_store import load_ledger
from pyreplog.ledger.reader import LedgerReader
from pyreplog.tables.cluster import stored_log
from pyreplog.tables.cluster.origins import survey_stored
from pyreplog.tables.planning import plan
from tests.spark.clusters import Place, copies, corrupt, embedded, fill, value_of, values
from tests.spark.reading import batches_of, bytes_planned, column, options_of, read_slices, read_table

Made = tuple[Path, list[Place]]


@pytest.fixture(scope="module")
def origin(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """Striped ledgers, large enough for several segments, and small ones."""
    path = tmp_path_factory.mktemp("clusters") / "data"
    with embedded(path, bookies=4) as cluster:
        places = fill(cluster, [4000, 1, 0, 700], (3, 2, 2))
        places += fill(cluster, [300], (3, 3, 2))
        places += fill(cluster, [500], (4, 2, 1))
    return path, places


@pytest.fixture
def sample(origin: Made, tmp_path: Path) -> Made:
    """A copy, to be spoilt."""
    return shutil.copytree(origin[0], tmp_path / "data"), origin[1]


def check(path: Path, places: list[Place], **options: object) -> None:
    actual_values = values(path, **options)
    assert actual_values.keys() == set(places)
    assert all(value == value_of(*place) for place, value in actual_values.items())


def test_each_entry_of_a_cluster_is_read_once(origin: Made) -> None:
    check(*origin)
    check(*origin, minPartitions=7)


def test_rows_of_ledgers_have_their_columns(origin: Made) -> None:
    path, _ = origin
    row = read_table(path, ledgers="1", includeMetadata=True, includeHeaders=True).to_pylist()[0]
    assert (row["ledgerId"], row["entryId"], row["offset"], row["value"]) == (1, 0, 0, value_of(1, 0))
    assert (row["topic"], row["partition"], row["headers"], row["crcOk"]) == (None, -1, [], True)
    assert (row["segment"], row["position"], row["bookie"]) == (None, None, None)
    assert column(path, "entryId", ledgers="0", startingOffsets=17, endingOffsets=19) == [17, 18]
    assert sorted(column(path, "ledgerId", ledgers="1, 3", endingOffsets=1)) == [1, 3]


@pytest.mark.parametrize("lost", range(4))
def test_a_bookies_directory_is_missing(sample: Made, lost: int) -> None:
    shutil.rmtree(sample[0] / f"bookie-{lost}")
    check(*sample)


def test_a_bookies_directory_goes_behind_the_plan(sample: Made) -> None:
    path, places = sample
    options = options_of(path, columns="ledgerId,entryId")
    tasks = plan(options)
    shutil.rmtree(path / "bookie-1")
    rows = read_slices(options, tasks).to_pylist()
    assert Counter((row["ledgerId"], row["entryId"]) for row in rows) == Counter(places)


@pytest.mark.parametrize("place", [(0, 0), (0, 1234), (0, 3999), (3, 5), (5, 499)])
def test_entry_with_a_corrupt_copy_is_read_from_another_bookie(sample: Made, place: Place) -> None:
    path, places = sample
    held = [row["bookie"] for row in read_table(path, columns="ledgerId,entryId,bookie", replica="all").to_pylist()
            if (row["ledgerId"], row["entryId"]) == place]  # fmt: skip
    for bookie in held:
        corrupt(path, place, bookie)
        check(path, places)
        check(path, places, verifyChecksum=False)  # somebody else has it: that is known by looking
        corrupt(path, place, bookie)  # as it was


def test_different_copies_are_corrupt(sample: Made) -> None:
    """Also where there is no index, and one is made of what is intact."""
    path, places = sample
    for index in path.glob("bookie-*/log/*.led"):
        index.unlink()
    for entry in range(50, 60):
        held = read_table(path, columns="entryId,bookie", replica="all", ledgers="4", startingOffsets=entry,
                          endingOffsets=entry + 1).to_pylist()  # fmt: skip
        corrupt(path, (4, entry), held[entry % 3]["bookie"])
    check(path, places)


def test_an_entry_without_a_sound_copy_is_unreadable(sample: Made) -> None:
    path, places = sample
    corrupt(path, (0, 1500))
    with pytest.raises(UnreadableError, match="ledger 0: entry 1500 cannot be read"):
        values(path)
    check(path, [place for place in places if place != (0, 1500)], mode="DROPMALFORMED")
    bad = [row for row in read_table(path, mode="PERMISSIVE", includeMetadata=True).to_pylist() if not row["crcOk"]]
    assert [(row["ledgerId"], row["value"], row["_corrupt_record"]) for row in bad] == [(0, None, b"")]


def test_range_with_an_unreadable_entry_raises_unreadable_error(sample: Made) -> None:
    """It is read again with new metadata by a job of its own, which ends here, too."""
    path, _ = sample
    corrupt(path, (3, 1))
    with survey_stored(path) as view:
        metadata = load_ledger(view.runtime.metadata, 3).metadata
        with LedgerReader(metadata, ledger_key(b""), view.runtime) as reader:
            assert reader.read_range(2, 5).result(30).values() == [value_of(3, entry) for entry in (2, 3, 4)]
            with pytest.raises(UnreadableError, match="entry 1 cannot be read"):
                reader.read_range(1, 5).result(30)


def test_few_segments_are_held_at_a_time(origin: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored_log, "SEGMENTS_MAX", 1)
    check(*origin)


# ---- copies ----------------------------------------------------------------------------------------------------


def test_every_copy_of_an_entry_is_read_on_request(origin: Made) -> None:
    path, places = origin
    copies_of = {4: 3}
    assert copies(path) == Counter({place: copies_of.get(place[0], 2) for place in places})


def test_copies_of_one_bookie_are_read(origin: Made) -> None:
    path, _ = origin
    (bookie,) = set(column(path, "bookie", replica="bookie-2"))
    assert bookie.startswith("bookie-2@")
    by_name = read_table(path, replica="bookie-2", includeMetadata=True)
    assert by_name.equals(read_table(path, replica=bookie, includeMetadata=True))
    everything = read_table(path, replica="all", columns="bookie,ledgerId,entryId").to_pylist()
    rows = [(row["ledgerId"], row["entryId"]) for row in everything if row["bookie"] == bookie]
    assert rows == list(zip(by_name["ledgerId"].to_pylist(), by_name["entryId"].to_pylist(), strict=True))
    with pytest.raises(ConfigError, match=r"replica: expected any, all or one of bookie-0@.*, found 'bookie-9'"):
        plan(options_of(path, replica="bookie-9"))


def test_deleted_ledgers_have_no_rows(sample: Made) -> None:
    path, places = sample
    with embedded(path) as cluster:
        cluster.delete_ledger(3)
        assert values(path).keys() == {place for place in places if place[0] != 3}
        assert 3 not in {ledger for ledger, _ in copies(path)}
        assert copies(path, ledgers="3-4").keys() == {place for place in places if place[0] == 4}


def test_a_ledger_goes_behind_the_plan(sample: Made) -> None:
    path, _ = sample
    with embedded(path) as cluster:
        topic = cluster.topic("t", durability="appended")
        topic.publish(b"message")
        topic.close()
        options = options_of(path, topics="t", columns="value")
        tasks = plan(options)
        cluster.topics.delete("t")
    with pytest.raises(NoSuchLedgerError, match="was deleted; set failOnDataLoss to false"):
        read_slices(options, tasks)
    lenient = options_of(path, topics="t", columns="value", failOnDataLoss=False)
    assert len(read_slices(lenient, tasks)) == 0


# ---- while it runs ---------------------------------------------------------------------------------------------


def test_an_open_ledger_is_read_up_to_what_is_confirmed(tmp_path: Path) -> None:
    with embedded(tmp_path / "data") as cluster, cluster.create_ledger(3, 2, 2, durability="appended") as ledger:
        ledger.append_batch([value_of(ledger.id, n) for n in range(10)])
        ledger.append_batch([value_of(ledger.id, n) for n in range(10, 20)])
        options = options_of(tmp_path / "data", columns="entryId")
        tasks = plan(options)
        planned = read_slices(options, tasks)["entryId"].to_pylist()
        assert planned == list(range(len(planned)))
        assert 10 <= len(planned) <= 20  # the second batch says that the first is confirmed
        ledger.append_batch([b"later"] * 10)
        assert read_slices(options, tasks)["entryId"].to_pylist() == planned
    assert len(values(tmp_path / "data")) == 30


def test_reading_a_cluster_writes_no_file(origin: Made) -> None:
    path, places = origin
    before = {file: file.read_bytes() for file in path.rglob("*") if file.is_file() and "metadata" not in file.name}
    stored = (path / "metadata.sqlite").read_bytes()
    check(path, places)
    assert {file: file.read_bytes() for file in before} == before
    assert (path / "metadata.sqlite").read_bytes() == stored


def test_entries_that_were_moved_behind_the_plan(sample: Made) -> None:
    """As a bookie does which wants the space of the deleted ledgers around them."""
    path, places = sample
    options = options_of(path, columns="ledgerId,entryId,value")
    tasks = plan(options)
    moved = 0
    for folder in path.glob("bookie-*/log"):
        with LedgerLog(folder, LogConfig.of({"durability": "appended"})) as log:
            old = [base for base, _ in log.segments()]
            for ledger in log.ledgers():
                log.append(log.read(ledger, 0, 1 << 40, 1 << 30)[0])
            for base in old:
                log.punch_hole(base)
            moved += len(old)
    assert moved > 3
    rows = read_slices(options, tasks).to_pylist()
    assert {(row["ledgerId"], row["entryId"]) for row in rows} == set(places)
    assert len(rows) == len(places)


def test_ledgers_with_passwords_are_read_with_the_option(tmp_path: Path) -> None:
    with (
        embedded(tmp_path / "data") as cluster,
        cluster.create_ledger(3, 3, 2, durability="appended", password=b"swordfish") as ledger,
    ):
        ledger.append(b"secret")
    assert column(tmp_path / "data", "value", password="swordfish") == [b"secret"]
    with pytest.raises(UnauthorizedError, match="the option password is not the password of this ledger"):
        plan(options_of(tmp_path / "data"))


def test_an_executor_that_does_not_see_the_directory_says_so(sample: Made) -> None:
    path, _ = sample
    options = options_of(path, columns="value")
    tasks = plan(options)
    path.rename(path.with_name("elsewhere"))
    with pytest.raises(NotALogError, match=f"{path}: no such directory on host {socket.gethostname()}"):
        read_slices(options, tasks)


# ---- tasks -----------------------------------------------------------------------------------------------------


def test_tiny_ledgers_share_tasks(tmp_path: Path) -> None:
    with embedded(tmp_path / "data") as cluster:
        places = fill(cluster, [3] * 120, (3, 2, 2))
    tasks = plan(options_of(tmp_path / "data"))
    assert [len(task) for task in tasks] == [120]
    options = options_of(tmp_path / "data", maxPartitionBytes=bytes_planned(tasks) // 5, columns="ledgerId,entryId")
    tasks = plan(options)
    assert 5 <= len(tasks) <= 6
    rows = read_slices(options, tasks).to_pylist()
    assert [(row["ledgerId"], row["entryId"]) for row in rows] == places


def test_a_large_ledger_is_cut(origin: Made) -> None:
    path, _ = origin
    tasks = plan(options_of(path, ledgers="0", minPartitions=5))
    sizes = [bytes_planned([task]) for task in tasks]
    assert len(tasks) == 5
    assert max(sizes) - min(sizes) < max(sizes) // 20
    assert len(values(path, ledgers="0", minPartitions=5)) == 4000


def test_a_cluster_without_ledgers_has_no_rows(tmp_path: Path) -> None:
    with embedded(tmp_path / "data"):
        pass
    assert values(tmp_path / "data") == {}
    assert copies(tmp_path / "data") == {}


def test_batches_of_a_cluster_are_bounded_in_rows_and_bytes(origin: Made) -> None:
    options = options_of(origin[0], batchRows=70, batchBytes=5000, columns="value")
    batches = [batch for task in plan(options) for batch in batches_of(options, task)]
    assert max(batch.num_rows for batch in batches) <= 70
    sizes = [sum(len(value) for value in batch["value"].to_pylist()) for batch in batches]
    assert max(sizes) <= 5000
    assert sum(batch.num_rows for batch in batches) == len(origin[1])


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"startingOffsets": '{"a": {"0": 1}}'}, "startingOffsets: entries are numbered by ledger"),
        ({"replica": "all", "topics": "a"}, "replica: topics are read once, from any replica"),
        ({"subscription": "s"}, "subscription: expected with topics or topicsPattern"),
        ({"topics": "a", "topicsPattern": "b"}, "topics, topicsPattern: expected at most one of them"),
        (
            {"topics": "a", "subscription": "s", "startingOffsets": "3"},
            "startingOffsets, subscription: expected at most",
        ),
        ({"cluster": "sqlite:x"}, "cluster, path: expected at most one of them"),
        ({"topicsPattern": "("}, "topicsPattern: expected a regular expression, found"),
    ],
)
def test_options_that_do_not_fit_ledgers_are_refused(origin: Made, options: dict[str, object], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        plan(options_of(origin[0], **options))


@pytest.mark.parametrize("options", [{"replica": "all"}, {"topics": "a"}])
def test_cluster_options_on_a_log_raise_config_error(tmp_path: Path, options: dict[str, object]) -> None:
    pyreplog.open(tmp_path / "log").close()
    with pytest.raises(ConfigError, match="log is no cluster; expected an embedded cluster, or the option cluster"):
        plan(options_of(tmp_path / "log", **options))


def test_rows_of_tiny_ledgers_come_together(origin: Made) -> None:
    options = options_of(origin[0], ledgers="1,3-5", columns="ledgerId,entryId")
    (task,) = plan(options)
    (batch,) = batches_of(options, task)
    assert batch.num_rows == 1 + 700 + 300 + 500
