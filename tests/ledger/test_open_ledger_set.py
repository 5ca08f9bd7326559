"""The set of a cluster's open ledgers, to which other threads add while it is iterated."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

from pyreplog.ledger import open_ledger_set
from pyreplog.ledger.open_ledger_set import OpenLedgers
from tests.waiting import PATIENCE_S


class Thing:
    """Takes the place of a ledger."""


@pytest.fixture(autouse=True)
def parts_of_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ledgers of these tests belong to no cluster that would close them."""
    monkeypatch.setattr(open_ledger_set, "make_part_of", lambda part, whole: None)


def test_garbage_collected_ledgers_leave_the_set() -> None:
    ledgers: Any = OpenLedgers()
    stay = [Thing() for _ in range(3)]
    for each_stay in [*stay, Thing(), Thing()]:
        ledgers.add(each_stay, None)
    del each_stay
    assert set(ledgers) == set(stay)


def test_another_one_comes_while_all_are_looked_at() -> None:
    ledgers: Any = OpenLedgers()
    late = Thing()
    thread = threading.Thread(target=ledgers.add, args=(late, None))

    class Crowded(weakref.WeakSet[Thing]):
        """A set to which a thread adds after the first item, before the second one unless the thread has to wait for a
        lock."""

        def __iter__(self) -> Iterator[Thing]:
            for at, item in enumerate(super().__iter__()):
                if not at:
                    is_held = ledgers._lock.locked()
                    thread.start()
                    thread.join(0 if is_held else PATIENCE_S)
                yield item

    stay = [Thing() for _ in range(3)]
    ledgers._ledgers = Crowded(stay)
    assert set(ledgers) == set(stay)
    thread.join(PATIENCE_S)
    assert late in ledgers._ledgers and len(ledgers._ledgers) == 4
