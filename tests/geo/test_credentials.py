"""TLS and secrets between two clusters, in both directions: a refusal is reported, and new files are enough to go on."""

from __future__ import annotations

import datetime
import ssl
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from pyreplog import Cluster, ClusterCredentialsError, TopicServer
from pyreplog.geo.replicator_status import ReplicatorStatus
from pyreplog.net.handshake import Secret
from pyreplog.net.tls import TlsContext
from tests.geo.sites import SYNCED
from tests.net.test_tls import Authority
from tests.topic.remoting import Wire
from tests.waiting import until

YEAR = datetime.timedelta(days=365)


class Place:
    """A cluster whose server demands a secret, and certificates signed by an authority of its own."""

    def __init__(self, stack: ExitStack, folder: Path, name: str) -> None:
        self.name, self.folder = name, folder
        self.authority = Authority(folder, f"ca-{name}")
        self.secret = Secret(name.encode() * 32)
        self.tls = TlsContext(self._context())
        self.cluster = stack.enter_context(Cluster.embedded(folder / name, bookies=1))
        self.server = stack.enter_context(TopicServer(self.cluster, secret=self.secret, tls=self.tls))
        self.wire = stack.enter_context(Wire(self.server.address))
        self.secret_file = folder / f"{name}.secret"
        self.secret_file.write_bytes(name.encode() * 32)
        self.client_file = folder / f"client-of-{name}.pem"  # the credentials that the other cluster uses here
        self.admit()

    def _context(self, age: datetime.timedelta = datetime.timedelta()) -> ssl.SSLContext:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(self.authority.file))
        context.load_cert_chain(self.authority.issue("server", age))
        context.verify_mode = ssl.CERT_REQUIRED
        return context

    def admit(self, age: datetime.timedelta = datetime.timedelta()) -> None:
        """Issue a certificate to the other cluster. A certificate of some age has expired."""
        self.client_file.write_bytes(self.authority.issue("client", age).read_bytes())

    def serve_with(self, age: datetime.timedelta = datetime.timedelta()) -> None:
        """Give the server another certificate, as SIGHUP does."""
        self.tls.replace(self._context(age))

    def know(self, other: Place) -> None:
        self.cluster.geo.add_cluster(
            other.name, f"pyreplog://{other.wire.address}", secret_file=other.secret_file,
            tls_ca=other.authority.file, tls_cert=other.client_file,
        )  # fmt: skip
        self.cluster.geo.set_policy("t", targets=[other.name], replicated_subscriptions=True)

    def row(self) -> ReplicatorStatus:
        return until(lambda: next(iter(self.cluster.geo.status("t")), None))

    def run_round(self) -> None:
        """Run a round of the manager, which reads changed files again."""
        manager = self.cluster.geo.replicator_manager
        assert manager is not None
        manager.round()

    @property
    def end(self) -> int:
        return int(self.cluster.topic("t", **SYNCED).end)

    def publish(self, *numbers: int) -> None:
        for number in numbers:
            self.cluster.topic("t", **SYNCED).publish(b"%d" % number)


@pytest.fixture
def places(tmp_path: Path) -> Iterator[tuple[Place, Place]]:
    with ExitStack() as stack:
        a, b = Place(stack, tmp_path, "a"), Place(stack, tmp_path, "b")
        a.know(b)
        b.know(a)
        a.publish(1)
        b.publish(2)
        until(lambda: a.end == b.end == 2)
        yield a, b


def test_messages_and_acknowledgements_go_both_ways(places: tuple[Place, Place]) -> None:
    a, b = places
    with a.cluster.topic("t").subscribe("s", start="earliest", type="shared") as consumer:
        message = consumer.receive(timeout=20.0)
        consumer.acknowledge(message)
        consumer.flush()
    until(lambda: any(row.is_ready and not row.error for row in a.cluster.geo.readiness("t")))
    with b.cluster.topic("t").subscribe("s", type="shared") as consumer:
        assert consumer.receive(timeout=20.0).value != message.value
    assert not a.row().alarm and not b.row().alarm


@pytest.mark.parametrize("kind", ["client certificate", "server certificate", "secret"])
def test_expired_credentials_are_reported_at_the_next_connection_until_files_are_replaced(
    places: tuple[Place, Place], kind: str
) -> None:
    """Existing connections go on. The next one is refused and the status says why, until new files are in place."""
    a, b = places
    if kind == "client certificate":
        b.admit(YEAR)
        refused, file = "certificates are refused", str(b.client_file)
    elif kind == "server certificate":
        b.serve_with(YEAR)
        refused, file = "certificates are refused", str(b.authority.file)
    else:
        b.secret.replace(b"another" * 8)
        refused, file = "refuse the secret", str(b.secret_file)
    a.run_round()
    a.publish(3)
    until(lambda: b.end == 3 and not a.row().unsent_messages)  # nothing is refused yet
    b.wire.cut()
    a.publish(4)
    until(lambda: refused in a.row().alarm)
    row = a.row()
    assert file in row.alarm and row.unsent_messages == 1 and b.end == 3
    assert "another" not in str(row)
    b.publish(5)
    until(lambda: a.end == 5)  # the opposite direction uses other credentials
    if kind == "client certificate":
        b.admit()
    elif kind == "server certificate":
        b.serve_with()
    else:
        b.secret_file.write_bytes(b"another" * 8)
    a.run_round()
    until(lambda: b.end == 5)
    until(lambda: not a.row().alarm and not a.row().unsent_messages)


def test_an_authority_is_exchanged(places: tuple[Place, Place]) -> None:
    """The file of authorities has both the old and the new one for a while, then the new one alone."""
    a, b = places
    former, b.authority = b.authority, Authority(b.folder, "ca-b-2")
    a.cluster.geo.add_cluster(  # the same path, written again
        "b", f"pyreplog://{b.wire.address}", secret_file=b.secret_file, tls_ca=former.file, tls_cert=b.client_file,
    )  # fmt: skip
    b.serve_with()
    b.admit()
    b.wire.cut()
    a.publish(3)
    until(lambda: "certificates are refused" in a.row().alarm)
    former.file.write_bytes(b.authority.file.read_bytes())
    a.run_round()
    until(lambda: b.end == 3)


def test_a_file_that_cannot_be_used_changes_nothing(places: tuple[Place, Place]) -> None:
    a, b = places
    good = b.client_file.read_bytes()
    b.client_file.write_bytes(b"nothing")
    a.run_round()
    b.wire.cut()
    a.publish(3)
    until(lambda: b.end == 3)
    b.client_file.write_bytes(good)
    a.run_round()


def test_add_cluster_with_an_expired_certificate_raises_cluster_credentials_error(places: tuple[Place, Place]) -> None:
    a, b = places
    b.serve_with(YEAR)
    with pytest.raises(ClusterCredentialsError, match=r"certificates are refused.*expired"):
        a.know(b)
