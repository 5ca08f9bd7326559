"""What wakes a driver that sleeps in epoll."""

from __future__ import annotations

import os
import select

from pyreplog._native.net.socket_io import ring


class Wakeup:
    """An eventfd. Its descriptor is closed with the last reference: who rings while the reactor is being closed must
    not write into a file that has got the same number by then. Nor by a finalizer: of a reactor that is forgotten they
    run first, and then somebody still closes it. An epoll object has none, and closes whatever it has when it goes."""

    __slots__ = ("_keeper", "fd")

    def __init__(self) -> None:
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._keeper = select.epoll.fromfd(self.fd)

    def ring(self) -> None:
        try:
            ring(self.fd)
        except BlockingIOError:  # full: the driver is awake
            return

    def clear(self) -> None:
        """Take back all rings."""
        try:
            os.eventfd_read(self.fd)
        except BlockingIOError:
            return
