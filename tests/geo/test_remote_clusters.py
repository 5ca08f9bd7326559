"""Other clusters: each has one name, and credentials are files whose content is never shown."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from pyreplog import (
    Cluster,
    ClusterCredentialsError,
    ClusterExistsError,
    ClusterInUseError,
    ClusterUnreachableError,
    InvalidArgumentError,
    NoSuchClusterError,
    TopicServer,
)
from pyreplog.geo.clusters import CLUSTERS, add_cluster, load_clusters
from pyreplog.geo.geo_replication import GeoReplication
from pyreplog.metadata.layout import cluster_id
from pyreplog.metadata.memory import MemoryStore
from tests.geo.fakes import remote

SECRET, OTHER = b"0123456789abcdef-b", b"fedcba9876543210-x"


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster.embedded(tmp_path / "a", bookies=1) as cluster:
        yield cluster


@pytest.fixture
def there(tmp_path: Path) -> Iterator[tuple[Cluster, str]]:
    with Cluster.embedded(tmp_path / "b", bookies=1) as cluster, TopicServer(cluster, secret=SECRET) as server:
        yield cluster, f"pyreplog://{server.address}"


@pytest.fixture
def secret_file(tmp_path: Path) -> Path:
    path = tmp_path / "b.secret"
    path.write_bytes(SECRET + b"\n")
    return path


def test_add_cluster_stores_the_identity_of_the_remote_cluster(
    here: Cluster, there: tuple[Cluster, str], secret_file: Path
) -> None:
    cluster, url = there
    added = here.geo.add_cluster("b", url, secret_file=secret_file)
    assert added.id == cluster_id(cluster.metadata) != cluster_id(here.metadata)
    assert here.geo.clusters() == {"b": added}
    assert here.geo.add_cluster("b", f"{url},other:1", secret_file=secret_file).url == f"{url},other:1"
    assert added.secret_file == str(secret_file)
    stored = here.metadata.get(f"{CLUSTERS}/b")
    assert stored is not None and SECRET not in stored.value


def test_two_names_for_one_cluster(here: Cluster, there: tuple[Cluster, str], secret_file: Path) -> None:
    _, url = there
    here.geo.add_cluster("b", url, secret_file=secret_file)
    with pytest.raises(ClusterExistsError, match="which has the name b already"):
        here.geo.add_cluster("b2", url, secret_file=secret_file)
    assert [*here.geo.clusters()] == ["b"]


def test_name_of_another_cluster_raises_cluster_exists_error(here: Cluster) -> None:
    here.geo.add_cluster("b", "pyreplog://b:1", uuid="0B" * 16)
    with pytest.raises(ClusterExistsError, match=r"the name is in use for the cluster 0b0b.* choose another name"):
        here.geo.add_cluster("b", "pyreplog://c:1", uuid="0c" * 16)
    assert here.geo.clusters()["b"].uuid == "0b" * 16


def test_a_cluster_is_not_its_own_target(there: tuple[Cluster, str], secret_file: Path) -> None:
    cluster, url = there
    with pytest.raises(ClusterExistsError, match="is this cluster itself"):
        cluster.geo.add_cluster("me", url, secret_file=secret_file)


def test_another_process_is_quicker_with_another_name() -> None:
    """The other process adds the cluster after this one has read the names, and before it writes."""

    class Overtaken(MemoryStore):
        def _create(self, key: str, value: bytes) -> int:
            if key == f"{CLUSTERS}/b2":
                super()._create(f"{CLUSTERS}/b", remote("b").encode())
            return super()._create(key, value)

    with Overtaken() as store:
        with pytest.raises(ClusterExistsError, match="which has the name b already"):
            add_cluster(store, "b2", remote("b"))
        assert [*load_clusters(store)] == ["b"]


def test_a_cluster_whose_server_does_not_answer_is_not_added(here: Cluster) -> None:
    # the port is bound but not listening: connections are refused, and no other process can take it
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        url = f"pyreplog://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(ClusterUnreachableError, match=f"no server at {url}"):
            here.geo.add_cluster("b", url)
    assert here.geo.clusters() == {}


@pytest.mark.parametrize("url", ["b:7400", "pyreplog://", "pyreplog://b"])
def test_malformed_urls_of_clusters_are_refused(here: Cluster, url: str) -> None:
    with pytest.raises(InvalidArgumentError, match="pyreplog://host:port"):
        here.geo.add_cluster("b", url, uuid="0b" * 16)


@pytest.mark.parametrize("uuid", ["0b", "x" * 32, "0b" * 17])
def test_malformed_uuids_of_clusters_are_refused(here: Cluster, uuid: str) -> None:
    with pytest.raises(InvalidArgumentError, match="32 hexadecimal digits"):
        here.geo.add_cluster("b", "pyreplog://b:1", uuid=uuid)


def test_a_wrong_secret_names_the_file_and_not_the_secret(
    here: Cluster, there: tuple[Cluster, str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "wrong.secret"
    path.write_bytes(OTHER)
    with pytest.raises(ClusterCredentialsError) as caught:
        here.geo.add_cluster("b", there[1], secret_file=path)
    assert str(path) in str(caught.value) and "refuse the secret" in str(caught.value)
    with pytest.raises(ClusterCredentialsError, match="no file: give the secret"):
        here.geo.add_cluster("b", there[1])
    shown = str(caught.value) + repr(caught.value.__cause__) + caplog.text
    assert OTHER.decode() not in shown and SECRET.decode() not in shown


@pytest.mark.parametrize("content", [None, b"short", b"x" * (1 << 21)])
def test_a_secret_file_that_cannot_be_used(here: Cluster, tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "b.secret"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ClusterCredentialsError, match=r"b\.secret") as caught:
        here.geo.add_cluster("b", "pyreplog://b:1", secret_file=path, uuid="0b" * 16)
    assert content is None or content.decode() not in str(caught.value)


def test_certificates_that_cannot_be_used(here: Cluster, tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("no certificate")
    with pytest.raises(ClusterCredentialsError, match=r"ca\.pem"):
        here.geo.add_cluster("b", "pyreplog://b:1", tls_ca=tmp_path / "ca.pem", uuid="0b" * 16)
    with pytest.raises(ClusterCredentialsError, match="expected with tls_ca"):
        here.geo.add_cluster("b", "pyreplog://b:1", tls_key=tmp_path / "ca.pem", uuid="0b" * 16)


def test_a_cluster_that_policies_name_is_not_removed(here: Cluster) -> None:
    here.geo.add_cluster("b", "pyreplog://b:1", uuid="0b" * 16)
    here.geo.set_policy("shop.", prefix=True, targets=["b"])
    with pytest.raises(ClusterInUseError, match=r"1 policies name it \(shop\.\*\)"):
        here.geo.remove_cluster("b")
    here.geo.remove_cluster("b", force=True)
    assert here.geo.clusters() == {} and here.geo.policy("shop.x") is not None
    with pytest.raises(NoSuchClusterError, match="known clusters: none"):
        here.geo.remove_cluster("b")


def test_malformed_names_of_clusters_are_refused(here: Cluster) -> None:
    for name in ("", "a\nb", "x" * 201):
        with pytest.raises(InvalidArgumentError):
            here.geo.add_cluster(name, "pyreplog://b:1", uuid="0b" * 16)


def test_an_object_is_made_when_it_is_needed_and_refuses_after_close(tmp_path: Path) -> None:
    with Cluster.embedded(tmp_path / "a", bookies=1) as cluster:
        geo = cluster.geo
        assert isinstance(geo, GeoReplication) and geo is cluster.geo and geo.replicator_manager is None
    with pytest.raises(Exception, match="closed"):
        geo.clusters()
