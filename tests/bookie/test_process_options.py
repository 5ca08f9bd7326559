"""`pyreplog bookie` with settings, TLS and metrics: what is served, and what is refused before anything is."""

from __future__ import annotations

import io
import re
import ssl
import urllib.request
from pathlib import Path

import pytest

from pyreplog._native.system.histogram import Histogram
from pyreplog.bookie.protocol import Reply, ReplyStatus, Request, RequestKind
from pyreplog.cli.app import main
from pyreplog.errors import AuthenticationError, MissingExtraError, NotConnectedError, ReplogError
from pyreplog.metrics import Metric, MetricsServer, register
from tests.bookie.asking import add, entries_in, last, read, wait_lac
from tests.bookie.tcp import Client
from tests.bookie.test_process import Process, running
from tests.net.test_tls import Authority


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("certificates")


@pytest.fixture(scope="module")
def authority(folder: Path) -> Authority:
    return Authority(folder, "ours")


# ---- TLS -------------------------------------------------------------------------------------------------------------


def client_of(process: Process, authority: Authority, certificate: Path | None = None) -> Client:
    context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cafile=str(authority.file))
    if certificate is not None:
        context.load_cert_chain(certificate)
    return Client(process.address, tls=context)


def test_a_bookie_serves_behind_tls(authority: Authority, tmp_path: Path) -> None:
    with running(tmp_path, "--tls-cert", str(authority.issue("server"))) as process:
        with client_of(process, authority) as client:
            assert client.ask(add(0, 1)).status == ReplyStatus.OK
            assert entries_in(client.ask(read(0, 1))) == [0, 1]
        with Client(process.address) as plain, pytest.raises(NotConnectedError):
            plain.ask(read(0, 1))


def test_a_bookie_checks_certificates_of_clients(authority: Authority, folder: Path, tmp_path: Path) -> None:
    server, stranger = authority.issue("server"), Authority(folder, "theirs")
    with running(
        tmp_path, "--tls-cert", str(server), "--tls-key", str(server), "--tls-client-ca", str(authority.file)
    ) as process:
        with client_of(process, authority, authority.issue("client")) as client:
            assert client.ask(add(0)).status == ReplyStatus.OK
        for certificate in (None, stranger.issue("client")):
            with client_of(process, authority, certificate) as refused, pytest.raises(NotConnectedError) as caught:
                refused.ask(read(0, 0))
            assert isinstance(caught.value.__cause__, AuthenticationError)


def test_commands_of_ledgers_work_behind_tls(
    authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO()))
    certificate, ours = str(authority.issue("server")), str(authority.issue("client"))
    where = ["--cluster", f"sqlite:{tmp_path / 'metadata.sqlite'}", "--tls-ca", str(authority.file)]
    make = ["create", "--ensemble", "1"]
    with running(tmp_path, "--tls-cert", certificate, "--tls-client-ca", str(authority.file)):
        assert main(["ledger", *where, "--tls-cert", ours, *make]) == 0
        assert main(["ledger", *where, "--tls-cert", ours, "read", "10"]) == 0
        assert main(["cluster", *where, "--tls-cert", ours, "status"]) == 0
    assert "ledger 10: 0 entries" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "error_text"),
    [
        (["--tls-key", "{good}"], "--tls-cert"),
        (["--tls-client-ca", "{good}"], "--tls-cert"),
        (["--tls-cert", "{absent}"], "absent"),
        (["--tls-cert", "{bad}"], "bad.pem"),
        (["--tls-cert", "{good}", "--tls-key", "{bad}"], "bad.pem"),
        (["--tls-cert", "{good}", "--tls-client-ca", "{bad}"], "--tls-client-ca"),
        (["--metrics", "nowhere"], "--metrics"),
        (["--listen", "0.0.0.0:0"], "an address that clients can reach"),
        (["--listen", "[::]:7000"], "an address that clients can reach"),
        (["--metrics", "127.0.0.1:65536"], "--metrics"),
        (["--set", "unheard-of=1"], "unheard_of"),
        (["--set", "compact_below_percent=101"], "compact_below_percent"),
        (["--set", "compact_below_percent=half"], "half"),
        (["--set", "ledger_states_max=true"], "ledger_states_max"),
        (["--set", "durability"], "NAME=VALUE"),
        (["--config", "{bad}"], "bad.pem"),
        (["--config", "{absent}"], "absent"),
        (["--config", "{settings}"], "unheard_of"),
    ],
)
def test_bad_options_of_a_bookie_are_refused(
    options: list[str],
    error_text: str,
    authority: Authority,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("signal.signal", lambda *_: None)
    files = {name: tmp_path / f"{name}.pem" for name in ("bad", "absent", "settings")}
    files["bad"].write_text("[no certificate")
    files["settings"].write_text("unheard_of = 1\n")
    files["good"] = authority.issue("server")
    asked = [option.format(**files) for option in options]
    assert main(["bookie", str(tmp_path / "b"), "--metadata", f"sqlite:{tmp_path / 'm'}", *asked]) == 2
    output = capsys.readouterr()
    assert error_text in output.err and output.err.count("\n") == 1 and not output.out


# ---- settings --------------------------------------------------------------------------------------------------------


def test_settings_of_a_file_and_of_the_command_line(tmp_path: Path) -> None:
    """long_polls_max: 0 polls fit; --set goes before the file."""
    (tmp_path / "bookie.toml").write_text('long_polls_max = 9\ndurability = "appended"\n')
    with (
        running(tmp_path, "--config", str(tmp_path / "bookie.toml"), "--set", "long-polls-max=1") as process,
        Client(process.address) as client,
    ):
        waiting = client.send(wait_lac(0, limit=60_000), wait_lac(1, limit=60_000))
        (answer,) = client.wait(waiting, 1)
        assert isinstance(answer, Reply) and answer.status == ReplyStatus.OVERLOADED


# ---- metrics ---------------------------------------------------------------------------------------------------------


def scrape(address: str) -> dict[str, float]:
    """Value by name and labels, but for the bookie's."""
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=60) as reply:
        lines = [line for line in reply.read().decode().splitlines() if not line.startswith("#")]
    pairs = (
        re.sub(r'bookie="[^"]*",?|\{bookie="[^"]*"\}', "", line).replace("{}", "").rsplit(" ", 1) for line in lines
    )
    return {name.removeprefix("pyreplog_bookie_"): float(value) for name, value in pairs}


def test_each_scraped_metric_of_a_bookie_is_documented(tmp_path: Path) -> None:
    """Of a bookie that has done a little of everything; documented, each of them."""
    with (
        running(tmp_path, "--metrics", "0", "--set", "ledger_states_max=2") as process,
        Client(process.address) as client,
    ):
        for ledger in range(5):
            client.ask(add(0, 1, 2, ledger=ledger))
        size = len(add(0, 1, 2, ledger=0).records) * 5
        given = sum(len(client.ask(read(0, 2, ledger=ledger)).body) for ledger in range(3))
        client.ask(last(fence=True, ledger=1))
        assert client.ask(add(3, ledger=1)).status == ReplyStatus.FENCED
        client.ask(Request(RequestKind.STATUS))
        poll = client.send(wait_lac(9, limit=60_000))
        client.ask(Request(RequestKind.STATUS))
        metrics = scrape(process.output["metrics"])
        assert not poll
    expected = {
        'requests_total{kind="add"}': 6, 'requests_total{kind="read"}': 3, 'requests_total{kind="last"}': 1,
        'replies_total{status="fenced"}': 1, 'replies_total{status="ok"}': 11, 'replies_total{status="unknown"}': 0,
        "added_entries_total": 15, "added_bytes_total": size, "read_bytes_total": given, "fences_total": 1,
        "commit_entries_count": 6, "commit_entries_sum": 15, 'commit_entries_bucket{le="1.0"}': 1,
        'commit_entries_bucket{le="4.0"}': 6, "sync_seconds_count": 6, 'sync_seconds_bucket{le="+Inf"}': 6,
        "ledgers": 5, "ledger_states": 2, "limbo_ledgers": 0, "long_polls": 1, "read_only": 0, "failed": 0,
        "trimmed_segments_total": 0, "hollowed_segments_total": 0, "compacted_bytes_total": 0, "connections": 1,
        "refused_connections_total": 0,
    }  # fmt: skip
    assert {name: metrics[name] for name in expected} == expected
    assert metrics["free_bytes"] > 0 and metrics["sync_seconds_sum"] > 0 and metrics["inflight_bytes"] > 0
    documented = (Path(__file__).parents[2] / "docs" / "operations.md").read_text()
    bare = {re.sub(r"(_bucket|_count|_sum|)(\{.*)?$", "", name) for name in metrics}
    missing = {name for name in bare if f"`pyreplog_bookie_{name}`" not in documented}
    assert not missing


def test_metrics_of_any_source_are_served() -> None:
    histogram = Histogram((1, 2.5))
    for value in (0.5, 1, 2, 99):
        histogram.observe(value)
    metric = Metric("things", "histogram", "Some.", [({"kind": "a"}, histogram)])
    with MetricsServer([lambda: [metric], lambda: [Metric("none", "gauge", "No.", [])]]) as server:
        assert scrape("{}:{}".format(*server.address)) == {
            'things_bucket{kind="a",le="1.0"}': 2.0,
            'things_bucket{kind="a",le="2.5"}': 3.0,
            'things_bucket{kind="a",le="+Inf"}': 4.0,
            'things_count{kind="a"}': 4.0,
            'things_sum{kind="a"}': 102.5,
        }


def test_a_registry_of_the_programs_own() -> None:
    from prometheus_client import CollectorRegistry, generate_latest

    registry = CollectorRegistry()
    forget = register(lambda: [Metric("things", "counter", "Some.", [({}, 7.0)])], registry)
    assert b"things_total 7.0" in generate_latest(registry)
    forget()
    assert b"things" not in generate_latest(registry)


def test_metrics_without_the_extra_name_the_package_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "prometheus_client", None)
    with pytest.raises(MissingExtraError, match=r"pyreplog\[metrics\]"):
        MetricsServer([])
    monkeypatch.setattr("signal.signal", lambda *_: None)
    arguments = ["bookie", str(tmp_path / "b"), "--metadata", f"sqlite:{tmp_path / 'm'}", "--metrics", "0"]
    assert main(arguments) == 2 and "pyreplog[metrics]" in capsys.readouterr().err
    assert issubclass(MissingExtraError, ReplogError)
