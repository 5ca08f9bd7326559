"""Keys of one process: who takes one has it, and gives back its own alone, without reading it before."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pyreplog.autorecovery.leased_keys import LeasedKeys, claim_key
from pyreplog.errors import OutcomeUnknownError
from pyreplog.metadata.memory import MemoryLease, MemoryStore
from pyreplog.metadata.store import Versioned

KEY = claim_key(7)


class Counting(MemoryStore):
    """Notes what is asked, and the leases; a deletion may have an unknown outcome."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []
        self.leases: list[MemoryLease] = []
        self.loses_answer = False

    def _get(self, key: str) -> Versioned | None:
        self.asked.append("get")
        return super()._get(key)

    def _delete(self, key: str, version: int) -> None:
        self.asked.append("delete")
        if self.loses_answer:
            self.loses_answer = False
            raise OutcomeUnknownError("the answer was lost")
        super()._delete(key, version)

    def _lease(self, ttl, on_loss):  # type: ignore[no-untyped-def]
        lease = super()._lease(ttl, on_loss)
        self.leases.append(lease)
        return lease


@pytest.fixture
def store() -> Iterator[Counting]:
    with Counting() as store:
        yield store


def test_a_key_is_given_back_with_one_call(store: Counting) -> None:
    with LeasedKeys(store, "one") as leased_keys, LeasedKeys(store, "two") as two:
        assert leased_keys.take(KEY) and not two.take(KEY) and leased_keys.take(KEY)
        store.asked.clear()
        leased_keys.release(KEY)
        assert store.asked == ["delete"]
        assert two.take(KEY)
        leased_keys.release(KEY)
        assert not leased_keys.take(KEY), "that of another process stays"


def test_a_key_that_was_lost_with_its_lease_is_not_taken_from_the_next_owner(store: Counting) -> None:
    with LeasedKeys(store, "one") as leased_keys, LeasedKeys(store, "two") as two:
        assert leased_keys.take(KEY)
        store.leases[0].expire()
        assert two.take(KEY)
        leased_keys.release(KEY)
        assert not leased_keys.take(KEY), "the other process has it still"


def test_a_new_lease_knows_nothing_of_the_keys_of_the_last_one(store: Counting) -> None:
    with LeasedKeys(store, "one") as leased_keys, LeasedKeys(store, "two") as two:
        assert leased_keys.take(KEY)
        store.leases[0].expire()
        assert leased_keys.take("/autorecovery/auditor"), "in a new lease"
        assert two.take(KEY)
        leased_keys.release(KEY)
        assert not leased_keys.take(KEY), "the other process has it still"


def test_an_unknown_outcome_is_looked_at(store: Counting) -> None:
    with LeasedKeys(store, "one") as leased_keys, LeasedKeys(store, "two") as two:
        assert leased_keys.take(KEY)
        store.loses_answer = True
        leased_keys.release(KEY)
        assert two.take(KEY)
