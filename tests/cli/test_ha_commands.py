"""`pyreplog ha`: nodes as processes, killed and promoted, by hand and by themselves; what is refused."""

from __future__ import annotations

import signal
import sqlite3
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

import pyreplog
from pyreplog import ha
from pyreplog.cli.shared import serving
from pyreplog.errors import ReplicaError
from pyreplog.rocketmq import RawLog
from tests.cli.nodes import LIMIT_S, NodeProcess, Processes, segments
from tests.cli.support import COMMAND, SEGMENT_BYTES, Run, process, rows, values
from tests.ha.nodes import until
from tests.ha.rocketmq.records import FILE_BYTES, contents, fill
from tests.net.test_tls import Authority
from tests.waiting import stand_still

DOCUMENT = Path(__file__).parents[2] / "docs" / "operations.md"
LINES = [b"line %d " % number + b"." * 500 for number in range(1000)]


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    with ExitStack() as stack:
        yield Processes(tmp_path, stack)


@pytest.fixture
def filled(tmp_path: Path) -> Path:
    """A log of its own, of some segments: it becomes a master's."""
    path = tmp_path / "a"
    with pyreplog.open(path, segment_bytes=SEGMENT_BYTES) as log:
        log.append_batch(LINES)
    return path


def has_all(status: dict[str, Any]) -> bool:
    return len(LINES) == status["received"]["entry"] == status["committed"]["entry"]


def streams_to(*names: str) -> Callable[[dict[str, Any]], bool]:
    """Whether a master says so of these, and of nobody else."""
    return lambda status: (
        {(replica["name"], replica["state"]) for replica in status["replicas"]}
        == {(name, "streaming") for name in names}
    )


def settled(
    processes: Processes, *nodes: NodeProcess, holds: Callable[[dict[str, Any]], object] = lambda _: True
) -> NodeProcess:
    """Wait until one is master, and the others follow it, of whose status something holds; which. A master that stands
    still for too long is replaced at any time."""
    node_processes: list[NodeProcess] = []

    def are_settled() -> bool:
        statuses = {node.name: processes.until(node, lambda _: True) for node in nodes}
        node_processes[:] = [node for node in nodes if statuses[node.name]["role"] == "master"]
        return len(node_processes) == 1 and all(
            status["role"] == "replica"
            and status["streaming"]
            and (status["master"], status["term"].split()[2]) == (node_processes[0].address, node_processes[0].name)
            and holds(status)
            for name, status in statuses.items()
            if name != node_processes[0].name
        )

    until(are_settled)
    return node_processes[0]


def test_a_group_fails_over_by_hand(processes: Processes, filled: Path, run: Run) -> None:
    """The master is killed, a replica promoted, the old master comes back as its replica."""
    a = processes.start("master", "a", "--members", "a,b,c", "--sync-replicas", 1)
    assert a.output == {"node": "a", "role": "master", "address": a.address, "term": "1 of a"}
    c = processes.start("replica", "c", "--master", a.address)
    b = processes.start("replica", "b", "--master", a.address, *c.peer())
    for replica in (b, c):
        processes.until(replica, has_all)
        assert values(replica.path) == LINES
    processes.until(a, streams_to("b", "c"))
    assert streams_to("b", "c")(run("ha", "--json", "status", a.address).json)
    assert a.end(signal.SIGKILL)[0] == -signal.SIGKILL
    assert run("ha", "status", a.address).code == 7
    promoted = run("ha", "--json", "promote", b.address).json
    assert (promoted["role"], promoted["term"], promoted["possible_loss"]) == ("master", "2 of b", "")
    assert run("ha", "follow", c.address, "--master", b.address).code == 0
    a = processes.start("replica", "a", "--master", b.address)
    for replica in (a, c):
        processes.until(replica, lambda report: report["streaming"] and report["term"] == "2 of b")
    processes.until(
        b, lambda report: streams_to("a", "c")(report) and all(each["lag_bytes"] == 0 for each in report["replicas"])
    )
    printed = run("ha", "status", b.address).out
    assert "master" in printed and "replica a  streaming" in printed and "a, b, c; an append waits for 1" in printed
    assert f"0 to {len(LINES) - 1}\n" in printed, "its entries"
    for node in (c, a, b):
        assert node.end(signal.SIGTERM)[0] == 0
    assert segments(a.path) == segments(b.path) == segments(c.path)
    assert len(segments(b.path)) > 5 and values(b.path) == LINES
    with pytest.raises(ReplicaError, match="pyreplog ha replica"):
        pyreplog.open(a.path)


def test_a_group_that_fails_over_by_itself(processes: Processes, filled: Path) -> None:
    """The same command starts each node each time, whatever it is by then."""
    store = (
        "--metadata",
        f"sqlite:{processes.folder / 'metadata'}",
        "--group",
        "orders",
        "--lease-ms",
        3000,
        "--set",
        "election_timeout_ms=500",
    )
    first = ("master", "a", "--members", "a,b,c", "--sync-replicas", 1, *store)
    a = processes.start(*first)
    others = {name: processes.start("replica", name, *store) for name in "bc"}
    for replica in others.values():
        processes.until(replica, has_all)
    a.end(signal.SIGKILL)
    settled(processes, *others.values())
    a = processes.start(*first)
    settled(processes, a, *others.values())
    for node in (a, *others.values()):
        node.end(signal.SIGKILL)
    a, b, c = (processes.start(*first), *(processes.start("replica", name, *store) for name in "bc"))
    settled(processes, a, b, c, holds=has_all)
    assert [node.end(signal.SIGTERM)[0] for node in (a, b, c)] == [0, 0, 0]
    assert values(a.path) == values(b.path) == values(c.path) == LINES


def test_readers_of_a_replica_see_that_its_master_goes_on_alone(processes: Processes, filled: Path, run: Run) -> None:
    alone = ("--members", "a,b,c", "--sync-replicas", 2, "--fallback-after-ms", 50)
    a = processes.start("master", "a", *alone)
    b = processes.start("replica", "b", "--master", a.address)
    for node in (a, b):
        processes.until(node, lambda report: report["unreplicated"] and report["committed"]["entry"] == len(LINES))
        assert (
            "by a master without replicas: a promotion may take entries back" in run("ha", "status", node.address).out
        )
        with pyreplog.open(node.path, "r") as reader:
            assert reader.unreplicated and len(reader) == len(LINES)
    c = processes.start("replica", "c", "--master", a.address)
    for node in (a, b, c):
        processes.until(node, lambda report: has_all(report) and not report["unreplicated"])
        assert "on its own" not in run("ha", "status", node.address).out


def test_members_are_changed_by_command(processes: Processes, filled: Path, run: Run) -> None:
    a = processes.start("master", "a")
    assert run("ha", "members", a.address).out == "members  a; an append waits for 0 replicas\n"
    b = processes.start("replica", "b", "--master", a.address)
    assert run("ha", "members", a.address, "--add", "b").code == 0
    processes.until(a, lambda report: report["members"]["former"] is None)
    done = run("ha", "--json", "members", a.address, "--sync-replicas", 1).json
    assert (done["members"]["names"], done["members"]["sync_replicas"]) == (["a", "b"], 1)
    processes.until(b, lambda report: report["members"] and report["members"]["sync_replicas"] == 1)
    refused = run("ha", "members", a.address, "--remove", "c")
    assert refused.code == 2 and "expected one of the members, found 'c'" in refused.error
    assert run("ha", "members", b.address, "--add", "c").code == 1, "b is no master"
    assert run("ha", "members", a.address, "--force").code == 2, "nothing is to be changed"
    processes.until(a, lambda report: report["members"]["former"] is None)
    b.end(signal.SIGKILL)
    waits = run("ha", "--json", "members", a.address, "--remove", "b").json
    assert waits["members"]["former"]["names"] == ["a", "b"], "b is to agree, and never will"
    done = run("ha", "--json", "members", a.address, "--remove", "b", "--force").json
    assert done["members"] == {"names": ["a"], "sync_replicas": 0, "former": None}
    with pytest.raises(SystemExit):
        run("ha", "members", a.address, "--add", "c", "--sync-replicas", 2)


def test_impossible_promotions_are_refused(processes: Processes, filled: Path, run: Run) -> None:
    a = processes.start("master", "a", "--members", "a,b,c", "--sync-replicas", 1)
    b = processes.start("replica", "b", "--master", a.address, "--set", "election_timeout_ms=200")
    processes.until(b, has_all)
    a.end(signal.SIGKILL)
    refused = run("ha", "promote", b.address)
    assert refused.code == 6 and "promises are needed" in refused.error
    assert processes.until(b, lambda _: True)["role"] == "replica"
    forced = run("ha", "promote", b.address, "--force")
    assert forced.code == 0 and "possible loss: " in forced.out
    c = processes.start("replica", "c", "--master", a.address)
    assert run("ha", "promote", c.address).code == 1, "it has no log"


def test_nodes_use_a_secret_and_certificates_and_serve_metrics(processes: Processes, filled: Path, run: Run) -> None:
    authority, secret = Authority(processes.folder, "ours"), processes.folder / "secret"
    secret.write_bytes(b"a secret of the group\n")
    key = str(authority.issue("server"))
    links = ("--tls-cert", key, "--tls-ca", str(authority.file), "--secret-file", secret)
    a = processes.start("master", "a", "--members", "a,b", *links, "--metrics", 0, "--throttle-bytes-per-s", 64 << 20)
    b = processes.start("replica", "b", "--master", a.address, *links, "--observer", "--metrics", 0)
    client = links[2:]
    assert run("ha", "status", a.address, *client[:2]).code == 7, "without the secret"
    assert '"name": "b"' in run("ha", "--json", "status", a.address, *client).out
    numbers = {}
    while numbers.get('pyreplog_ha_replica_lag_bytes{node="a",replica="b"}') != 0:
        numbers = scrape(a.output["metrics"]) | scrape(b.output["metrics"])
    assert numbers['pyreplog_ha_master{node="a"}'] == 1
    assert numbers['pyreplog_ha_master{node="b"}'] == 0
    assert numbers['pyreplog_ha_streaming{node="b"}'] == 1
    ends = [numbers[f'pyreplog_ha_received_position{{node="{name}"}}'] for name in "ab"]
    assert ends[0] == ends[1] > len(LINES) * 500
    missing = {name for name in numbers if f"`{name.partition('{')[0]}`" not in DOCUMENT.read_text()}
    assert not missing, "docs/operations.md names all"


def test_secrets_and_certificates_are_loaded_anew_at_sighup(processes: Processes, filled: Path, run: Run) -> None:
    """In the order of a rotation, of servers and of those who connect; who is connected stays so."""
    folder, ours, theirs = processes.folder, Authority(processes.folder, "ours"), Authority(processes.folder, "theirs")
    secret, old, new, certificate, trusted = (
        folder / name for name in ("secret", "old", "new", "certificate", "trusted")
    )
    old.write_bytes(b"the secret of last year\n")
    new.write_bytes(b"the secret of this year\n")
    secret.write_bytes(old.read_bytes())
    certificate.write_bytes(Path(ours.issue("server")).read_bytes())
    trusted.write_bytes(ours.file.read_bytes())
    links = ("--tls-cert", certificate, "--tls-ca", trusted, "--secret-file", secret)
    a = processes.start("master", "a", "--members", "a,b", *links)
    b = processes.start("replica", "b", "--master", a.address, *links)
    nodes = (a, b)

    def gets_in(node: NodeProcess, file: Path, authority: Authority = ours) -> bool:
        return run("ha", "status", node.address, "--secret-file", file, "--tls-ca", authority.file).code == 0

    def streams_to_b() -> bool:
        result = run("ha", "--json", "status", a.address, "--secret-file", secret, "--tls-ca", trusted)
        return result.code == 0 and streams_to("b")(result.json)

    def load() -> None:
        for node in nodes:
            node.popen.send_signal(signal.SIGHUP)

    until(streams_to_b)
    assert all(gets_in(node, old) and not gets_in(node, new) for node in nodes)
    trusted.write_bytes(ours.file.read_bytes() + theirs.file.read_bytes())
    secret.write_bytes(new.read_bytes() + old.read_bytes())
    load()
    until(lambda: all(gets_in(node, new) for node in nodes))
    assert not any(gets_in(node, old) for node in nodes), "a server shows that it knows the first"
    assert streams_to_b(), "who is connected stays so"
    certificate.write_bytes(Path(theirs.issue("server")).read_bytes())
    load()
    until(lambda: all(gets_in(node, new, theirs) for node in nodes))
    assert not any(gets_in(node, new, ours) for node in nodes)
    secret.write_bytes(b"short")
    load()
    secret.write_bytes(new.read_bytes())
    assert a.end(signal.SIGKILL)[0] == -signal.SIGKILL
    a = processes.start("master", "a", *links, "--listen", a.address)
    until(streams_to_b)  # it connects with what was loaded anew, and trusts the other authority
    code, told = b.end(signal.SIGTERM)
    assert code == 0 and told.count("were reloaded") in (2, 3) and told.count("were not reloaded") <= 1, told


DRAIN_S = 2.0
BOUND_S = DRAIN_S + serving.GRACE_S + 4.0
"""The end of the interpreter, of a machine that is busy, included."""


def test_a_replica_ends_in_time_though_it_stands_for_election(processes: Processes, filled: Path) -> None:
    """Nobody answers it: master and replicas are stopped."""
    patient = ("--set", f"election_timeout_ms={round(LIMIT_S * 1000)}", "--drain-s", DRAIN_S)
    a = processes.start("master", "a", "--members", "a,b,c", "--sync-replicas", 1, *patient)
    c = processes.start("replica", "c", "--master", a.address, *patient)
    b = processes.start("replica", "b", "--master", a.address, *a.peer(), *c.peer(), *patient)
    processes.until(a, streams_to("b", "c"))
    processes.until(b, has_all)
    for node in (a, c):
        stand_still(node.popen)
    with subprocess.Popen(
        [*COMMAND, "ha", "promote", "--force", b.address], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    ) as promotion:
        processes.until(b, lambda report: report["term"] == "2 of b")
        began = time.monotonic()
        code, told = b.end(signal.SIGTERM)
        took_s = time.monotonic() - began
        assert promotion.communicate(timeout=LIMIT_S)[1] and promotion.returncode != 0
    assert (code, took_s < BOUND_S) == (0, True), (took_s, told)


def test_a_master_ends_in_time_though_its_replicas_are_stopped(processes: Processes, filled: Path) -> None:
    """The metadata store does not answer, either."""
    metadata = processes.folder / "metadata"
    store = ("--metadata", f"sqlite:{metadata}", "--group", "orders", "--drain-s", DRAIN_S)
    a = processes.start("master", "a", "--members", "a,b", "--sync-replicas", 1, *store)
    b = processes.start("replica", "b", *store)
    processes.until(a, streams_to("b"))
    stand_still(b.popen)
    with closing(sqlite3.connect(metadata, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        began = time.monotonic()
        code, told = a.end(signal.SIGTERM)
        took_s = time.monotonic() - began
    assert (code, took_s < BOUND_S) == (0, True), (took_s, told)


def scrape(address: str) -> dict[str, float]:
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=20) as reply:
        lines = reply.read().decode().splitlines()
    pairs = [line.rsplit(" ", 1) for line in lines if line.startswith("pyreplog_ha_")]
    return {name: float(value) for name, value in pairs}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Path]]:
    """One that another has open, one that is a copy, and some that are not there."""
    folder = tmp_path_factory.mktemp("folders")
    with (
        pyreplog.open(folder / "open", segment_bytes=SEGMENT_BYTES),
        ha.open_master(folder / "m", name="m", members=["m", "copy"]) as master,
        ha.open_replica(folder / "copy", name="copy", master=master.address) as replica,
    ):
        until(lambda: replica.stats()["streaming"])
        replica.close()
        (folder / "short").write_bytes(b"short")
        yield {name: folder / name for name in ("a", "b", "open", "absent", "copy", "short")}


@pytest.mark.parametrize(
    ("arguments", "code", "error_text"),
    [
        (["master", "{a}", "--listen", "nowhere"], 2, "--listen"),
        (["master", "{a}", "--listen", "0.0.0.0:0"], 2, "--advertise"),
        (["master", "{a}", "--metadata", "memory:"], 2, "--group"),
        (["master", "{a}", "--group", "g"], 2, "--metadata"),
        (["master", "{a}", "--peer", "b"], 2, "NAME=HOST:PORT"),
        (["master", "{a}", "--set", "unheard-of=1"], 2, "unheard_of"),
        (["master", "{a}", "--set", "nonsense=1"], 2, "there are ack, ack_timeout_ms, cursor_hold_bytes, durability"),
        (["replica", "{b}", "--master", "127.0.0.1:1", "--set", "port=1"], 2, "unknown setting 'port'"),
        (["master", "{a}", "--set", "in_sync_ms=-1"], 2, "in_sync_ms"),
        (["master", "{a}", "--ack", "synced", "--durability", "appended"], 2, "durability"),
        (["master", "{a}", "--members", "a,b", "--sync-replicas", "2"], 2, "sync"),
        (["master", "{a}", "--tls-cert", "{absent}", "--tls-ca", "{absent}"], 2, "absent"),
        (["master", "{open}"], 3, "process"),
        (["master", "{copy}"], 1, "is a replica"),
        (["replica", "{b}"], 2, "--master"),
        (["rocketmq-slave", "{b}", "--master", "nowhere"], 2, "--master"),
        (["rocketmq-slave", "{b}", "--master", "127.0.0.1:1", "--from", "5"], 2, "beginning of a file"),
        (["rocketmq-master", "{b}", "--file-bytes", "1"], 2, "file_bytes"),
        (["master", "{a}", "--secret-file", "{short}"], 2, "secret"),
        (["status", "127.0.0.1:1", "--secret-file", "{short}"], 2, "secret"),
        (["replica", "{b}", "--master", "nowhere"], 2, "host:port"),
        (["status", "nowhere"], 2, "host:port"),
        (["status", "127.0.0.1:1"], 7, "127.0.0.1:1"),
    ],
)
def test_ha_node_commands_refuse_invalid_arguments(
    arguments: list[str],
    code: int,
    error_text: str,
    folders: dict[str, Path],
    run: Run,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("signal.signal", lambda *_: None)
    done = run("ha", *(argument.format_map(folders) for argument in arguments))
    assert done.code == code and error_text in done.error and done.error.count("\n") == 1


def test_a_log_that_was_a_replica_is_read_as_any(processes: Processes, filled: Path, run: Run) -> None:
    a = processes.start("master", "a", "--members", "a,b")
    b = processes.start("replica", "b", "--master", a.address)
    processes.until(b, has_all)
    assert run("cat", b.path, "--to", 2).out.encode() == b"".join(line + b"\n" for line in LINES[:2])
    b.end(signal.SIGTERM)
    assert rows(b.path) == rows(filled)
    done = process("fsck", b.path)
    assert done.code == 0, done.out


def test_rocketmq_slaves_in_a_chain(processes: Processes, tmp_path: Path, run: Run) -> None:
    with RawLog(tmp_path / "m", file_bytes=FILE_BYTES) as log:
        end = fill(log, 200)
    master = processes.run("rocketmq-master", "m")
    assert (master.output["start"], master.output["end"]) == (0, end)
    options = ("--from", 0, "--file-bytes", FILE_BYTES, "--master")
    first = processes.run("rocketmq-slave", "s", *options, master.address, "--listen", "127.0.0.1:0")
    second = processes.run("rocketmq-slave", "t", *options, first.address)
    until(lambda: len(contents(second.path)) == len(contents(master.path)))
    until(lambda: contents(second.path) == contents(first.path) == contents(master.path))
    assert [process.end(signal.SIGTERM) for process in (second, first)] == [(0, ""), (0, "")]
    lost = processes.run("rocketmq-slave", "l", "--file-bytes", FILE_BYTES, "--master", first.address)
    assert lost.popen.stderr is not None and "connecting again" in lost.popen.stderr.readline(), (
        "nobody is there any more"
    )
    other = processes.run(
        "rocketmq-slave", "o", "--from", 0, "--file-bytes", 4 * FILE_BYTES, "--master", master.address
    )
    _, error_text = other.popen.communicate(timeout=LIMIT_S)
    assert other.popen.returncode == 4 and "expected a blank" in error_text, "files of another size: it gives up"
