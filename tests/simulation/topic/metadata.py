"""A process' way to the metadata store, which all share: calls and answers get lost, leases end unnoticed."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from pyreplog.errors import LeaseLostError, MetadataUnavailableError, OutcomeUnknownError
from pyreplog.geo.revision import REVISION
from pyreplog.metadata.lease import Lease, LeaseState
from pyreplog.metadata.memory import MemoryStore
from pyreplog.metadata.operations import Operation
from pyreplog.metadata.store import MetadataStore, Versioned
from pyreplog.metadata.watching import Watch, Watchers

if TYPE_CHECKING:
    from .processes import Process

T = TypeVar("T")
LAG_S = 0.004


class Way(MetadataStore):
    """host: where all is."""

    def __init__(self, process: Process, host: MemoryStore) -> None:
        self.process, self.host = process, host
        super().__init__(f"metadata of {process.name}")

    def call(self, do: Callable[[], T], *, writes: bool = True) -> T:
        """Its process stands still meanwhile, others do not."""
        process = self.process
        process.stand_still(process.world.random.random() * LAG_S)
        fate = 1.0 if process.world.is_calm else process.world.random.random() / max(process.schedule.plan.loss, 1e-9)
        if fate < 0.5 or process.is_cut_off:
            raise MetadataUnavailableError("the store is away")
        result = do()
        process.stand_still(process.world.random.random() * LAG_S)
        if fate < 1.0 and writes:
            raise OutcomeUnknownError("the answer was lost")
        return result

    def _get(self, key: str) -> Versioned | None:
        return self.call(lambda: self.host.get(key), writes=False)

    def _create(self, key: str, value: bytes) -> int:
        return self.call(lambda: self.host.create(key, value))

    def _put(self, key: str, value: bytes, version: int) -> int:
        return self.call(lambda: self.host.put(key, value, version))

    def _delete(self, key: str, version: int) -> None:
        self.call(lambda: self.host.delete(key, version))

    def _multi(self, operations: Sequence[Operation]) -> builtins.list[int | None]:
        return self.call(lambda: self.host.multi(operations))

    def _list(self, key: str) -> builtins.list[str]:
        return sorted(self.call(lambda: self.host.list(key), writes=False))

    def _watch(self, key: str, callback: Callable[[str], object]) -> Watch:
        """Return a watch that is never told: nothing is replicated to other clusters here."""
        assert key == REVISION, "nobody waits for a topic to be free here: it tries again"
        return Watch(Watchers(), key, callback)

    def _lease(self, ttl: float, on_loss: Callable[[], object] | None) -> Lease:
        return self.call(lambda: HeldLease(self, ttl, on_loss))

    def _do_close(self) -> None:
        return


class _Beat:
    """What a lease's holder knows of it."""

    def __init__(self, ttl: float) -> None:
        self.ttl = ttl
        self.state = LeaseState.HELD


class HeldLease(Lease):
    """Held until somebody says that it is not."""

    def __init__(self, way: Way, ttl: float, on_loss: Callable[[], object] | None) -> None:
        self._way, self._on_loss = way, on_loss
        self._keys: dict[str, Any] = {}
        self._has_ended = False
        beat: Any = _Beat(ttl)
        way.process.leases.append(self)
        super().__init__(beat)

    def _create(self, key: str, value: bytes) -> int:
        def create() -> int:
            if self._has_ended:
                raise LeaseLostError("it was lost")
            self._keys[key] = self._way.host._insert(key, value, leased=True)
            return 0

        return self._way.call(create)

    def end(self) -> None:
        """The store drops its keys; its holder does not know."""
        self._has_ended = True
        for key, node in self._keys.items():
            if self._way.host._nodes.get(key) is node:
                self._way.host._remove(key)
        self._keys.clear()

    def report_loss(self) -> None:
        """Its holder hears of it."""
        if self._error is None and self._has_ended and self._heartbeat.state is LeaseState.HELD:
            self._heartbeat.state = LeaseState.LOST  # type: ignore[misc]
            if self._on_loss is not None:
                self._on_loss()

    def _do_close(self) -> None:
        self.end()
