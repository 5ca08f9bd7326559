"""Leases: keys that exist while their owner lives, and what the owner may believe of them."""

from __future__ import annotations

import enum
import logging
import threading
from abc import abstractmethod
from collections.abc import Callable

from pyreplog.clock import Clock
from pyreplog.errors import ClosedError, LeaseLostError, ReplogError
from pyreplog.handles import Handle
from pyreplog.metadata.keys import check_key, check_value

_logger = logging.getLogger(__name__)


class LeaseState(enum.Enum):
    """What is known of a lease at this moment."""

    HELD = "held"
    """Its keys exist, and will for some moments."""

    UNKNOWN = "unknown"
    """The store was silent for too long. Act as if the lease were lost, and do not conclude that it is."""

    LOST = "lost"
    """The lease has ended for good, and its keys are deleted. Begin a new one."""


class Lease(Handle):
    """Keys that vanish with their owner, as ZooKeeper's ephemeral nodes; made by `MetadataStore.lease`.

    Close it before its store. Calls block, and any thread may make them.
    """

    def __init__(self, heartbeat: Heartbeat) -> None:
        self._heartbeat = heartbeat
        super().__init__("lease")

    @property
    def ttl(self) -> float:
        """Seconds, as granted by the store, for which the keys may outlive their owner."""
        return self._heartbeat.ttl

    @property
    def state(self) -> LeaseState:
        """What is known of the lease now.

        HELD is judged by the clock, so it is right also after the process was stopped for a while.
        """
        self._check_open()
        return self._heartbeat.state

    def create(self, key: str, value: bytes | bytearray | memoryview) -> int:
        """Create a key that exists while the lease is held. It cannot have children.

        Everything else that `MetadataStore` does with keys works with it as well.

        Args:
            key: the key.
            value: its value, at most 1,044,480 bytes.

        Returns:
            The version of the key.

        Raises:
            LeaseLostError: the lease has ended.
            KeyExistsError: the key exists.
            OutcomeUnknownError: the connection was lost in the middle of the call.
            MetadataUnavailableError: the store cannot be reached. Nothing was written.
            InvalidArgumentError: the key or the value is invalid.
        """
        self._check_open()
        check_key(key)
        data = check_value(value)
        if self._heartbeat.state is LeaseState.LOST:
            raise LeaseLostError(f"{key} was not created: its lease is lost; begin a new lease")
        return self._create(key, data)

    @abstractmethod
    def _create(self, key: str, value: bytes) -> int: ...

    def close(self) -> None:
        """End the lease and delete its keys. If the store cannot be reached, they vanish after `ttl`."""
        super().close()


class Heartbeat:
    """Renews a lease from a thread of its own, and knows until when it is surely held.

    renew: does so and returns until when (monotonic microseconds) the lease is then held; LeaseLostError: never again;
        other ReplogErrors: not this time.
    give_up: called in the thread when the lease is lost, before `on_loss`.
    """

    def __init__(
        self,
        *,
        ttl: float,
        clock: Clock,
        renew: Callable[[], int],
        give_up: Callable[[], object] | None,
        on_loss: Callable[[], object] | None,
    ) -> None:
        self.ttl = ttl
        self._clock, self._renew, self._give_up, self._on_loss = clock, renew, give_up, on_loss
        self._held_until = renew()
        self._condition = threading.Condition()
        self._lost = self._stopping = self._renews_now = self._failing = False
        self._thread = threading.Thread(target=self._run, name="pyreplog-lease", daemon=True)
        self._thread.start()

    @property
    def state(self) -> LeaseState:
        if self._lost:
            return LeaseState.LOST
        return LeaseState.HELD if self._clock.monotonic_us() < self._held_until else LeaseState.UNKNOWN

    def suspend(self) -> None:
        """The store is out of reach: believe nothing until the next renewal."""
        self._held_until = 0

    def renew_now(self) -> None:
        """Renew now."""
        with self._condition:
            self._renews_now = True
            self._condition.notify()

    def lose(self) -> None:
        """The lease has ended."""
        with self._condition:
            self._lost = True
            self._condition.notify()

    def stop(self) -> None:
        """End the thread; `on_loss` is not called any more."""
        with self._condition:
            self._stopping = True
            self._condition.notify()
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        while True:
            with self._condition:
                self._condition.wait_for(lambda: self._stopping or self._lost or self._renews_now, self.ttl / 3)
                if self._stopping:
                    return
                self._renews_now = False
            if not self._lost:
                self._beat()
            if self._stopping:
                return
            if self._lost:
                self._mourn()
                return

    def _beat(self) -> None:
        try:
            self._held_until = self._renew()
            self._failing = False
        except LeaseLostError:
            self._lost = True
        except ClosedError:  # the store was closed, and does not open again
            self._stopping = True
        except ReplogError as error:
            if not self._failing:  # said once
                _logger.warning("a lease could not be renewed: %s", error)
            self._failing = True

    def _mourn(self) -> None:
        try:
            if self._give_up is not None:
                self._give_up()
            if self._on_loss is not None:
                self._on_loss()
        except Exception:
            _logger.exception("the callback for a lost lease failed")
