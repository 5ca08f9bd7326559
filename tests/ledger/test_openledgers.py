"""The ledgers of a cluster that are open, while others are made."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from pyreplog.ledger.openledgers import OpenLedgers


class Thing:
    """In a ledger's stead."""

    def _part_of(self, whole: object) -> None:
        return


@pytest.fixture
def hurry() -> Iterator[None]:
    """Threads take turns all the time."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


def test_ledgers_come_and_go_while_all_are_looked_at(hurry: None) -> None:
    ledgers: Any = OpenLedgers()
    whole: Any = None
    stay = [Thing() for _ in range(300)]
    for one in stay:
        ledgers.add(one, whole)

    def come_and_go() -> None:
        for _ in range(30):
            some = [Thing() for _ in range(300)]
            for one in some:
                ledgers.add(one, whole)

    thread = threading.Thread(target=come_and_go)
    thread.start()
    while thread.is_alive():
        assert set(stay) <= set(ledgers)
    thread.join()
    assert set(ledgers) == set(stay), "those that were forgotten are gone"
