"""The memory of requests that have not arrived whole: shared by all connections, and given on in turn."""

from __future__ import annotations

from random import Random

from pyreplog.kafka.receive_budget import SMALL_BYTES, ReceiveBudget

BUDGET = 1 << 20
LARGE = SMALL_BYTES + 300_000


def nothing() -> None:
    pass


def test_small_requests_are_always_received() -> None:
    budget = ReceiveBudget(BUDGET)
    for name in range(1000):
        assert budget.acquire(name, SMALL_BYTES, nothing)
    assert budget.used_bytes == 0


def test_connections_wait_in_their_order() -> None:
    budget, resumed = ReceiveBudget(BUDGET), list[str]()
    for name in "abc":
        assert budget.acquire(name, LARGE, nothing)
    assert budget.used_bytes == 900_000
    assert budget.acquire("d", LARGE, nothing), "the first beyond the budget may exceed it"
    for name in "ef":
        assert not budget.acquire(name, LARGE, lambda name=name: resumed.append(name))
    assert not resumed and budget.waiting == 2
    budget.release("a")
    budget.release("b")
    assert set(resumed) == {"e"}
    assert not budget.acquire("f", LARGE, nothing), "it is behind e"
    assert budget.acquire("e", LARGE, nothing)
    assert resumed[-1] == "f" and budget.acquire("f", LARGE - 200_000, nothing)
    assert budget.waiting == 0


def test_a_connection_that_is_closed_neither_holds_nor_waits() -> None:
    budget, resumed = ReceiveBudget(BUDGET), list[str]()
    assert budget.acquire("a", BUDGET, nothing) and budget.acquire("b", BUDGET, nothing)
    for name in "cd":
        assert not budget.acquire(name, BUDGET, lambda name=name: resumed.append(name))
    budget.release("c")
    assert not resumed and budget.waiting == 1
    budget.release("b")
    budget.release("a")
    assert resumed[-1] == "d" and budget.used_bytes == 0


def test_requests_that_fill_the_budget_together_all_arrive(seed: int) -> None:
    """Each grows step by step, as bytes arrive, and keeps what it has while it waits: none waits forever."""
    rng, budget = Random(seed), ReceiveBudget(BUDGET)
    sizes = {name: rng.randint(1, BUDGET) for name in range(100)}
    held, ready = dict.fromkeys(sizes, 0), set(sizes)
    most = steps = 0
    while held:
        steps += 1
        assert ready, "all wait"
        name = rng.choice(sorted(ready))
        size = min(sizes[name], held[name] + rng.randint(1, 200_000))
        if not budget.acquire(name, size, lambda name=name: ready.add(name)):
            ready.discard(name)
            continue
        held[name], most = size, max(most, budget.used_bytes)
        if size == sizes[name]:
            del held[name]
            ready.discard(name)
            budget.release(name)
    assert budget.used_bytes == budget.waiting == 0
    assert BUDGET // 2 < most <= 2 * BUDGET
