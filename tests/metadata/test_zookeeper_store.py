"""What only ZooKeeper does: servers stop, restart and lose their leader; sessions are suspended and expire."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kazoo.client import KazooClient
from kazoo.security import make_acl

from pyreplog.errors import (
    KeyExistsError,
    LeaseLostError,
    MetadataAccessError,
    MetadataUnavailableError,
    OutcomeUnknownError,
    ReplogError,
    VersionConflictError,
)
from pyreplog.metadata import LeaseState, MetadataStore, open_store
from pyreplog.metadata.zookeeper import ZooKeeperStore
from pyreplog.metadata.zookeeper_session import ZooKeeperSession
from tests.metadata.zookeeper import Ensemble, Server
from tests.waiting import until


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """One of its own, to be mistreated."""
    with Ensemble(tmp_path / "zookeeper", 1) as ensemble:
        yield ensemble.servers[0]


def host(server: Server) -> str:
    return f"127.0.0.1:{server.port}"


def be_patient(store: ZooKeeperStore, timeout: float) -> float:
    """For so many seconds, in calls from now on; how long it was before."""
    before, store._timeout, store._session._timeout = store._timeout, timeout, timeout
    return before


def test_stores_below_different_roots_are_separate(zookeeper, zookeeper_url):
    with open_store(f"{zookeeper_url}/one") as store, open_store(f"{zookeeper_url}/two") as two:
        store.create("/a", b"1")
        two.create("/a", b"2")
        assert (store.get("/a").value, two.get("/a").value) == (b"1", b"2")
    with open_store(f"zk://{zookeeper.hosts}") as whole:
        assert "zookeeper" not in whole.list("/") and "tests" in whole.list("/")
        seen: list[list[str]] = []
        with whole.watch("/", lambda key: seen.append(whole.list(key))):
            until(lambda: seen)
            whole.create("/at-the-top", b"")
            until(lambda: "at-the-top" in seen[-1])


def test_the_server_bounds_the_ttl(zookeeper, zookeeper_url):
    with open_store(zookeeper_url) as store, store.lease(1000) as lease:
        assert lease.ttl == 20
    session = ZooKeeperSession(
        zookeeper.hosts, ttl=0.15, timeout=60.0, listener=lambda state: None
    )  # nobody has to renew it
    assert session.ttl == 0.2
    session.close()


def test_open_without_a_server_raises_metadata_unavailable_error():
    with pytest.raises(MetadataUnavailableError, match=r"127\.0\.0\.1:1 "):
        open_store("zk://127.0.0.1:1", timeout=0.3)


def test_denied_access_of_zookeeper_is_a_typed_error(zookeeper, zookeeper_url):
    root = zookeeper_url.partition(zookeeper.hosts)[2]
    administrator = KazooClient(zookeeper.hosts)
    administrator.start(60)
    administrator.ensure_path(root)
    administrator.set_acls(root, [make_acl("world", "anyone", read=True)])
    administrator.stop()
    administrator.close()
    with open_store(zookeeper_url) as store, store.lease(10) as lease:
        assert store.list("/") == []
        for create in (store.create, lease.create):
            with pytest.raises(MetadataAccessError, match=r"/a/b: ZooKeeper denied access \(NoAuthError\): the ACLs"):
                create("/a/b", b"")


def test_a_server_that_is_gone_and_comes_back(server):
    """Nothing is sent while it is away; what was watched is heard of when it is back."""
    with open_store(f"zk://{host(server)}/root") as store:
        version = store.create("/a", b"one")
        seen: list[bytes] = []
        with store.watch("/a", lambda key: seen.append(store.get("/a").value)):
            until(lambda: seen[-1:] == [b"one"])
            server.kill()
            until(lambda: not store._session.connected)
            patience = be_patient(store, 0.2)
            calls = [
                lambda: store.get("/a"), lambda: store.list("/"), lambda: store.create("/b", b""),
                lambda: store.put("/a", b"two", version), lambda: store.delete("/a", version), lambda: store.lease(1),
            ]  # fmt: skip
            for call in calls:
                with pytest.raises(MetadataUnavailableError, match="no ZooKeeper server"):
                    call()
            be_patient(store, patience)
            server.start()
            with open_store(f"zk://{host(server)}/root") as other:
                assert other.get("/a").value == b"one" and other.get("/b") is None
                other.put("/a", b"three", version)
            until(lambda: seen[-1] == b"three")
            until(lambda: store._session.connected)
            store.put("/a", b"four", store.get("/a").version)
            until(lambda: seen[-1] == b"four")


def test_a_server_that_does_not_answer(server):
    """SIGSTOP in the middle: writes end unknown, and may be done afterwards; leases are in doubt, then held or lost."""
    with ZooKeeperStore(host(server), "/root", session_timeout=20.0) as store, store.lease(5.0) as lease:
        lease.create("/leased", b"")
        version = store.create("/a", b"one")
        be_patient(store, 0.4)
        server.stop()
        with pytest.raises(OutcomeUnknownError, match="answer"):
            store.put("/a", b"two", version)
        with pytest.raises(OutcomeUnknownError, match="answer"):
            store.create("/b", b"token")
        with pytest.raises(MetadataUnavailableError):
            store.get("/a")
        assert lease.state is not LeaseState.LOST
        until(lambda: lease.state is LeaseState.UNKNOWN)
        server.resume()
        until(lambda: lease.state is not LeaseState.UNKNOWN)
        with open_store(f"zk://{host(server)}/root") as other:
            assert other.get("/a").value in (b"one", b"two")
            stored = other.get("/leased")
            if lease.state is LeaseState.HELD:
                assert stored is not None
            else:
                until(lambda: other.get("/leased") is None or lease.state is LeaseState.HELD)


def test_a_store_is_closed_by_its_deadline(server):
    """kazoo waits for a server that does not answer, until the session is over."""
    store = ZooKeeperStore(host(server), "/root", timeout=60.0, session_timeout=40.0)
    lease = store.lease(20.0)
    lease.create("/leased", b"")
    server.stop()
    began = time.monotonic()
    store.end_calls_by(began + 1.0)
    with pytest.raises(MetadataUnavailableError):
        store.get("/leased")
    store.close()
    assert time.monotonic() - began < 8.0
    server.resume()


def end_session(server: Server, client_id: tuple[int, bytes], is_over: Callable[[], bool]) -> None:
    """Take over a session and close it: for its owner it has expired. The owner comes back for it at once, and may have
    it again before it is closed: then once more."""

    def take_and_close() -> bool:
        thief = KazooClient(host(server), client_id=client_id)
        thief.start(60)
        thief.stop()
        thief.close()
        return is_over()

    until(take_and_close)


def test_an_expired_session_loses_its_lease_and_nothing_else(server):
    lost = threading.Event()
    with open_store(f"zk://{host(server)}/root") as store, store.lease(20.0, on_loss=lost.set) as lease:
        lease.create("/leased", b"")
        seen: list[bool] = []
        with store.watch("/leased", lambda key: seen.append(store.get(key) is not None)):
            until(lambda: seen[-1:] == [True])
            end_session(
                server, lease._session_heartbeat.session._client.client_id, lambda: lease.state is LeaseState.LOST
            )
            assert lost.wait(60)
            until(lambda: seen[-1] is False)
            with pytest.raises(LeaseLostError, match="/again"):
                lease.create("/again", b"")
            with store.lease(20.0) as new:
                new.create("/leased", b"")
                until(lambda: seen[-1] is True)


def test_watches_outlive_their_session(server):
    with open_store(f"zk://{host(server)}/root") as store, open_store(f"zk://{host(server)}/root") as other:
        version = other.create("/a", b"0")
        seen: list[bytes] = []
        with store.watch("/a", lambda key: seen.append(store.get(key).value)):
            until(lambda: seen[-1:] == [b"0"])
            client = store._session._client
            before = client.client_id
            end_session(server, before, lambda: client.client_id not in (None, before))
            other.put("/a", b"1", version)
            until(lambda: seen[-1] == b"1")
            other.put("/a", b"2", other.get("/a").version)
            until(lambda: seen[-1] == b"2")


def test_close_ends_waiting_reads_of_a_store_without_servers(server):
    store = open_store(f"zk://{host(server)}/root", timeout=20)
    server.kill()
    until(lambda: not store._session.connected)
    raised: list[Exception] = []

    def read() -> None:
        try:
            store.get("/a")
        except ReplogError as error:
            raised.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    store.close()
    reader.join(60)
    assert [str(error).rpartition(" ")[2] for error in raised] == ["closed"]


# ---- an ensemble -----------------------------------------------------------------------------------------------


class Adder(threading.Thread):
    """Adds to a counter until told to stop; knows what was acknowledged and what was left unknown."""

    def __init__(self, store: MetadataStore) -> None:
        super().__init__()
        self.store, self.acked, self.unknown = store, 0, 0
        self.stopping = threading.Event()
        self.error: BaseException | None = None

    def run(self) -> None:
        while not self.stopping.is_set():
            try:
                stored = self.store.get("/counter")
                assert stored is not None
                self.store.put("/counter", b"%d" % (int(stored.value) + 1), stored.version)
                self.acked += 1
            except OutcomeUnknownError:
                self.unknown += 1
            except (VersionConflictError, MetadataUnavailableError):
                continue
            except BaseException as error:
                self.error = error
                return


def test_an_ensemble_loses_its_leader(tmp_path):
    """kill -9 under load: what was acknowledged is there once, leases hold, watches go on."""
    with Ensemble(tmp_path / "ensemble", 3) as ensemble:
        leader = ensemble.leader()
        with ZooKeeperStore(ensemble.hosts, "/root") as store, store.lease(20) as lease:
            store.create("/counter", b"0")
            lease.create("/leased", b"")
            seen: list[int] = []
            watch = store.watch("/counter", lambda key: seen.append(int(store.get(key).value)))
            adder = Adder(store)
            adder.start()
            until(lambda: adder.acked >= 20)
            leader.kill()
            before = adder.acked
            until(lambda: adder.acked >= before + 20 or adder.error, patience_s=120)
            adder.stopping.set()
            adder.join()
            assert adder.error is None
            total = int(store.get("/counter").value)
            assert adder.acked <= total <= adder.acked + adder.unknown
            until(lambda: seen[-1] == total)
            until(lambda: lease.state is LeaseState.HELD)
            assert store.get("/leased") is not None
            assert ensemble.leader() is not leader
            with pytest.raises(KeyExistsError):
                store.create("/leased", b"")
            watch.close()
        with open_store(f"zk://{ensemble.hosts}/root") as store:
            until(lambda: store.get("/leased") is None)
