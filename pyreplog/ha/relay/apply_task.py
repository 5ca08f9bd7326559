"""One group on its way through the callback."""

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

It is called as `apply(batch, advance)`. A function is called when it is the batch's turn. A generator function yields
once: the part before the yield prepares the batch beside other batches; the part behind it commits, in the order of
the log. If the turn of the batch never comes, the yield raises GeneratorExit.
"""


def in_two_phases(apply: Apply) -> bool:
    """Whether a callback yields."""
    return inspect.isgeneratorfunction(apply) or inspect.isgeneratorfunction(getattr(apply, "__call__", None))  # noqa: B004


class ApplyTask:
    """A group, its records, and the callback at work on them. One thread; `commit` only when it is its turn."""

    def __init__(self, group: ApplyGroup, batch: RecordBatch, apply: Apply) -> None:
        self.group = group
        self._batch, self._apply = batch, apply
        self._run: Generator[object, None, object] | None = None
        self._trouble: Exception | None = None

    def prepare(self) -> None:
        """What may be done beside other groups. What the callback raises counts in its turn: `commit` raises it."""
        try:
            self._begin()
        except Exception as error:
            self._trouble = error

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
        """The rest. Errors: whatever the callback raises; InvalidArgumentError."""
        if self._trouble is not None:
            raise self._trouble
        if self._run is None:
            self._apply(self._batch, self.group.advance)
        elif next(self._run, self) is not self:
            self._run.close()
            raise InvalidArgumentError(
                "apply: expected a generator function that yields once, found one that yielded twice"
            )

    def roll_back(self) -> None:
        """Its turn will not come. Errors: whatever the callback raises."""
        if self._run is not None:
            self._run.close()

    def refused(self, error: Exception) -> ApplyError:
        """The error that names its first record."""
        failure = ApplyError(
            self.group.advance.before.entry, self._batch[0].position, f"{type(error).__name__}: {error}"
        )
        failure.__cause__ = error
        return failure


def keep(store: PositionStore, advance: Advance, *, prove: bool) -> None:
    """After a commit: what is stored is `advance.after`.

    prove: ask a transactional store whether the callback has kept its promise. Errors: PositionError; the store's.
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
