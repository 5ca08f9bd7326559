"""Servers that start while their metadata store does not answer."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

import pytest

from pyreplog.cli.shared import serving
from pyreplog.cli.shared.metadata_wait import started
from pyreplog.errors import (
    InvalidArgumentError,
    LeaseLostError,
    MetadataAccessError,
    MetadataUnavailableError,
    OutcomeUnknownError,
    ReplogError,
    VersionConflictError,
)
from pyreplog.ledger.cluster import LedgerCluster
from tests.ledger.processes import ProcessGroup
from tests.metadata.lossy_proxy import LossyProxy
from tests.metadata.zookeeper import Ensemble

# ---- ZooKeeper -------------------------------------------------------------------------------------------------


@contextmanager
def proxied(
    zookeeper: Ensemble, url: str, folder: Path, *, is_done: bool
) -> Iterator[tuple[LossyProxy, ProcessGroup, str]]:
    """A proxy that loses writes; processes; and the root of the URL."""
    root = url.partition(zookeeper.hosts)[2]
    with LossyProxy(zookeeper.servers[0].port, is_done=is_done) as proxy:
        with ProcessGroup(folder, f"zk://{proxy.hosts}{root}") as processes:
            yield proxy, processes, root


@pytest.mark.parametrize("is_done", [False, True])
def test_a_bookie_starts_though_the_connection_is_lost_at_each_of_its_writes(
    zookeeper: Ensemble, zookeeper_url: str, tmp_path: Path, is_done: bool
) -> None:
    """Whether ZooKeeper carried them out, or not."""
    with proxied(zookeeper, zookeeper_url, tmp_path, is_done=is_done) as (proxy, processes, root):
        bookie = processes.bookie("b1")
        name = bookie.wait_for("bookie")
        assert {f"{root}/cluster", f"{root}/bookies/b1", f"{root}/available/{name}"} <= {path for _, path in proxy.lost}
        with LedgerCluster.connect(zookeeper_url) as cluster:
            assert [status.bookie for status in cluster.status().bookies] == [name]
            with cluster.create_ledger(1) as ledger:
                assert ledger.append(b"a") == 0
        bookie.kill()
        assert "not started yet" in bookie.error_text()


@pytest.mark.parametrize(("command", "says"), [("serve URL", "address"), ("autorecovery run URL", "auto_recovery")])
def test_other_servers_start_though_the_connection_is_lost(
    command: str, says: str, zookeeper: Ensemble, zookeeper_url: str, tmp_path: Path
) -> None:
    with proxied(zookeeper, zookeeper_url, tmp_path, is_done=False) as (proxy, processes, root):
        server = processes.start("pyreplog", *command.replace("URL", processes.url).split(), "--json")
        assert server.wait_for(says)
        assert ("create", f"{root}/cluster") in proxy.lost
        server.kill()
        assert "not started yet" in server.error_text()


def test_a_node_of_a_group_waits_for_a_store_that_starts_later(tmp_path: Path) -> None:
    with (
        Ensemble(tmp_path / "zookeeper", 1) as ensemble,
        ProcessGroup(tmp_path, f"zk://{ensemble.hosts}/root") as processes,
    ):
        ensemble.servers[0].kill()
        node = processes.start(
            "pyreplog", "ha", "--json", "master", str(tmp_path / "a"), "--members", "a", "--metadata", processes.url,
            "--group", "g",
        )  # fmt: skip
        assert node.popen.stderr is not None
        assert any("not started yet" in line for line in node.popen.stderr)
        ensemble.servers[0].start()
        assert node.wait_for("node") == "a"


# ---- a start that fails ----------------------------------------------------------------------------------------


class Start:
    """Raises these errors, one at each start; the last again and again. What then starts is an int."""

    def __init__(self, *errors: Exception | None) -> None:
        self._errors, self.count = errors, 0

    def __call__(self) -> AbstractContextManager[int]:
        self.count += 1
        error = self._errors[min(self.count, len(self._errors)) - 1]
        if error is not None:
            raise error
        return nullcontext(self.count)


def entering(start: Start, wait_s: float, stop: serving.Stop | None = None) -> AbstractContextManager[int]:
    return started(argparse.Namespace(metadata_wait_s=wait_s), stop or serving.Stop(), start)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (MetadataUnavailableError("no server answered"), MetadataUnavailableError),
        (OutcomeUnknownError("the connection was lost"), OutcomeUnknownError),
        (LeaseLostError("the session has ended"), MetadataUnavailableError),
        (VersionConflictError("expected version 1"), MetadataUnavailableError),
    ],
)
def test_opening_is_retried_until_metadata_wait_s_is_over(error: ReplogError, kind: type[ReplogError]) -> None:
    start = Start(*[error] * 20, AssertionError("it is tried for ever"))
    with pytest.raises(kind, match=rf"in 0.05 s \(--metadata-wait-s\): {error}. Check that") as raised:
        with entering(start, 0.05):
            raise AssertionError("it did not start")
    assert start.count >= 2 and type(raised.value) is kind and raised.value.__cause__ is error
    assert raised.value.exit_code == (7 if kind is MetadataUnavailableError else 1)
    start = Start(error, None)
    with entering(start, 0.05) as value:
        assert value == 2


@pytest.mark.parametrize("kind", [MetadataAccessError, InvalidArgumentError])
def test_permanent_error_at_start_is_not_retried(kind: type[ReplogError]) -> None:
    start = Start(kind("no"))
    with pytest.raises(kind, match=r"^no$"), entering(start, 3600):
        raise AssertionError("it did not start")
    assert start.count == 1


def test_no_time_is_no_second_try() -> None:
    start = Start(MetadataUnavailableError("away"))
    with pytest.raises(MetadataUnavailableError), entering(start, 0):
        raise AssertionError("it did not start")
    assert start.count == 1


def test_a_signal_ends_the_waiting() -> None:
    start, stop = Start(MetadataUnavailableError("away"), None), serving.Stop()
    stop.set()
    with pytest.raises(SystemExit) as raised, entering(start, 3600, stop):
        raise AssertionError("it did not start")
    assert (raised.value.code, start.count) == (0, 1)


def test_an_error_of_a_server_that_has_started_is_its_end() -> None:
    start = Start(None)
    with pytest.raises(MetadataUnavailableError, match=r"^later$"), entering(start, 3600):
        raise MetadataUnavailableError("later")
    assert start.count == 1
