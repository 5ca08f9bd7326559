"""Nothing that waits in the product waits for what has happened, and nothing is lost, whoever runs when."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.interleaving.harnesses import HARNESSES
from tests.interleaving.seam import controlled
from tests.interleaving.search import try_preemptions, try_seeds
from tests.thorough import one_in

SEEDS, RUNS = 1200, 1200


@pytest.fixture(autouse=True, scope="module")
def _controlled() -> Iterator[None]:
    with controlled():
        yield


@pytest.mark.parametrize("name", HARNESSES)
def test_random_interleavings_lose_and_block_nothing(name: str) -> None:
    try_seeds(HARNESSES[name], 0, SEEDS // one_in(24))


@pytest.mark.parametrize("name", HARNESSES)
def test_interleavings_with_few_preemptions_lose_and_block_nothing(name: str) -> None:
    try_preemptions(HARNESSES[name], 2, RUNS // one_in(24))
