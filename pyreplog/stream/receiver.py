"""A replica's end of a stream: what arrives goes into the log and is reported."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from pyreplog._native.net.frame import CONTROL_OFFSET
from pyreplog.errors import ReplogError
from pyreplog.stream.syncer import Syncer

if TYPE_CHECKING:
    from pyreplog._native.net.frame import FrameBatch
    from pyreplog.net.connection import Connection
    from pyreplog.stream.mirrorlog import MirrorLog


_REPORT_BYTES = 1 << 20
"""So much may go in before it is reported, while more is there already."""

_AWAITED_BYTES = 4 << 10


class StreamReceiver:
    """Handles a connection to a master: a `net.connection.Handler`, and `FastPath`, for a
    `net.dialer.ReconnectingConnection`.

    Before `stream` was called and after `stop`, bytes of the log are dropped. All callbacks but those of a sync come
    from the reactor's driver.

    on_opened(): there is a connection: what is to be said first is said with `say`. on_control(body): the master's
    word; whoever hears that it accepts prepares the log and calls `stream`. on_progress(): after each batch that
    arrived, and each sync, from two threads: the log's marks are to be looked at, and told, under a lock, for else the
    older ones could be told last. on_closed(error). on_landed(): after each read, reported or not.
    """

    def __init__(
        self,
        *,
        on_opened: Callable[[], object],
        on_control: Callable[[bytes], object],
        on_progress: Callable[[], object],
        on_closed: Callable[[ReplogError], object],
        on_landed: Callable[[], object] | None = None,
    ) -> None:
        self._on_opened, self._on_control = on_opened, on_control
        self._on_progress, self._on_closed, self._on_landed = on_progress, on_closed, on_landed
        self._pausing = threading.Lock()
        self._is_paused = False
        self._connection: Connection | None = None
        self._log: MirrorLog | None = None
        self._syncer: Syncer | None = None
        self.received_bytes = 0
        """Of the log, on this connection and those before it."""
        self._reported_bytes = 0

    def say(self, body: bytes) -> bool:
        """Send a control body to the master; False: there is no connection. Any thread."""
        connection = self._connection
        return connection is not None and connection.send_frame(CONTROL_OFFSET, (body,), len(body))

    def disconnect(self, error: ReplogError) -> None:
        """Close the connection, if there is one. Any thread."""
        connection = self._connection
        if connection is not None:
            connection.close(error)

    def pause(self) -> None:
        """Read nothing more, on whatever connection; what was read lands. Any thread."""
        self._pause(True)

    def resume(self) -> None:
        """Go on. Any thread."""
        self._pause(False)

    def _pause(self, is_paused: bool) -> None:
        with self._pausing:
            self._is_paused, connection = is_paused, self._connection
            if connection is not None:
                (connection.pause if is_paused else connection.resume)()

    def stream(self, log: MirrorLog, *, syncs: bool) -> None:
        """From here on, the stream goes into `log`, at the mark where it stands. In a callback.

        syncs: sync what has arrived, over and over, in a thread: while it does, more is received.
        """
        self.stop()
        log.resume()
        self._log = log
        if syncs:
            self._syncer = Syncer(log, self.report, self.disconnect)

    def stop(self) -> None:
        """Take nothing more. By the driver, or when there is none any more."""
        self._log = None
        if self._syncer is not None:
            self._syncer.stop()
            self._syncer = None

    def report(self) -> None:
        """Have the log's marks reported. Any thread."""
        if self._log is not None:
            self._on_progress()

    # ---- what the connection tells --------------------------------------------------------------------------

    def opened(self, connection: Connection) -> None:
        with self._pausing:
            self._connection = connection
            if self._is_paused:
                connection.pause()
        self._on_opened()

    def fast_path(self, connection: Connection, batch: FrameBatch) -> bytes | None:
        """A little of the log that comes by itself, as for each append: `frames`, with less in between."""
        frame, log = batch.alone(), self._log
        if frame is None or log is None:
            return None
        offset, body = frame
        if offset < 0 or not 0 < len(body) <= _AWAITED_BYTES:
            return None
        self.received_bytes += len(body)
        try:
            log.land(offset, (body,))
            if self._on_landed is not None:
                self._on_landed()
        finally:
            self._reported_bytes = self.received_bytes
            self.report()
        if self._syncer is not None:
            self._syncer.grew()
        return b""

    def frames(self, connection: Connection, batch: FrameBatch) -> None:
        """An error that is raised closes the connection; what went in before it counts and is reported."""
        before, count, behind = self.received_bytes, len(batch), 0
        try:
            while behind < count:
                log = self._log
                offset, bodies, size, behind = batch.run(behind, 1 if log is None else log.segment_bytes)
                if offset == CONTROL_OFFSET:
                    self._on_control(bytes(bodies[0]))
                elif size and log is not None:
                    self.received_bytes += size
                    log.land(offset, bodies)
            if self._on_landed is not None:
                self._on_landed()
        finally:
            self._report_in_time(connection, self.received_bytes - before)
        if self._syncer is not None:
            self._syncer.grew()

    def _report_in_time(self, connection: Connection, size: int) -> None:
        """At once, unless more has arrived already: in a long stream each report costs as much as receiving a frame.
        size: of what has come now; little is awaited by somebody."""
        unreported = self.received_bytes - self._reported_bytes
        if (
            0 < size <= _AWAITED_BYTES
            or unreported >= _REPORT_BYTES
            or connection.error is not None
            or not connection.unread_bytes
        ):
            self._reported_bytes = self.received_bytes
            self.report()

    def drained(self, connection: Connection) -> None:
        """Reports wait for nothing."""

    def closed(self, connection: Connection, error: ReplogError) -> None:
        self._connection = None
        self.stop()
        self._on_closed(error)
