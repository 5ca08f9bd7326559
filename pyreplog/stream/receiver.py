"""StreamReceiver: receives the stream of a log, applies its frames to a mirror, and reports the progress."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from pyreplog._native.ha.stream_receiver_base import LITTLE_BYTES, ProgressReporter, StreamReceiverBase
from pyreplog._native.net.frame import CONTROL_OFFSET
from pyreplog.errors import ReplogError
from pyreplog.stream.syncer import Syncer

if TYPE_CHECKING:
    from pyreplog._native.net.frame import FrameBatch
    from pyreplog.net.connection import Connection
    from pyreplog.stream.mirror_log import MirrorLog


_REPORT_BYTES = 1 << 20
"""Bytes after which progress is reported even if more data has already arrived."""


class StreamReceiver(StreamReceiverBase):
    """Handles the connection to a master: a `net.connection.Handler`, and `FastPath`, for a `ReconnectingConnection`.

    Before `stream` was called, and after `stop`, bytes of the log are dropped. All callbacks come from the reactor's
    driver, except those of a sync. A single small frame, the usual case after an append, goes the fast path, and is
    reported by the reporter.

    Args:
        on_opened: called when a connection is open; it sends the first control bodies with `send`.
        on_control: called with each control body of the master. If the body accepts this node, it prepares the log and
            calls `stream`.
        on_progress: called after each batch of frames and after each sync, by two threads. It reads the marks of the
            log and reports them under a lock; without one, older marks could be reported last.
        on_closed: called with the error that closed the connection.
        on_landed: called after each read, whether it is reported or not.
        reporter: reports what takes the fast path; None: nothing takes it.
    """

    _log: MirrorLog | None
    _syncer: Syncer | None

    def __init__(
        self,
        *,
        on_opened: Callable[[], object],
        on_control: Callable[[bytes], object],
        on_progress: Callable[[], object],
        on_closed: Callable[[ReplogError], object],
        on_landed: Callable[[], object] | None = None,
        reporter: ProgressReporter | None = None,
    ) -> None:
        self._on_opened, self._on_control = on_opened, on_control
        self._on_progress, self._on_closed, self._on_landed = on_progress, on_closed, on_landed
        self._reporter = reporter
        self._pausing = threading.Lock()
        self._is_paused = False
        self._connection: Connection | None = None

    def send(self, body: bytes) -> bool:
        """Send a control body to the master; return False if there is no connection. Any thread."""
        connection = self._connection
        return connection is not None and connection.send_frame(CONTROL_OFFSET, (body,), len(body))

    def disconnect(self, error: ReplogError) -> None:
        """Close the connection, if it is open. Any thread."""
        connection = self._connection
        if connection is not None:
            connection.close(error)

    def pause(self) -> None:
        """Stop reading from this connection and later ones; data that was read is applied. Any thread."""
        self._set_paused(True)

    def resume(self) -> None:
        """Read again. Any thread."""
        self._set_paused(False)

    def _set_paused(self, is_paused: bool) -> None:
        with self._pausing:
            self._is_paused, connection = is_paused, self._connection
            if connection is not None:
                (connection.pause if is_paused else connection.resume)()

    def stream(self, log: MirrorLog, *, syncs: bool) -> None:
        """Apply the stream to `log` from now on, starting at the mark of the log. Called in a callback.

        Args:
            log: the mirror.
            syncs: whether a thread syncs the log repeatedly while more is received.
        """
        self.stop()
        log.resume()
        self._log = log
        if syncs:
            self._syncer = Syncer(log, self.report, self.disconnect)

    def stop(self) -> None:
        """Stop applying the stream. Called by the driver, or when the driver has ended."""
        self._log = None
        if self._syncer is not None:
            self._syncer.stop()
            self._syncer = None

    def report(self) -> None:
        """Report the marks of the log. Any thread."""
        if self._log is not None:
            self._on_progress()

    # ---- handler of the connection --------------------------------------------------------------------------

    def opened(self, connection: Connection) -> None:
        with self._pausing:
            self._connection = connection
            if self._is_paused:
                connection.pause()
        self._on_opened()

    def frames(self, connection: Connection, batch: FrameBatch) -> None:
        """Apply a batch of frames.

        An error that is raised closes the connection; earlier frames count and are reported.
        """
        before, count, behind = self.received_bytes, len(batch), 0
        try:
            while behind < count:
                log = self._log
                offset, bodies, size, behind = batch.run(behind, 1 if log is None else log.segment_bytes)
                if offset == CONTROL_OFFSET:
                    self._on_control(bytes(bodies[0]))
                elif size and log is not None:
                    self.received_bytes += size
                    log.append_replicated(offset, bodies)
            if self._on_landed is not None:
                self._on_landed()
        finally:
            self._report_in_time(connection, self.received_bytes - before)
        if self._syncer is not None:
            self._syncer.grew()

    def _report_in_time(self, connection: Connection, size: int) -> None:
        """Report at once, unless more data has already arrived.

        In a long stream a report costs as much as receiving a frame.

        size: bytes that arrived now; after few bytes the writer probably waits for the report.
        """
        unreported = self.received_bytes - self._reported_bytes
        if (
            0 < size <= LITTLE_BYTES
            or unreported >= _REPORT_BYTES
            or connection.error is not None
            or not connection.unread_bytes
        ):
            self._reported_bytes = self.received_bytes
            self.report()

    def drained(self, connection: Connection) -> None:
        """Do nothing: reports are sent without waiting for the queue to drain."""

    def closed(self, connection: Connection, error: ReplogError) -> None:
        self._connection = None
        self.stop()
        self._on_closed(error)
