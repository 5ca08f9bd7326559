"""What the commands that run until they are told to stop have in common."""

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
from pyreplog.net.tls import TlsContext
from pyreplog.regular_files import SECRET_FILE_MAX, read_regular

logger = logging.getLogger(__name__)

DRAIN_S, DRAIN_MAX_S = 10.0, 86_400.0

GRACE_S = 1.0
"""Behind `--drain-s`, for the disk: what is left behind it does not wait for others."""

SAY_S = 0.25

METRICS_HELP = "serve Prometheus there (default host 127.0.0.1)"


class Stop:
    """Like an Event, whose `set` a signal may call in the middle of `wait`: an Event's would wait for the lock that
    the interrupted thread has, for ever."""

    def __init__(self, reload: Callable[[], object] | None = None) -> None:
        self._told: SimpleQueue[bool] = SimpleQueue()  # its `put` may be called so
        self._reload = reload

    def set(self) -> None:
        self._told.put(True)

    def reload(self) -> None:
        """Have `wait` load files anew; as `set`."""
        self._told.put(False)

    def wait(self, timeout: float | None = None) -> bool:
        """For one thread: whether it was set, within `timeout` seconds (None: waits for ever)."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            try:
                if self._told.get(timeout=None if deadline is None else max(deadline - time.monotonic(), 0.0)):
                    return True
            except Empty:
                return False
            if self._reload is None:
                logger.warning("SIGHUP: there are no files to be loaded anew")
            else:
                self._reload()


def stopped_by_signals(reload: Callable[[], object] | None = None) -> Stop:
    """Set by SIGTERM and Ctrl-C from now on; SIGHUP has `wait` call `reload`."""
    stop = Stop(reload)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    signal.signal(signal.SIGHUP, lambda *_: stop.reload())
    return stop


Loader = Callable[[argparse.Namespace], ssl.SSLContext | None]


class ServerCredentials:
    """What a command's files say of secrets and TLS, for as long as it runs. is_peer: it connects to others, too, and
    --tls-ca says who these may be. Errors: InvalidArgumentError; OSError."""

    def __init__(self, arguments: argparse.Namespace, *, is_peer: bool, client: Loader = tls.client_context) -> None:
        self._arguments, self._client = arguments, client if is_peer else _no_context
        self.secret = Secret.of(secret(arguments.secret_file))
        self.server = _reloaded(tls.server_context(arguments))
        self.client = _reloaded(self._client(arguments))

    def reload(self) -> None:
        """Load the files anew, for connections to come. What is wrong with one is logged: then all stay as they are."""
        if self.secret is None and self.server is None and self.client is None:
            logger.warning("SIGHUP: there are no files to be loaded anew")
            return
        try:
            found = secret(self._arguments.secret_file)
            contexts = tls.server_context(self._arguments), self._client(self._arguments)
        except (ReplogError, OSError) as error:
            logger.error("SIGHUP: secrets and certificates stay as they are: %s", error)
            return
        for context, other in zip((self.server, self.client), contexts, strict=True):
            if context is not None and other is not None:
                context.replace(other)
        if self.secret is not None and found is not None:
            self.secret.take(found)
        logger.warning("SIGHUP: secrets and certificates were loaded anew, for connections to come")


def _no_context(_: argparse.Namespace) -> None:
    return None


def _reloaded(context: ssl.SSLContext | None) -> TlsContext | None:
    return None if context is None else TlsContext(context)


def add_drain_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--drain-s",
        metavar="S",
        type=_seconds,
        default=DRAIN_S,
        help=f"end within so many seconds of SIGTERM: answer and store what can be by then (default {DRAIN_S:g})",
    )


def _seconds(text: str) -> float:
    """ArgumentTypeError."""
    try:
        found = float(text)
    except ValueError:
        found = math.nan
    if not 0 <= found <= DRAIN_MAX_S:
        raise argparse.ArgumentTypeError(f"expected 0 to {DRAIN_MAX_S:g} seconds, found {text!r}")
    return found


def skip_final_collection() -> None:
    """The interpreter does not look through all objects as it ends, half a second of processor for 1,000 topics: memory
    goes with the process. For what was closed."""
    gc.freeze()


class Drain:
    """The time of `--drain-s`, from construction on: a server that was told to stop closes itself within it.

    One that has not even then ended after GRACE_S more waits for something that does not answer, a disk or a store: the
    process is ended, whatever it waits for. Nothing that was confirmed is lost by it: it is as if it were killed.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._began = time.monotonic()
        timer = threading.Timer(seconds + GRACE_S, self._give_up)
        timer.daemon = True
        timer.start()

    def deadline(self, part: float = 1.0) -> float:
        """When that part of the time is over, by `time.monotonic()`."""
        return self._began + part * self.seconds

    def left(self, part: float = 1.0) -> float:
        """Seconds until then; 0.0, it is over."""
        return max(self.deadline(part) - time.monotonic(), 0.0)

    def _give_up(self) -> None:
        """Another thread says so: nobody may read standard error."""
        says = threading.Thread(target=self._say_late, daemon=True)
        says.start()
        says.join(SAY_S)
        os._exit(ReplogError.exit_code)

    def _say_late(self) -> None:
        with suppress(OSError):
            late = f"not closed {GRACE_S:g} s after the {self.seconds:g} s of --drain-s"
            os.write(2, f"pyreplog: {late}; what had no outcome is given up\n".encode())


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


def secret(file: Path | None) -> Secret | None:
    """See `parse_secret`. None: no file.

    Errors: OSError; InvalidArgumentError, one is too short, or it is no regular file.
    """
    if file is None:
        return None
    try:
        return parse_secret(read_regular(file, SECRET_FILE_MAX))
    except CorruptionError as error:
        raise InvalidArgumentError(f"expected a secret in a file, not {error}") from error
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"{file}: {error}") from None
