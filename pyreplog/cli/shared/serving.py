"""What the commands that run until they are told to stop have in common."""

from __future__ import annotations

import argparse
import signal
from contextlib import nullcontext
from pathlib import Path
from queue import Empty, SimpleQueue

from pyreplog.errors import InvalidArgumentError
from pyreplog.metrics import MetricsServer, Source

METRICS_HELP = "serve Prometheus there (default host 127.0.0.1)"


class Stop:
    """Like an Event, whose `set` a signal may call in the middle of `wait`: an Event's would wait for the lock that
    the interrupted thread has, for ever."""

    def __init__(self) -> None:
        self._told: SimpleQueue[None] = SimpleQueue()  # its `put` may be called so

    def set(self) -> None:
        self._told.put(None)

    def wait(self, timeout: float | None = None) -> bool:
        """For one thread: whether it was set, within `timeout` seconds (None: waits for ever)."""
        try:
            self._told.get(timeout=timeout)
        except Empty:
            return False
        return True


def stopped_by_signals() -> Stop:
    """Set by SIGTERM and Ctrl-C from now on."""
    stop = Stop()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    return stop


def metrics_server(arguments: argparse.Namespace, source: Source) -> MetricsServer | nullcontext[None]:
    """As `--metrics` says."""
    if arguments.metrics is None:
        return nullcontext()
    host, port = host_and_port("--metrics", arguments.metrics, host="127.0.0.1")
    return MetricsServer([source], host=host, port=port)


def address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def host_and_port(option: str, text: str, *, host: str = "") -> tuple[str, int]:
    """host: the one that need not be said. InvalidArgumentError."""
    name, _, port = text.rpartition(":")
    name = name.strip("[]") or host
    if not name or not port.isdecimal() or int(port) > 65535:
        raise InvalidArgumentError(f"{option}: expected HOST:PORT, found {text!r}")
    return name, int(port)


def listening(arguments: argparse.Namespace) -> tuple[str, int, str | None]:
    """Host and port of `--listen`, and what others are told in place of them."""
    host, port = host_and_port("--listen", arguments.listen)
    if arguments.advertise is not None:
        return host, port, address(*host_and_port("--advertise", arguments.advertise))
    if host in ("0.0.0.0", "::"):
        raise InvalidArgumentError(
            f"--listen {arguments.listen}: clients are told it; name an address they can reach, or --advertise one"
        )
    return host, port, None


def secret(file: Path | None) -> bytes | None:
    """The file's content without the line feed at its end."""
    return None if file is None else file.read_bytes().rstrip(b"\r\n")
