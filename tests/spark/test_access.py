"""TLS and a secret: readers of bookies and writers to servers are let in with files that they only name."""

from __future__ import annotations

import pickle
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import pyreplog
from pyreplog import reports
from pyreplog.bookie.config import BookieConfig
from pyreplog.bookie.node import BookieNode
from pyreplog.cli.app import main
from pyreplog.errors import ConfigError, ReplogError
from pyreplog.ledger.ledger_store import StoredLedgers
from pyreplog.metadata.sqlite import SQLiteStore
from pyreplog.net.credentials import Credentials
from pyreplog.net.handshake import Secret
from pyreplog.reports.copies.replication_lag import ReplicationLag
from pyreplog.spark.write.options import WriteOptions
from pyreplog.tables.options import ReadOptions
from pyreplog.tables.planning import plan
from pyreplog.topic.server.topic_server import TopicServer
from tests.net.test_tls import Certificates
from tests.spark.clusters import KEPT, embedded
from tests.spark.reading import column, options_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SECRET = "correct horse battery staple"
COUNT = 50


class Guarded:
    """Bookies, and a server of topics, that speak TLS, want certificates of clients, and a secret."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        certificates = Certificates(folder)
        self.files = {
            "secretFile": str(folder / "secret"),
            "tlsCa": str(certificates.trusted.file),
            "tlsCert": str(certificates.trusted.issue("client")),
        }
        (folder / "secret").write_text(SECRET + "\n")
        self.stranger = str(certificates.stranger.issue("client"))
        tls, config = certificates.server(mutual=True), BookieConfig(segment_bytes=8 << 20, durability="appended")
        store = stack.enter_context(SQLiteStore(folder / "metadata"))
        for name in ("b0", "b1"):
            node = BookieNode(
                folder / name,
                name,
                store,
                config,
                ledgers=StoredLedgers(store),
                secret=Secret(SECRET.encode()),
                tls=tls,
            )
            stack.callback(node.close)
        self.url = f"sqlite:{folder / 'metadata'}"
        client = certificates.client(certificates.trusted)
        self.cluster = stack.enter_context(pyreplog.Cluster.connect(self.url, secret=SECRET.encode(), tls=client))
        served = stack.enter_context(pyreplog.Cluster.connect(self.url, secret=SECRET.encode(), tls=client))
        server = stack.enter_context(TopicServer(served, secret=SECRET.encode(), tls=tls))
        self.server_url = f"pyreplog://{server.address}"
        self.served = served


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    with ExitStack() as stack:
        guarded = Guarded(tmp_path_factory.mktemp("guarded"), stack)
        topic = guarded.cluster.topic("orders", ensemble=2, durability="appended", **KEPT)
        topic.publish_batch([b"%d" % n for n in range(COUNT)])
        topic.close()
        yield guarded


def test_readers_use_secret_and_certificates_by_file_name(guarded: Guarded) -> None:
    """The plan names files, and holds no secret."""
    options = options_of(None, cluster=guarded.url, topics="orders", columns="offset", **guarded.files)
    travels = pickle.dumps((plan(options), options))
    assert SECRET.encode() not in travels
    assert guarded.files["secretFile"].encode() in travels
    values = column(None, "value", cluster=guarded.url, topics="orders", **guarded.files)
    assert values == [b"%d" % n for n in range(COUNT)]


@pytest.mark.parametrize("left_out", ["secretFile", "tlsCa", "tlsCert"])
def test_readers_without_secret_or_certificate_are_refused(guarded: Guarded, left_out: str) -> None:
    files = {name: file for name, file in guarded.files.items() if name != left_out}
    if left_out == "tlsCa":
        del files["tlsCert"]
    with pytest.raises(ReplogError) as caught:
        column(None, "value", cluster=guarded.url, topics="orders", **files)
    assert SECRET not in str(caught.value)


def test_spark_reads_and_writes_with_secret_and_certificates(spark: SparkSession, guarded: Guarded) -> None:
    reader = spark.read.format("pyreplog").options(cluster=guarded.url, topics="orders", **guarded.files)
    frame = reader.load()
    assert sorted(int(row.value) for row in frame.collect()) == list(range(COUNT))
    assert SECRET not in str(frame._jdf.queryExecution())  # type: ignore[operator]
    copy = guarded.served.topic("copy", ensemble=2, durability="appended", deduplicate=True, **KEPT)
    writer = frame.select("value").write.format("pyreplog").mode("append")
    writer.options(cluster=guarded.server_url, topic="copy", **guarded.files).save()
    values = [int(bytes(value)) for batch in copy.read() for value in batch.values()]
    assert sorted(values) == list(range(COUNT))
    with pytest.raises(Exception, match=r"pyreplog\.errors\.net\.\w+Error") as caught:
        writer.options(tlsCert=guarded.stranger).save()
    assert SECRET not in str(caught.value)


def test_a_report_by_its_command(guarded: Guarded, tmp_path: Path) -> None:
    from pyarrow import parquet

    files = guarded.files
    arguments = ["report", guarded.url, "-o", str(tmp_path / "r.html"), "--parquet", str(tmp_path)]
    credentials = ["--secret-file", files["secretFile"], "--tls-ca", files["tlsCa"], "--tls-cert", files["tlsCert"]]
    assert main([*arguments, *credentials, "--only", "partition_skew"]) == 0
    rows = parquet.read_table(tmp_path / "partition_skew.parquet").to_pylist()
    assert [row["entries"] for row in rows if row["topic"] == "orders"] == [COUNT]


def test_a_copy_that_lets_others_in(guarded: Guarded, tmp_path: Path) -> None:
    """Files that the source takes are nothing to a copy in a directory; a secret takes the place of a file with one."""
    from pyarrow import parquet

    copied = 40
    with embedded(tmp_path / "copy") as cluster:
        topic = cluster.topic("orders", durability="appended", **KEPT)
        topic.publish_batch([b"x"] * copied, properties=[{"original-offset": str(n)} for n in range(copied)])
        topic.close()
    source = {"cluster": guarded.url, "topics": "orders", **guarded.files}
    for to, missing in (
        ({"path": str(tmp_path / "copy")}, COUNT - copied),
        ({"cluster": guarded.url, "secret": SECRET}, COUNT),
    ):
        (row,) = reports.run("replication_lag", source, to=to).to_pylist()
        assert (row["to_cluster"], row["missing_entries"]) == (to.get("path", guarded.url), missing)
    files = guarded.files
    credentials = ["--secret-file", files["secretFile"], "--tls-ca", files["tlsCa"], "--tls-cert", files["tlsCert"]]
    arguments = [
        "-o",
        str(tmp_path / "r.html"),
        "--parquet",
        str(tmp_path),
        "--only",
        "replication_lag",
        "--topic",
        "orders",
    ]
    for here, url, missing in (
        (guarded.url, str(tmp_path / "copy"), COUNT - copied),
        (str(tmp_path / "copy"), guarded.url, copied),
    ):
        assert main(["report", here, "--copy", url, *arguments, *credentials]) == 0
        (row,) = parquet.read_table(tmp_path / "replication_lag.parquet").to_pylist()
        assert (row["from_cluster"], row["to_cluster"], row["missing_entries"]) == (here, url, missing)
    assert SECRET not in repr(ReplicationLag({"secret": SECRET}))
    assert SECRET not in repr(ReadOptions.of({"path": "a", "view": "v", "viewOptions": f'{{"to": "{SECRET}"}}'}))


# ---- mistakes --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("of", [ReadOptions.of, WriteOptions.of])
@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"tlsCert": "c"}, "tlsCert: expected with tlsCa, found without"),
        ({"tlsCa": "a", "tlsKey": "k"}, "tlsKey: expected with tlsCert, found without"),
        ({"secret": "s", "secretFile": "f"}, "secret, secretFile: expected at most one of them, found 2"),
        ({"tlsCa": " "}, r"(?i)tlsca: expected .*, found nothing"),
        ({"secretFile": ""}, r"(?i)secretfile: expected .*, found nothing"),
    ],
)
def test_options_that_do_not_go_together(of: type, given: dict[str, str], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        of({"cluster": "pyreplog://h:1", **given})


def test_files_of_what_is_no_cluster() -> None:
    with pytest.raises(ConfigError, match="tlsCa: expected with cluster, found with some/log"):
        ReadOptions.of({"path": "some/log", "tlsCa": "a"})


def test_files_that_a_host_does_not_see(tmp_path: Path) -> None:
    bad = tmp_path / "bad.pem"
    bad.write_text("nothing")
    host = f"on host {socket.gethostname()}, found: "
    with pytest.raises(ConfigError, match=f"secretFile: expected a file that holds the secret, {host}.*nowhere"):
        Credentials(secret_file=str(tmp_path / "nowhere")).read_secret()
    with pytest.raises(ConfigError, match=rf"tlsCa: expected certificates in .*bad.pem, {host}"):
        Credentials(tls_ca=str(bad)).context()
    empty = tmp_path / "empty"
    empty.write_text("\n")
    with pytest.raises(ConfigError, match=r"secretFile: expected a secret in .*empty, found nothing"):
        Credentials(secret_file=str(empty)).read_secret()


def test_a_certificate_without_a_key(guarded: Guarded) -> None:
    credentials = Credentials(tls_ca=guarded.files["tlsCa"], tls_cert=guarded.files["tlsCa"])
    with pytest.raises(ConfigError, match="tlsCert, tlsKey: expected a certificate with its key, unencrypted, in "):
        credentials.context()
