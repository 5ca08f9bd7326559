"""Common parts of commands that run until they are stopped."""

from __future__ import annotations

import argparse
import gc
import logging
import math
import os
import signal
import ssl
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext, suppress
from pathlib import Path
from queue import Empty, SimpleQueue

from pyreplog.cli.shared import tls
from pyreplog.errors import CorruptionError, InvalidArgumentError, ReplogError
from pyreplog.metrics import MetricsServer, Source
from pyreplog.net.handshake import Secret, parse_secret
from pyreplog.net.sockets import address_text
from pyreplog.net.tls import TlsContext
from pyreplog.regular_files import SECRET_FILE_MAX, read_regular

logger = logging.getLogger(__name__)

DRAIN_S, SECONDS_MAX = 10.0, 86_400.0

GRACE_S = 1.0
"""Seconds after `--drain-s` for the disk; everything else has ended before."""

SAY_S = 0.25
_POLL_S = 0.5
"""Of two signals that come together the kernel gives one to another thread, which does not wake the main thread: its
handler runs when that looks."""

METRICS_HELP = "serve Prometheus there (default host 127.0.0.1)"


class Stop:
    """An event whose `set` a signal handler may call during `wait`.

    `threading.Event` would wait forever for the lock that the interrupted thread holds.
    """

    def __init__(self, reload: Callable[[], object] | None = None) -> None:
        self._signals: SimpleQueue[bool] = SimpleQueue()  # its `put` is reentrant
        self._reload = reload

    def set(self) -> None:
        self._signals.put(True)

    def reload(self) -> None:
        """Have `wait` reload files. A signal handler may call it."""
        self._signals.put(False)

    def wait(self, timeout: float | None = None) -> bool:
        """Return whether it was set within `timeout` seconds; None: wait without limit. For one thread."""
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        while True:
            left = max(deadline - time.monotonic(), 0.0)
            try:
                if self._signals.get(timeout=min(left, _POLL_S)):
                    return True
            except Empty:
                if left <= _POLL_S:
                    return False
                continue
            if self._reload is None:
                logger.warning("SIGHUP: there are no files to reload")
            else:
                self._reload()


def stopped_by_signals(reload: Callable[[], object] | None = None) -> Stop:
    """Return an event that SIGTERM and Ctrl-C set from now on. SIGHUP has its `wait` call `reload`."""
    stop = Stop(reload)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    signal.signal(signal.SIGHUP, lambda *_: stop.reload())
    return stop


Loader = Callable[[argparse.Namespace], ssl.SSLContext | None]


class ServerCredentials:
    """Secrets and TLS contexts from the files of a command, for as long as it runs.

    is_peer: the command connects to other nodes as well, and --tls-ca names those that it trusts. Raises
    InvalidArgumentError and OSError.
    """

    def __init__(self, arguments: argparse.Namespace, *, is_peer: bool, client: Loader = tls.client_context) -> None:
        self._arguments, self._client = arguments, client if is_peer else _no_context
        self.secret = Secret.of(secret(arguments.secret_file))
        self.server = _reloaded(tls.server_context(arguments))
        self.client = _reloaded(self._client(arguments))

    @property
    def has_files(self) -> bool:
        """Whether `reload` would read anything."""
        return self.secret is not None or self.server is not None or self.client is not None

    def reload(self) -> None:
        """Reload the files, for later connections. If one is invalid, that is logged and nothing changes."""
        if not self.has_files:
            logger.warning("SIGHUP: there are no files to reload")
            return
        try:
            new_secret = secret(self._arguments.secret_file)
            contexts = tls.server_context(self._arguments), self._client(self._arguments)
        except (ReplogError, OSError) as error:
            logger.error("SIGHUP: secrets and certificates were not reloaded: %s", error)
            return
        for context, other in zip((self.server, self.client), contexts, strict=True):
            if context is not None and other is not None:
                context.replace(other)
        if self.secret is not None and new_secret is not None:
            self.secret.take(new_secret)
        logger.warning("SIGHUP: secrets and certificates were reloaded, for new connections")


def _no_context(_: argparse.Namespace) -> None:
    return None


def _reloaded(context: ssl.SSLContext | None) -> TlsContext | None:
    return None if context is None else TlsContext(context)


def add_drain_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--drain-s",
        metavar="S",
        type=seconds,
        default=DRAIN_S,
        help=f"seconds after SIGTERM within which replies and state are completed (default {DRAIN_S:g})",
    )


def seconds(text: str) -> float:
    """Parse a number of seconds, a day at most. Raises ArgumentTypeError."""
    try:
        parsed = float(text)
    except ValueError:
        parsed = math.nan
    if not 0 <= parsed <= SECONDS_MAX:
        raise argparse.ArgumentTypeError(f"expected 0 to {SECONDS_MAX:g} seconds, found {text!r}")
    return parsed


def skip_final_collection() -> None:
    """Skip the garbage collection at exit, which takes half a second for 1,000 topics.

    Call it after closing everything.
    """
    gc.freeze()


class Drain:
    """The time of `--drain-s`, from construction on. A server that was told to stop closes itself within it.

    If it has not ended GRACE_S later, it waits for a disk or a store that does not answer, and the process is ended.
    Confirmed data are not lost by that; it is like a kill.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._began = time.monotonic()
        timer = threading.Timer(seconds + GRACE_S, self._give_up)
        timer.daemon = True
        timer.start()

    def deadline(self, part: float = 1.0) -> float:
        """Return when a part of the time is over, on the clock of `time.monotonic()`."""
        return self._began + part * self.seconds

    def remaining_s(self, part: float = 1.0) -> float:
        """Return the seconds until a part of the time is over; 0.0: it is over."""
        return max(self.deadline(part) - time.monotonic(), 0.0)

    def _give_up(self) -> None:
        """End the process. Another thread writes the message, because standard error may block."""
        writer = threading.Thread(target=self._say_late, daemon=True)
        writer.start()
        writer.join(SAY_S)
        os._exit(ReplogError.exit_code)

    def _say_late(self) -> None:
        with suppress(OSError):
            late = f"not closed {GRACE_S:g} s after the {self.seconds:g} s of --drain-s"
            os.write(2, f"pyreplog: {late}; the process ends; the outcome of open requests is unknown\n".encode())


def metrics_server(arguments: argparse.Namespace, source: Source) -> MetricsServer | nullcontext[None]:
    """Return the server that `--metrics` asks for; a null context without it."""
    if arguments.metrics is None:
        return nullcontext()
    host, port = host_and_port("--metrics", arguments.metrics, host="127.0.0.1")
    return MetricsServer([source], host=host, port=port)


def host_and_port(option: str, text: str, *, host: str = "") -> tuple[str, int]:
    """Parse HOST:PORT. host: default host. Raises InvalidArgumentError."""
    name, _, port = text.rpartition(":")
    name = name.strip("[]") or host
    if not name or not port.isdecimal() or int(port) > 65535:
        raise InvalidArgumentError(f"{option}: expected HOST:PORT, found {text!r}")
    return name, int(port)


def listening(arguments: argparse.Namespace, prefix: str = "") -> tuple[str, int, str | None]:
    """Return host and port of `--listen`, and the address that others get instead, if there is one.

    prefix: "kafka-": those of `--kafka` and `--kafka-advertise`.
    """
    listen, advertise = (prefix.rstrip("-"), f"{prefix}advertise") if prefix else ("listen", "advertise")
    text = getattr(arguments, listen)
    host, port = host_and_port(f"--{listen}", text)
    advertised = getattr(arguments, advertise.replace("-", "_"))
    if advertised is not None:
        return host, port, address_text(host_and_port(f"--{advertise}", advertised))
    if host in ("0.0.0.0", "::"):
        raise InvalidArgumentError(
            f"--{listen} {text}: expected an address that clients can reach, or one in --{advertise}"
        )
    return host, port, None


def secret(file: Path | None) -> Secret | None:
    """Return the secret in a file; None: no file. See `parse_secret`.

    Raises OSError, and InvalidArgumentError if a key is too short or the file is no regular file.
    """
    if file is None:
        return None
    try:
        return parse_secret(read_regular(file, SECRET_FILE_MAX))
    except CorruptionError as error:
        raise InvalidArgumentError(f"expected a secret in a regular file: {error}") from error
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"{file}: {error}") from None
