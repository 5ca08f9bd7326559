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

    def __init__(self, what: str, reactor: Reactor) -> None:
        self._reactor = reactor
        super().__init__(what)

    @abstractmethod
    def _shut(self) -> None:
        """Release everything. Called by the driver, or after the reactor was closed."""

    @abstractmethod
    def _gone(self) -> bool:
        """Whether everything is released."""

    def close(self) -> None:
        """Close at once, and wait for running callbacks, unless the caller is one of them."""
        super().close()
        if os.getpid() == self._pid and not self._reactor.in_driver() and not self._gone():
            self._reactor.drive(self._gone, _CLOSE_S)

    def _let_go(self) -> None:
        try:
            self._reactor.call_soon(self._shut)
        except ReplogError:  # the reactor was closed before
            self._shut()

    def _forked(self) -> None:
        self._error = ForkedError(f"the {self._what} was opened by process {self._pid}; open it again in this one")

    def _close_forgotten(self) -> None:
        super().close()  # without waiting
