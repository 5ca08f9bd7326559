"""Leases: keys that exist while their owner lives, and the state of a lease as its owner knows it."""

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
    """The state of a lease, as its owner knows it."""

    HELD = "held"
    """The keys of the lease exist, and will exist until the state changes."""

    UNKNOWN = "unknown"
    """The lease was not renewed in time. The owner must act as if it were lost, but the keys may still exist."""

    LOST = "lost"
    """The lease has ended for good, and its keys are deleted. The owner may begin a new lease."""


class Lease(Handle):
    """Keys that are deleted when their owner ends, as ZooKeeper's ephemeral nodes; made by `MetadataStore.lease`.

    Close it before its store. Calls block, and any thread may make them.
    """

    def __init__(self, heartbeat: Heartbeat) -> None:
        self._heartbeat = heartbeat
        super().__init__("lease")

    @property
    def ttl(self) -> float:
        """Time, in seconds, for which the keys may outlive their owner, as the store has granted it."""
        return self._heartbeat.ttl

    @property
    def state(self) -> LeaseState:
        """State of the lease now.

        HELD is decided by the clock, so it is correct also after the process was suspended for a while.
        """
        self._check_open()
        return self._heartbeat.state

    def create(self, key: str, value: bytes | bytearray | memoryview) -> int:
        """Create a key that exists while the lease is held. It cannot have children.

        The other methods of `MetadataStore` work with the key as well.

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
        """End the lease and delete its keys. If the store cannot be reached, the keys expire after `ttl`."""
        super().close()


class Heartbeat:
    """Renews a lease from a thread of its own, and knows until when the lease is certainly held.

    ttl: seconds; a third of it is the interval of renewals. clock: source of monotonic time. renew: renews the lease,
    and returns the monotonic time, in microseconds, until which it is held; raises LeaseLostError if the lease has
    ended, another ReplogError if this attempt failed. held_until_us: until when a new lease is held; None: the lease is
    renewed at once. give_up: called in the thread when the lease is lost, before `on_loss`. on_loss: called in the
    thread when the lease is lost.
    """

    def __init__(
        self,
        *,
        ttl: float,
        clock: Clock,
        renew: Callable[[], int],
        held_until_us: int | None = None,
        give_up: Callable[[], object] | None,
        on_loss: Callable[[], object] | None,
    ) -> None:
        self.ttl = ttl
        self._clock, self._renew, self._give_up, self._on_loss = clock, renew, give_up, on_loss
        self._held_until = renew() if held_until_us is None else held_until_us
        self._condition = threading.Condition()
        self._lost = self._stopping = self._renewal_requested = self._failing = False
        self._thread = threading.Thread(target=self._run, name="pyreplog-lease", daemon=True)
        self._thread.start()

    @property
    def state(self) -> LeaseState:
        if self._lost:
            return LeaseState.LOST
        return LeaseState.HELD if self._clock.monotonic_us() < self._held_until else LeaseState.UNKNOWN

    def suspend(self) -> None:
        """Set the state to UNKNOWN until the next renewal: the store cannot be reached."""
        self._held_until = 0

    def renew_now(self) -> None:
        """Have the thread renew the lease now."""
        with self._condition:
            self._renewal_requested = True
            self._condition.notify()

    def lose(self) -> None:
        """Set the state to LOST: the lease has ended."""
        with self._condition:
            self._lost = True
            self._condition.notify()

    def stop(self) -> None:
        """End the thread and wait for it. `on_loss` is not called afterwards."""
        with self._condition:
            self._stopping = True
            self._condition.notify()
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        while True:
            with self._condition:
                self._condition.wait_for(lambda: self._stopping or self._lost or self._renewal_requested, self.ttl / 3)
                if self._stopping:
                    return
                self._renewal_requested = False
            if not self._lost:
                self._renew_once()
            if self._stopping:
                return
            if self._lost:
                self._call_on_loss()
                return

    def _renew_once(self) -> None:
        try:
            self._held_until = self._renew()
            self._failing = False
        except LeaseLostError:
            self._lost = True
        except ClosedError:  # the store was closed
            self._stopping = True
        except ReplogError as error:
            if not self._failing:  # the first of several failures is logged
                _logger.warning("a lease could not be renewed: %s", error)
            self._failing = True

    def _call_on_loss(self) -> None:
        try:
            if self._give_up is not None:
                self._give_up()
            if self._on_loss is not None:
                self._on_loss()
        except Exception:
            _logger.exception("the callback for a lost lease failed")
