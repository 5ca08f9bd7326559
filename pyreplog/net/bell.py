"""What wakes a driver that sleeps in epoll."""

from __future__ import annotations

import os

from pyreplog._native.pump import ring


class Bell:
    """An eventfd. Its descriptor is closed with the last reference: who rings while the reactor is being closed must
    not write into a file that has got the same number by then."""

    __slots__ = ("fd",)

    def __init__(self) -> None:
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def __del__(self) -> None:
        if hasattr(self, "fd"):  # else there were no descriptors left
            os.close(self.fd)

    def ring(self) -> None:
        try:
            ring(self.fd)
        except BlockingIOError:  # full: the driver is awake
            return

    def hush(self) -> None:
        """Take back all rings."""
        try:
            os.eventfd_read(self.fd)
        except BlockingIOError:
            return
