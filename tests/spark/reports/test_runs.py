"""Runs of numbers: what they leave out and what they hold twice, beside sets of the numbers."""

from __future__ import annotations

from collections import Counter

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from pyreplog.reports.records.runs import holes, joined, repeated

Run = tuple[str | None, int, int]
RUNS = st.lists(
    st.tuples(st.sampled_from(["a", "b", None]), st.integers(-3, 20), st.integers(0, 8)).map(
        lambda run: (run[0], run[1], run[1] + run[2])
    ),
    max_size=10,
)
SCHEMA = pa.schema([("who", pa.string()), ("first", pa.int64()), ("last", pa.int64())])


def table_of(runs: list[Run]) -> pa.Table:
    return pa.table([pa.array(column, field.type) for column, field in zip(zip(*runs, strict=True), SCHEMA, strict=True)],
                    schema=SCHEMA) if runs else SCHEMA.empty_table()  # fmt: skip


def runs_of(table: pa.Table) -> list[Run]:
    return [tuple(row.values()) for row in table.select(SCHEMA.names).to_pylist()]


def counted(runs: list[Run]) -> Counter[tuple[str | None, int]]:
    return Counter((who, number) for who, first, last in runs for number in range(first, last + 1))


@settings(max_examples=300, deadline=None)
@given(runs=RUNS)
def test_holes_between_runs_are_found(runs: list[Run]) -> None:
    behind, after, before = holes(table_of(runs), ["who"])
    rows = list(zip(behind["who"].to_pylist(), after.tolist(), before.tolist(), strict=True))
    count = counted(runs)
    missing = {(who, number) for who, low, high in rows for number in range(low + 1, high)}
    ends = {who: [number for other, number in count if other == who] for who, _ in count}
    assert missing == {
        (who, number)
        for who, numbers in ends.items()
        for number in range(min(numbers), max(numbers))
        if (who, number) not in count
    }
    assert all((who, low) in count and (who, high) in count for who, low, high in rows)
    assert behind["first"].to_pylist() == before.tolist()


@settings(max_examples=300, deadline=None)
@given(runs=RUNS)
def test_repeated_numbers_of_runs_are_found(runs: list[Run]) -> None:
    actual_runs = runs_of(repeated(table_of(runs), ["who"]))
    assert counted(actual_runs) == Counter({place: 1 for place, count in counted(runs).items() if count > 1})


@settings(max_examples=300, deadline=None)
@given(runs=RUNS)
def test_adjacent_runs_are_joined(runs: list[Run]) -> None:
    actual_runs = runs_of(joined(table_of(runs), ["who"]))
    assert counted(actual_runs) == counted(runs)
    assert len(actual_runs) <= len(runs)


def test_runs_that_follow_each_other_are_one() -> None:
    runs: list[Run] = [("a", 6, 9), ("b", 1, 1), ("a", 1, 5), ("a", 10, 10), ("b", 3, 3)]
    assert sorted(runs_of(joined(table_of(runs), ["who"]))) == [("a", 1, 10), ("b", 1, 1), ("b", 3, 3)]
