"""Whoever reaches the port of metrics takes little of the process, and nothing for long."""

from __future__ import annotations

import logging
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from pyreplog import metrics_http_server
from pyreplog.metrics import Metric, MetricsServer
from tests.waiting import until

pytest.importorskip("prometheus_client")


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[MetricsServer]:
    monkeypatch.setattr(metrics_http_server, "CONNECTIONS_MAX", 4)
    monkeypatch.setattr(metrics_http_server, "REQUEST_S", 3600.0)
    with MetricsServer([lambda: [Metric("things", "gauge", "Some.", [({}, 1.0)])]]) as server:
        yield server


def scrape(server: MetricsServer) -> str | None:
    """None: nothing was answered."""
    try:
        with urllib.request.urlopen("http://{}:{}/metrics".format(*server.address), timeout=60) as reply:
            return reply.read().decode()  # type: ignore[no-any-return]
    except (urllib.error.URLError, ConnectionError):
        return None


def ends(sock: socket.socket) -> bool:
    """Whether the server closes it, unheard."""
    try:
        return sock.recv(1) == b""
    except ConnectionError:
        return True


def test_a_few_connections_at_a_time_and_none_for_long(server: MetricsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    before = threading.active_count()
    with ExitStack() as stack:
        slow = [stack.enter_context(socket.create_connection(server.address, timeout=20)) for _ in range(40)]
        for sock in slow[:4]:
            sock.sendall(b"GET /")
        assert all(ends(sock) for sock in slow[4:])
        assert threading.active_count() <= before + 4
        assert scrape(server) is None
        monkeypatch.setattr(metrics_http_server, "REQUEST_S", 0.1)
        assert all(ends(sock) for sock in slow[:4]), "though more of the request may come yet"
        until(lambda: scrape(server) is not None)


def test_a_source_that_fails_is_a_line_in_the_log(
    caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    """Others tell theirs; who asked and has gone is nobody's trouble."""

    def broken() -> list[Metric]:
        raise ValueError("a bug")

    with MetricsServer([broken, lambda: [Metric("things", "gauge", "Some.", [({}, 1.0)])]]) as server:
        assert "things 1.0" in (scrape(server) or "")
        with socket.create_connection(server.address) as sock:
            sock.sendall(b"no such thing\r\n\r\n")
            assert b"400" in sock.recv(1000)
    told = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert [record.getMessage() for record in told] == ["metrics: a source failed: ValueError('a bug')"]
    assert capfd.readouterr().err == ""


def test_a_metrics_server_without_descriptors_waits(
    server: MetricsServer, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    accept, failures = socket.socket.accept, [24, 24]

    def failing(sock: socket.socket) -> tuple[socket.socket, object]:
        if failures:
            raise OSError(failures.pop(), "Too many open files")
        return accept(sock)

    monkeypatch.setattr(metrics_http_server, "_EXHAUSTED_S", 0.01)
    monkeypatch.setattr(socket.socket, "accept", failing)
    assert scrape(server) is not None and not failures
    assert caplog.text.count("no connection can be accepted for now") == 1
