"""Wakeup: wakes a driver that sleeps in epoll."""

from __future__ import annotations

import os
import select

from pyreplog._native.net.socket_io import ring


class Wakeup:
    """An eventfd whose descriptor is closed with the last reference to this object.

    A thread that rings while the reactor is being closed must not write into a file that has got the same number by
    then. A finalizer would not do: those of an unclosed reactor run first, and another object may close the reactor
    after them. An epoll object has no finalizer, and closes its descriptor when it is freed; so one keeps the eventfd.
    """

    __slots__ = ("_keeper", "fd")

    def __init__(self) -> None:
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._keeper = select.epoll.fromfd(self.fd)

    def ring(self) -> None:
        """Wake the driver."""
        try:
            ring(self.fd)
        except BlockingIOError:  # full: the driver is awake
            return

    def clear(self) -> None:
        """Reset the eventfd after the driver woke."""
        try:
            os.eventfd_read(self.fd)
        except BlockingIOError:
            return
