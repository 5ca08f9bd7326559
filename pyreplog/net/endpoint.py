"""Endpoint: the common part of servers and channels, handles that live on a reactor."""

from __future__ import annotations

import os
from abc import abstractmethod

from pyreplog.errors import ForkedError, ReplogError
from pyreplog.handles import Handle
from pyreplog.net.reactor import Reactor

_CLOSE_S = 5.0


class Endpoint(Handle):
    """A handle whose work, closing included, is done by callbacks of a reactor."""

    def __init__(self, label: str, reactor: Reactor) -> None:
        self._reactor = reactor
        super().__init__(label)

    @abstractmethod
    def _close_in_driver(self) -> None:
        """Release all connections. Called by the driver of the reactor, or after the reactor was closed."""

    @abstractmethod
    def _is_released(self) -> bool:
        """Return whether all connections are released."""

    def close(self) -> None:
        """Close at once, and wait for running callbacks, unless the caller is one of them."""
        super().close()
        if os.getpid() == self._pid and not self._reactor.in_driver() and not self._is_released():
            self._reactor.drive(self._is_released, _CLOSE_S)

    def _do_close(self) -> None:
        try:
            self._reactor.call_soon(self._close_in_driver)
        except ReplogError:  # the reactor was closed before
            self._close_in_driver()

    def _after_fork(self) -> None:
        self._error = ForkedError(f"the {self._label} was opened by process {self._pid}; open it again in this one")

    def _close_forgotten(self) -> None:
        super().close()  # without waiting
