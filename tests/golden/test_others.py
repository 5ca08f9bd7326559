"""Clusters, members of groups, backups and offloaded logs of every released version of the format are read, and go on."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest

import pyreplog
from pyreplog.errors import LockedError, MetadataLayoutError
from pyreplog.ha.protocol.members import MembersFile
from pyreplog.ha.relay.position_file import PositionFile
from pyreplog.ledger.migration import migrate_embedded
from pyreplog.log.backup.restoring import restore
from pyreplog.log.files import RealFiles
from pyreplog.log.fsck import check
from pyreplog.metadata.sqlite import SQLiteStore
from pyreplog.stream.terms import TermsFile
from tests.golden.others import ACKED, CODECS, KEYS, POSITION, START_US, VALUES, VERSION
from tests.spark.reading import column

ARCHIVES = sorted(Path(__file__).parent.glob("others-v*.tar.gz"))


@pytest.fixture(params=ARCHIVES, ids=lambda path: path.name)
def golden(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    with tarfile.open(request.param) as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path


def test_archive_of_other_formats_of_the_present_version_exists() -> None:
    assert {"others-v1.tar.gz", f"others-v{VERSION}.tar.gz"} <= {path.name for path in ARCHIVES}


def test_a_cluster_of_layout_1_is_refused_until_it_is_migrated(tmp_path: Path) -> None:
    with tarfile.open(ARCHIVES[0]) as archive:
        archive.extractall(tmp_path, filter="data")
    folder = tmp_path / "cluster"
    for _ in range(2):
        with pytest.raises(MetadataLayoutError, match="pyreplog cluster migrate"):
            pyreplog.Cluster.embedded(folder, bookies=2)
    with SQLiteStore(folder / "metadata.sqlite") as store:
        ledgers = len([name for name in store.list("/ledgers") if len(name) == 19])
    assert (migrate_embedded(folder), migrate_embedded(folder)) == (ledgers, 0) and ledgers > 3
    with pyreplog.Cluster.embedded(folder, bookies=2) as cluster:
        assert len(cluster.ledgers()) >= ledgers
        with pytest.raises(LockedError):
            migrate_embedded(folder)


def test_a_golden_cluster_is_read_and_goes_on(golden: Path) -> None:
    for bookie in (golden / "cluster").glob("bookie-*"):
        assert check.check(bookie / "log").clean
    migrate_embedded(golden / "cluster")  # of layout 1; nothing to do in later ones
    clock = pyreplog.ManualClock(START_US + 1_000_000)
    with pyreplog.Cluster.embedded(golden / "cluster", bookies=2, clock=clock) as cluster:
        metadata = cluster.ledger_metadata(0)
        assert (metadata.custom, metadata.last_entry, metadata.ack_quorum) == ({"of": "golden"}, 499, 2)
        with cluster.open_ledger(0, password=b"secret") as ledger:
            rows = [(record.value, record.key) for batch in ledger.read() for record in batch]
        assert rows == list(zip(VALUES, KEYS, strict=True)) * 5
        assert cluster.count_copies(0, password=b"secret").tolist() == [2] * 500
        for codec in CODECS:
            goes_on(cluster.topic(codec, create=False))


def goes_on(topic: pyreplog.Topic) -> None:
    """With its messages, what is acknowledged, and what its producer has published."""
    rows = [message for batch in topic.read() for message in batch]
    assert [(message.value, message.key) for message in rows] == list(zip(VALUES, KEYS, strict=True))
    assert [message.sequence for message in rows] == list(range(0, 200, 2))
    assert {message.properties["n"] for message in rows} == {b"1"}
    (subscriptions,) = topic.stats().subscriptions
    assert (subscriptions.backlog_messages, subscriptions.properties) == (100 - len(ACKED), {"a": "b"})
    producer = topic.producer("p")
    assert producer.last_sequence == 198
    producer.publish(b"again", sequence=100)
    assert (producer.publish(b"new", sequence=200), topic.end) == (100, 101)
    with topic.subscribe("s", type="shared") as consumer:
        messages = consumer.receive(timeout=30.0, max_messages=101 - len(ACKED))
        assert [message.offset for message in messages] == [at for at in range(101) if at not in ACKED]


def test_a_golden_backup_is_restored(golden: Path) -> None:
    restore(golden / "backup", golden / "restored")
    with pyreplog.open(golden / "restored") as log, pyreplog.open(golden / "log", "r") as original:
        assert log[:] == original[:] == VALUES * 5
        assert log.append(b"new") == 500


def test_a_golden_offloaded_log_is_read(golden: Path) -> None:
    values = column(f"file://{golden}/offloaded", "value")
    assert values == (VALUES * 5)[: len(values)] and len(values) > 300


def test_a_member_of_a_group(golden: Path) -> None:
    directory, files = golden / "member", RealFiles()
    terms, members = TermsFile(directory, files), MembersFile(directory, files).members
    assert (terms.promised.number, terms.promised.master, len(terms.history.starts)) == (1, "a", 1)
    assert members is not None and members.quorum == (("a", "b"), 0)
    with pyreplog.open(directory, "r") as log:
        assert log[:] == VALUES


def test_the_position_of_an_applier(golden: Path) -> None:
    assert PositionFile(golden / "applied").load() == POSITION
