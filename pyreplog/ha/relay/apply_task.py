"""ApplyTask: one group of entries on its way through the callback."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Generator
from typing import TypeAlias

from pyreplog._native.log.batch import RecordBatch
from pyreplog.errors import ApplyError, InvalidArgumentError, PositionError, ReplogError
from pyreplog.ha.relay.applier_machine import ApplyGroup
from pyreplog.ha.relay.position import Advance, PositionStore

Apply: TypeAlias = Callable[[RecordBatch, Advance], object]
"""A function, or a generator function, that applies a batch.

It is called as `apply(batch, advance)`. A function is called when all earlier batches are committed. A generator
function yields once: the part before the yield prepares the batch while other batches run; the part after it commits,
in the order of the log. If the batch is never committed, the yield raises GeneratorExit.
"""


def in_two_phases(apply: Apply) -> bool:
    """Return whether a callback is a generator function, which prepares and commits separately."""
    return inspect.isgeneratorfunction(apply) or inspect.isgeneratorfunction(getattr(apply, "__call__", None))  # noqa: B004


class ApplyTask:
    """A group with its records and the run of the callback. Not thread-safe; call `commit` in the group's turn only."""

    def __init__(self, group: ApplyGroup, batch: RecordBatch, apply: Apply) -> None:
        self.group = group
        self._batch, self._apply = batch, apply
        self._run: Generator[object, None, object] | None = None
        self._error: Exception | None = None

    def prepare(self) -> None:
        """Run the part of the callback that may run beside other groups. Its errors are raised by `commit`."""
        try:
            self._begin()
        except Exception as error:
            self._error = error

    def _begin(self) -> None:
        if not in_two_phases(self._apply):
            return
        run = self._apply(self._batch, self.group.advance)
        assert isinstance(run, Generator), "a generator function returns nothing else"
        self._run = run
        if next(run, self) is self:
            raise InvalidArgumentError(
                "apply: expected a generator function that yields once, found one that ended without a yield"
            )

    def commit(self) -> None:
        """Run the rest of the callback. Raises its errors, and InvalidArgumentError if it yields too often."""
        if self._error is not None:
            raise self._error
        if self._run is None:
            self._apply(self._batch, self.group.advance)
        elif next(self._run, self) is not self:
            self._run.close()
            raise InvalidArgumentError(
                "apply: expected a generator function that yields once, found one that yielded twice"
            )

    def roll_back(self) -> None:
        """End the callback without a commit, because an earlier group failed. Raises errors of the callback."""
        if self._run is not None:
            self._run.close()

    def refused(self, error: Exception) -> ApplyError:
        """Return the error that names the first record of the group."""
        failure = ApplyError(
            self.group.advance.before.entry, self._batch[0].position, f"{type(error).__name__}: {error}"
        )
        failure.__cause__ = error
        return failure


def keep(store: PositionStore, advance: Advance, *, prove: bool) -> None:
    """Store the position after a commit, or check that the callback has stored it.

    Args:
        store: the store of the position.
        advance: the change.
        prove: whether to check that the callback stored the position, if the store is transactional.

    Raises:
        PositionError: the position was not stored.
        ReplogError: as `PositionStore.load`.
    """
    if not store.transactional:
        try:
            store.save(advance)
        except (OSError, ReplogError) as error:
            raise PositionError(f"applied, and entry {advance.after.entry} could not be stored: {error}") from error
    elif prove and store.load() != advance.after:
        raise PositionError(
            f"the callback has returned without storing entry {advance.after.entry} in its transaction: "
            "it must call store(cursor, advance), and commit"
        )
