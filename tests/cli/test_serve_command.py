"""`pyreplog serve` as a process, and the commands of topics on it."""

from __future__ import annotations

import re
import signal
import ssl
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import pyreplog
from pyreplog.cluster import Cluster
from tests.cli.support import KEPT, Done, Run, process
from tests.ledger.processes import PATIENCE_S, Process, ProcessGroup
from tests.net.test_tls import Authority
from tests.waiting import until

ONE = ("--set", "ensemble=1")
OLD, NEW = b"the secret of last year", b"the secret of this year"


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[ProcessGroup]:
    with ProcessGroup(tmp_path, f"sqlite:{tmp_path}/metadata.sqlite") as processes:
        yield processes


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "cluster"
    Cluster.embedded(path, bookies=1, segment_bytes=64 << 10).close()
    return path


def serve(processes: ProcessGroup, target: object, *options: object) -> tuple[Process, str]:
    """A server, and its URL."""
    server = processes.start("pyreplog", "serve", str(target), "--json", *map(str, options))
    return server, f"pyreplog://{server.wait_for('address')}"


def end(server: Process) -> None:
    server.signal(signal.SIGTERM)
    assert (server.wait(), server.error_text()) == (0, "")


def test_all_commands_on_a_server(processes: ProcessGroup, folder: Path, run: Run) -> None:
    server, url = serve(processes, folder)

    def topic(action: str, *arguments: object, group: str = "topic") -> Done:
        done = run(group, action, url, "orders", *arguments)
        assert done.code == 0, done.error
        return done

    topic("create", *ONE)
    topic("create", "work", "--from", "earliest", "--type", "shared", group="subscription")
    source = folder / "lines"
    source.write_bytes(b"".join(b"line %d\n" % number for number in range(1000)))
    assert "1,000 messages, offsets 0 to 999" in topic("publish", "--file", source).out
    assert topic("publish", "--json", "--producer", "me", "last").json["first"] == 1000
    assert topic("consume", "--subscription", "work", "--count", 3).out == "line 0\nline 1\nline 2\n"
    assert topic("consume", "--from", 999).out == "line 999\nlast\n"
    report = topic("stats", "--json").json
    assert (report["end"]["offset"], report["subscriptions"]["work"]["backlog_messages"]) == (1001, 998)
    assert "1,001 messages" in topic("stats").out and "work" in topic("stats-internal").out
    assert topic("stats", "work", "--json", group="subscription").json["mark"]["offset"] == 3
    assert topic("seek", "work", 500, "--json").json == {"offset": 500}
    topic("skip", "work", 499)
    assert topic("consume", "--subscription", "work", "--no-ack").out == "line 999\nlast\n"
    topic("clear", "work")
    assert topic("consume", "--subscription", "work", "--timeout", 0).out == ""
    assert topic("trim").out.endswith(" begins at offset 0\n")
    topic("set", "ttl_ms=60000")
    assert topic("set", "--json").json["ttl_ms"] == 60000
    assert topic("list", group="subscription").out == "work\n"
    topic("delete", "work", "--yes", group="subscription")
    assert run("topic", "list", url).out == "orders\n"
    topic("delete", "--yes")
    assert run("topic", "list", url).out == ""
    gone = run("topic", "stats", url, "orders")
    assert (gone.code, gone.out) == (2, "") and "topic orders: " in gone.error
    end(server)


def test_acknowledgements_survive_sigterm_of_the_server(processes: ProcessGroup, folder: Path, run: Run) -> None:
    server, url = serve(processes, folder)
    run("topic", "create", url, "orders", *ONE)
    run("topic", "publish", url, "orders", *"abcd")
    run("topic", "consume", url, "orders", "--subscription", "work", "--count", 2)
    assert run("topic", "stats", folder, "orders").code == 3, "the server has the directory"
    end(server)
    assert run("topic", "stats", url, "orders").code == 7
    assert run("topic", "consume", folder, "orders", "--subscription", "work").out == "c\nd\n"


def test_sigterm_ends_a_server_whose_bookies_are_gone(processes: ProcessGroup) -> None:
    """Nothing can be stored: it says so, and does not wait longer than it was told to."""
    processes.start_bookies("b1")
    server, url = serve(processes, processes.url, "--drain-s", 2)
    with pyreplog.connect(url, timeout=60.0) as client:
        topic = client.topic("orders", ensemble=1)
        topic.publish(b"a")
        for bookie in processes.bookies.values():
            bookie.kill()
        pending = topic.submit(b"b")
        client.topic("orders").stats()  # it has the other, too: requests of a connection come in order
        began = time.monotonic()
        server.signal(signal.SIGTERM)
        assert server.wait() == 0 and time.monotonic() - began < 30.0, "it was 70 s"
        with pytest.raises(pyreplog.ReplogError):
            pending.result(PATIENCE_S)
    lines = server.error_text().splitlines()
    assert all(re.match(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z (WARNING|ERROR) pyreplog\.", line) for line in lines)
    assert any("1 of 1 topics were closed with messages that have no outcome: orders" in line for line in lines)


def test_a_server_that_was_killed(processes: ProcessGroup, folder: Path, run: Run) -> None:
    """Its topics are free for the next at once that has the directory, though its lease lasts."""
    server, url = serve(processes, folder)
    run("topic", "create", url, "orders", *ONE, *KEPT)
    run("topic", "publish", url, "orders", *"abcd")
    server.kill()
    server, url = serve(processes, folder)
    done = run("topic", "consume", url, "orders")
    assert (done.code, done.out) == (0, "a\nb\nc\nd\n"), done.error
    end(server)


def test_a_follower_goes_on_after_a_restart_of_the_server(processes: ProcessGroup, folder: Path, run: Run) -> None:
    server, url = serve(processes, folder)
    run("topic", "create", url, "orders", *ONE)
    follower = processes.start("pyreplog", "topic", "consume", url, "orders", "--follow", "--json")
    for number, value in enumerate("ab"):
        run("topic", "publish", url, "orders", value)
        assert follower.wait_for("offset", number) == number
    assert follower.output["value"] == "b"
    follower.signal(signal.SIGINT)
    assert follower.wait() == 130
    end(server)


def test_top_and_metrics_show_topics_of_a_server(processes: ProcessGroup, folder: Path, run: Run) -> None:
    pytest.importorskip("prometheus_client")
    server, url = serve(processes, folder, "--metrics", 0)
    run("topic", "create", url, "orders", *ONE)
    run("subscription", "create", url, "orders", "work")
    run("topic", "publish", url, "orders", *"abcd")
    report = run("top", "--once", "--json", url).json
    row: dict[str, Any] = report["topics"][0]
    assert (row["name"], row["backlog"], row["messages"]) == ("orders", 4, 4) and row["owner"] in url
    assert (report["ledgers"], report["bookies"]) == ([], []), "of a cluster only"
    assert "  work" in run("top", "--once", url).out
    with urllib.request.urlopen(f"http://{server.wait_for('metrics')}/metrics") as page:
        assert 'topic="orders"' in page.read().decode()
    end(server)


def test_commands_on_a_metadata_store_ask_the_owner(processes: ProcessGroup, run: Run) -> None:
    """Of a metadata store, commands go to the server that owns the topic; top shows what it says."""
    processes.start_bookies("b1")
    server, url = serve(processes, processes.url)
    run("topic", "create", url, "orders", *ONE)
    assert run("topic", "publish", processes.url, "orders", *"abc").code == 0
    assert run("topic", "consume", processes.url, "orders").out == "a\nb\nc\n"
    report = run("top", "--once", "--json", processes.url).json
    row = report["topics"][0]
    assert (row["name"], row["messages"], row["owner"], row["states"]) == ("orders", 3, server.output["address"], [])
    assert [ledger["state"] for ledger in report["ledgers"]] == ["open"]
    assert [bookie["state"] for bookie in report["bookies"]] == [""]
    # the only entry cannot carry its own confirmation: the writer tells it once it is idle
    until(lambda: run("top", "--once", "--json", processes.url).json["ledgers"][0]["confirmed"] == 0)
    end(server)
    left = run("top", "--once", "--json", processes.url).json["topics"][0]
    assert (left["messages"], left["states"]) == (None, ["no owner"])


def test_owners_that_do_not_answer(run: Run, folder: Path) -> None:
    url = f"sqlite:{folder}/metadata.sqlite"
    with Cluster.embedded(folder, bookies=1) as cluster:
        cluster.topic("here", ensemble=1)
        shown = run("top", "--once", "--json", url).json["topics"][0]
        assert shown["states"][0].startswith("owned by process ") and shown["messages"] is None
        owned = run("topic", "stats", url, "here")
        assert owned.code == 3 and "process" in owned.error
    with Cluster.embedded(folder, bookies=1) as cluster:
        cluster.topics.serve_at("127.0.0.1:1")
        cluster.topic("here")
        gone = run("top", "--once", "--json", url).json["topics"][0]
        assert "127.0.0.1:1" in gone["states"][0] and gone["owner"] == "127.0.0.1:1"
        assert run("topic", "stats", url, "here").code == 7


def test_serve_with_tls_and_a_secret(processes: ProcessGroup, folder: Path, run: Run, tmp_path: Path) -> None:
    authority, secret = Authority(tmp_path, "ours"), tmp_path / "secret"
    secret.write_bytes(b"a secret of some length\n")
    server, url = serve(processes, folder, "--tls-cert", authority.issue("server"), "--secret-file", secret)
    trust = ("--tls-ca", authority.file)
    assert run("topic", "list", url, *trust, "--secret-file", secret).code == 0
    done = run("topic", "list", url, *trust)
    assert done.code == 7 and "SECRET" in done.error and done.error.count("\n") == 1
    end(server)


def test_secrets_and_certificates_are_loaded_anew_at_sighup(
    processes: ProcessGroup, folder: Path, run: Run, tmp_path: Path
) -> None:
    """In the order of a rotation; a file that is no good changes nothing; nobody is disconnected."""
    ours, theirs = Authority(tmp_path, "ours"), Authority(tmp_path, "theirs")
    files = {name: tmp_path / name for name in ("old", "new", "both", "secret", "certificate")}
    files["old"].write_bytes(OLD + b"\n")
    files["new"].write_bytes(NEW + b"\n")
    files["both"].write_bytes(OLD + b"\n" + NEW + b"\n")
    files["secret"].write_bytes(OLD + b"\n")
    files["certificate"].write_bytes(Path(ours.issue("server")).read_bytes())
    server, url = serve(processes, folder, "--tls-cert", files["certificate"], "--secret-file", files["secret"])

    def gets_in(secret: str, authority: Authority = ours) -> bool:
        return run("topic", "list", url, "--tls-ca", authority.file, "--secret-file", files[secret]).code == 0

    assert gets_in("old") and gets_in("both") and not gets_in("new")
    context = ssl.create_default_context(cafile=str(ours.file))
    with pyreplog.connect(url, secret=OLD, tls=context, timeout=60.0) as client:
        topic = client.topic("orders", ensemble=1)
        assert topic.publish(b"a") == 0
        files["secret"].write_bytes(NEW + b"\n" + OLD + b"\n")
        server.signal(signal.SIGHUP)
        until(lambda: gets_in("new"))
        assert gets_in("both") and not gets_in("old")
        files["certificate"].write_bytes(Path(theirs.issue("server")).read_bytes())
        server.signal(signal.SIGHUP)
        until(lambda: gets_in("new", theirs))
        assert not gets_in("new", ours)
        files["secret"].write_bytes(b"short")
        server.signal(signal.SIGHUP)
        files["secret"].unlink()
        server.signal(signal.SIGHUP)
        assert topic.publish(b"b") == 1, "who is connected stays so"
    server.signal(signal.SIGTERM)
    assert server.wait() == 0
    told = server.error_text()
    assert told.count("were reloaded") == 2 and told.count("were not reloaded") in (1, 2)  # signals may come as one


def test_a_bookie_loads_its_secret_anew(processes: ProcessGroup, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(OLD)
    bookie = processes.start(
        "pyreplog", "bookie", str(tmp_path / "b1"), "--json", "--metadata", processes.url, "--secret-file", str(secret),
        "--segment-bytes", str(1 << 20),
    )  # fmt: skip
    bookie.wait_for("bookie")
    with pyreplog.Cluster.connect(processes.url, secret=OLD) as cluster, cluster.create_ledger(ensemble=1) as ledger:
        ledger.append(b"a")
        secret.write_bytes(NEW)
        bookie.signal(signal.SIGHUP)
        assert bookie.popen.stderr is not None and "were reloaded" in bookie.popen.stderr.readline()
        with pyreplog.Cluster.connect(processes.url, secret=NEW) as other, other.create_ledger(ensemble=1) as another:
            another.append(b"a")
        ledger.append(b"b")
    bookie.signal(signal.SIGTERM)
    assert bookie.wait() == 0


@pytest.mark.parametrize(
    ("options", "code", "error_text"),
    [
        (["--listen", "nowhere"], 2, "--listen"),
        (["--listen", "0.0.0.0:0"], 2, "--advertise"),
        (["--tls-key", "{folder}/none"], 2, "--tls-cert"),
        (["--secret-file", "{folder}/none"], 1, "none"),
        (["--metrics", "nowhere"], 2, "--metrics"),
    ],
)
def test_serve_refuses_invalid_options(
    options: list[str], code: int, error_text: str, folder: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("signal.signal", lambda *_: None)
    done = run("serve", folder, *(option.format(folder=folder) for option in options))
    assert (done.code, done.out) == (code, "")
    assert error_text in done.error and done.error.count("\n") == 1


def test_a_server_of_a_server_is_refused(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("signal.signal", lambda *_: None)
    assert run("serve", "pyreplog://127.0.0.1:1").code == 2


def test_a_directory_that_is_open_elsewhere(processes: ProcessGroup, folder: Path) -> None:
    with Cluster.embedded(folder, bookies=1):
        done = process("serve", folder)
    assert done.code == 3 and "process" in done.error
