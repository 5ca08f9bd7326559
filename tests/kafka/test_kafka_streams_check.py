"""The check of `make foreign` for Kafka Streams sees what it is for; the scenario itself needs Java and minutes."""

from __future__ import annotations

from itertools import accumulate

import pytest

from tests.foreign.kafka_streams import SUMS, check

COUNT = 100


def sums(*changed: int) -> dict[str, list[int]]:
    """Return the sums of 0 to 99; the numbers of `changed` are added once more."""
    return {
        str(remainder): list(
            accumulate([*range(remainder, COUNT, SUMS), *(n for n in changed if n % SUMS == remainder)])
        )
        for remainder in range(SUMS)
    }


def test_sums_of_all_numbers_pass() -> None:
    check(sums(), COUNT)


@pytest.mark.parametrize("number", [0, 50, 99])
def test_a_number_that_is_added_twice_is_found(number: int) -> None:
    with pytest.raises(ValueError, match=f"remainder {number % SUMS}: expected each of"):
        check(sums(number), COUNT)


def test_a_lost_number_is_found() -> None:
    with pytest.raises(ValueError, match=r"missing \[99\]"):
        check({**sums(), "1": sums()["1"][:-1]}, COUNT)


def test_a_sum_that_is_missing_in_between_is_found() -> None:
    broken = sums()
    del broken["3"][5]
    with pytest.raises(ValueError, match="remainder 3"):
        check(broken, COUNT)
