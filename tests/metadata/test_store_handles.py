"""Stores as handles: refused after close, after fork and to pickle; reported when forgotten; found by URL."""

from __future__ import annotations

import copy
import gc
import pickle
import subprocess
import sys

import pytest

from pyreplog import errors
from pyreplog.errors import ClosedError, InvalidArgumentError, MissingExtraError
from pyreplog.metadata import DeleteKey, open_store
from tests.metadata.processes import ROOT

CALLS = {
    "get": lambda store: store.get("/a"),
    "create": lambda store: store.create("/a", b""),
    "put": lambda store: store.put("/a", b"", 0),
    "delete": lambda store: store.delete("/a", 0),
    "multi": lambda store: store.multi([DeleteKey("/a", 0)]),
    "list": lambda store: store.list("/a"),
    "watch": lambda store: store.watch("/a", print),
    "lease": lambda store: store.lease(20),
}


def test_a_closed_store_refuses_calls(store):
    lease, watch = store.lease(20), store.watch("/a", lambda key: None)
    store.close()
    for call in CALLS.values():
        with pytest.raises(ClosedError, match="was closed"):
            call(store)
    for call in (lambda: lease.state, lambda: lease.create("/a", b"")):
        with pytest.raises(ClosedError, match="was closed"):
            call()
    store.close()
    lease.close()
    watch.close()
    assert "closed" in repr(store)


def test_stores_and_leases_refuse_pickling_and_copying(store):
    with store.lease(20) as lease:
        for handle in (store, lease):
            for use in (pickle.dumps, copy.copy, copy.deepcopy):
                with pytest.raises(TypeError, match="pickled"):
                    use(handle)


def test_a_forgotten_store_is_reported_and_closed(url):
    store = open_store(url)
    store.watch("/a", lambda key: None)
    with pytest.warns(ResourceWarning, match="unclosed metadata store"):
        del store
        gc.collect()


def test_a_forgotten_lease_is_reported_and_closed(store, other):
    lease = store.lease(20)
    lease.create("/a", b"")
    with pytest.warns(ResourceWarning, match="unclosed lease"):
        del lease
        gc.collect()
    assert other.get("/a") is None


FORK = """
import os, sys
from pyreplog import ForkedError
from pyreplog.metadata import open_store
from tests.metadata.test_store_handles import CALLS
store = open_store(sys.argv[1])
lease = store.lease(20)
lease.create("/held", b"")
store.watch("/held", lambda key: None)
pid = os.fork()
if pid == 0:
    wrong = []
    for name, call in {**CALLS, "state": lambda _: lease.state, "make": lambda _: lease.create("/b", b"")}.items():
        try:
            wrong.append(f"{name} -> {call(store)!r}")
        except ForkedError as error:
            if f"process {os.getppid()}" not in str(error):
                wrong.append(f"{name}: {error}")
        except BaseException as error:
            wrong.append(f"{name}: {error!r}")
    lease.close()
    store.close()
    del store, lease
    if sys.argv[1] != "memory:":
        with open_store(sys.argv[1]) as own:
            if own.get("/held") is None:
                wrong.append("the lease ended")
    print("; ".join(wrong), flush=True)
    sys.exit(len(wrong))
_, status = os.waitpid(pid, 0)
assert store.get("/held") is not None and lease.state.value == "held"
version = store.create("/after", b"")
store.put("/after", b"x", version)
store.close()
sys.exit(os.waitstatus_to_exitcode(status))
"""


def test_a_forked_store_refuses_calls_in_the_child(url):
    """In the child every call is refused and names the parent; the parent, its lease and its file notice nothing."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-W", "ignore::DeprecationWarning", "-c", FORK, url],
        cwd=ROOT, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "", "")


AT_WORK = """
import os, sys, threading
from pyreplog.metadata.sqlite import SQLiteStore
store = SQLiteStore(sys.argv[1])
inside, forking, done = threading.Event(), threading.Event(), []

def work():
    with store._database.reading() as connection:
        inside.set()
        forking.wait()
        connection.execute("WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 300000) SELECT sum(i) FROM n")
        done.append("work")

threading.Thread(target=work).start()
inside.wait()
forking.set()
pid = os.fork()
before = list(done)
if pid == 0:
    with SQLiteStore(sys.argv[1] + " of the child") as own:
        own.create("/a", b"")
    os._exit(0)
_, status = os.waitpid(pid, 0)
store.create("/after", b"")
store.close()
print(before, os.waitstatus_to_exitcode(status))
"""


def test_fork_waits_for_calls_inside_sqlite(tmp_path):
    """Else a mutex of SQLite, whose holder the child does not have, may stay locked there, and the child hang."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-W", "ignore::DeprecationWarning", "-c", AT_WORK, tmp_path / "metadata.db"],
        cwd=ROOT, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.stdout, done.stderr) == ("['work'] 0\n", "")


def test_errors_can_be_pickled():
    for name in ("KeyExistsError", "NoSuchKeyError", "VersionConflictError", "KeyNotEmptyError", "LeaseLostError"):
        error = getattr(errors, name)("a message")
        again = pickle.loads(pickle.dumps(error))
        assert type(again) is type(error) and str(again) == str(error)


URLS = [
    "", "memory", "memory:x", "sqlite:", "sqlite://", "sqlite://relative", "zk:", "zk://", "zk:///root", "zk://h:1/a/",
    "zk://h:1//a", "zk://h:1/zookeeper", "zk://h:port/a", "zk://h:1/..", "etcd://h", "file:///a",
]  # fmt: skip


@pytest.mark.parametrize("url", URLS)
def test_malformed_urls_of_stores_are_refused(url):
    with pytest.raises(InvalidArgumentError):
        open_store(url)


def test_a_relative_path_of_a_store_outlives_a_change_of_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with open_store("sqlite:metadata.db") as store:
        store.create("/a", b"")
        monkeypatch.chdir("/")
        store.list("/")
    assert (tmp_path / "metadata.db").exists()


def test_a_zookeeper_store_without_kazoo_names_the_extra(monkeypatch):
    for module in [name for name in sys.modules if name.partition(".")[0] == "kazoo" or "metadata.zoo" in name]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.delitem(sys.modules, "pyreplog.metadata.zookeeper_session", raising=False)
    monkeypatch.setitem(sys.modules, "kazoo", None)
    with pytest.raises(MissingExtraError, match=r"pyreplog\[zookeeper\]"):
        open_store("zk://localhost:2181/a")


def test_import_of_metadata_loads_no_store_libraries():
    code = "import sys, pyreplog.metadata; print(*({'sqlite3', 'kazoo', 'ctypes'} & sys.modules.keys()))"
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert run.stdout.strip() == ""
