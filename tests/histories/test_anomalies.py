"""Each rule finds what it must, in a history that is right but for one planted anomaly, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest

from tests.histories.anomalies import anomalies
from tests.histories.cycles import KINDS, permitted_cycles
from tests.histories.history import Append, History, Outcome, Read, Transaction
from tests.histories.planted import can_show


def right_history(rng: Random) -> History:
    """Make a history of three partitions: transactions of several values, reads of others, some of unknown outcome."""
    history, logs, ends = History(), {0: {}, 1: {}, 2: {}}, {0: 0, 1: 0, 2: 0}
    clock, number = 0.0, 0
    for _ in range(40):
        clock += rng.random()
        reads = []
        for partition in rng.sample(range(3), rng.randrange(3)):
            start = rng.randrange(ends[partition] + 1)
            records = tuple(item for item in sorted(logs[partition].items()) if item[0] >= start)
            reads.append(Read(partition, start, ends[partition], records))
        outcome = rng.choices(list(Outcome), (8, 1, 1))[0]
        is_there = outcome is Outcome.COMMITTED or (outcome is Outcome.UNKNOWN and rng.random() < 0.5)
        appends = []
        for _ in range(rng.randrange(1, 4)):
            partition = rng.randrange(3)
            offset, value, number = ends[partition], f"v{number}", number + 1
            ends[partition] += rng.choice((1, 1, 2))  # a marker may follow
            if is_there:
                logs[partition][offset] = value
            appends.append(Append(partition, value, offset if outcome is Outcome.COMMITTED else None))
        history.transactions.append(Transaction(clock, clock + 0.001, outcome, tuple(appends), tuple(reads)))
    history.final = logs
    return history


def of(history: History, outcome: Outcome, appends: int = 1) -> int:
    """Return the number of a transaction of this outcome with at least so many values."""
    found = [
        number
        for number, each in enumerate(history.transactions)
        if each.outcome is outcome and len(each.appends) >= appends
    ]
    return found[len(found) // 2] if found else -1


def change(history: History, number: int, **fields: object) -> None:
    history.transactions[number] = replace(history.transactions[number], **fields)  # type: ignore[arg-type]


def a_value_is_lost(history: History) -> None:
    append = history.transactions[of(history, Outcome.COMMITTED)].appends[0]
    del history.final[append.partition][append.offset or 0]


def a_value_moves(history: History) -> None:
    append = history.transactions[of(history, Outcome.COMMITTED)].appends[0]
    log = history.final[append.partition]
    log[max(log) + 10] = log.pop(append.offset or 0)


def a_value_is_there_twice(history: History) -> None:
    log = next(log for log in history.final.values() if log)
    log[max(log) + 10] = next(iter(log.values()))


def a_value_comes_from_nowhere(history: History) -> None:
    log = history.final[0]
    log[max(log, default=0) + 10] = "nobody's"


def an_aborted_value_is_there(history: History) -> None:
    history.transactions.append(Transaction(100.0, 100.1, Outcome.ABORTED, (Append(0, "aborted"),)))
    history.final[0][1000] = "aborted"


def an_aborted_value_was_read(history: History) -> None:
    history.transactions.append(Transaction(100.0, 100.1, Outcome.ABORTED, (Append(0, "aborted"),)))
    read = Read(0, 1000, 1001, ((1000, "aborted"),))
    history.transactions.append(Transaction(101.0, 101.1, Outcome.COMMITTED, (), (read,)))


def half_a_transaction_is_there(history: History) -> None:
    appends = Append(0, "half"), Append(1, "other half")
    history.transactions.append(Transaction(100.0, 100.1, Outcome.UNKNOWN, appends))
    history.final[1][1000] = "other half"


def a_read_leaves_out_a_value(history: History) -> None:
    partition, log = next((number, log) for number, log in history.final.items() if len(log) > 2)
    records = tuple(sorted(log.items()))
    read = Read(partition, 0, records[-1][0] + 1, (records[0], *records[2:]))
    history.transactions.append(Transaction(100.0, 100.1, Outcome.COMMITTED, (), (read,)))


def two_readers_see_different_values(history: History) -> None:
    partition, log = next((number, log) for number, log in history.final.items() if len(log) > 2)
    first, second = sorted(log.items())[:2]
    read = Read(partition, first[0], first[0] + 1, ((first[0], second[1]),))
    history.transactions.append(Transaction(100.0, 100.1, Outcome.COMMITTED, (), (read,)))


def a_value_is_read_before_it_is_sent(history: History) -> None:
    transaction = history.transactions[of(history, Outcome.COMMITTED)]
    append = transaction.appends[0]
    offset = append.offset or 0
    read = Read(append.partition, offset, offset + 1, ((offset, append.value),))
    history.transactions.append(Transaction(-2.0, -1.0, Outcome.COMMITTED, (), (read,)))


def a_later_value_lies_before(history: History) -> None:
    history.transactions += [
        Transaction(100.0, 100.1, Outcome.COMMITTED, (Append(0, "first", 1001),)),
        Transaction(101.0, 101.1, Outcome.COMMITTED, (Append(0, "second", 1000),)),
    ]
    history.final[0] |= {1001: "first", 1000: "second"}


def two_transactions_read_each_other(history: History) -> None:
    history.transactions += [
        Transaction(100.0, 101.0, Outcome.COMMITTED, (Append(0, "a", 1000),), (Read(1, 1000, 1001, ((1000, "b"),)),)),
        Transaction(100.0, 101.0, Outcome.COMMITTED, (Append(1, "b", 1000),), (Read(0, 1000, 1001, ((1000, "a"),)),)),
    ]
    history.final[0][1000], history.final[1][1000] = "a", "b"


def transactions_of_a_producer_change_places(history: History) -> None:
    """Nobody was told of the first one, but the second one cannot begin before it has ended."""
    history.transactions += [
        Transaction(100.0, 101.0, Outcome.UNKNOWN, (Append(0, "first"),), producer="p"),
        Transaction(102.0, 103.0, Outcome.COMMITTED, (Append(0, "second", 1000),), producer="p"),
    ]
    history.final[0] |= {1000: "second", 1001: "first"}


def a_reader_saw_the_later_transaction_alone(history: History) -> None:
    """The second transaction of a producer is there, and of the first one, which must have ended before, nothing."""
    reads = Read(0, 1000, 1001, ((1000, "second"),)), Read(1, 1000, 1000, (), is_latest=True)
    history.transactions += [
        Transaction(100.0, 101.0, Outcome.UNKNOWN, (Append(1, "first"),), producer="p"),
        Transaction(102.0, 103.0, Outcome.COMMITTED, (Append(0, "second", 1000),), producer="p"),
        Transaction(100.0, 105.0, Outcome.COMMITTED, (), reads),
    ]
    history.final[1][1000], history.final[0][1000] = "first", "second"


def a_value_is_not_seen_after_its_append(history: History) -> None:
    history.transactions += [
        Transaction(100.0, 101.0, Outcome.COMMITTED, (Append(0, "told", 1000),)),
        Transaction(102.0, 103.0, Outcome.COMMITTED, (), (Read(0, 1000, 1000, (), is_latest=True),)),
    ]
    history.final[0][1000] = "told"


PLANTED: dict[Callable[[History], None], set[str]] = {
    a_value_is_lost: {"loss"},
    a_value_moves: {"loss"},
    a_value_is_there_twice: {"duplicate"},
    a_value_comes_from_nowhere: {"phantom"},
    an_aborted_value_is_there: {"aborted read"},
    an_aborted_value_was_read: {"aborted read", "loss"},
    half_a_transaction_is_there: {"fracture"},
    a_read_leaves_out_a_value: {"gap"},
    two_readers_see_different_values: {"divergence"},
    a_value_is_read_before_it_is_sent: {"future read"},
    a_later_value_lies_before: {"disorder"},
    two_transactions_read_each_other: {"circular flow"},
    transactions_of_a_producer_change_places: {"write cycle"},
    a_reader_saw_the_later_transaction_alone: {"read skew"},
    a_value_is_not_seen_after_its_append: {"read skew"},
}


@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__)
def test_a_planted_anomaly_is_found(plant: Callable[[History], None], seed: int) -> None:
    history = right_history(Random(seed))
    assert not anomalies(history)
    plant(history)
    found = {anomaly.kind for anomaly in anomalies(history)}
    assert PLANTED[plant] <= found, found
    assert found <= PLANTED[plant] | {"loss", "gap", "divergence"}, "what follows from it, and nothing else"


def opposite_writes(history: History) -> None:
    history.transactions += [
        Transaction(100.0, 101.0, Outcome.COMMITTED, (Append(0, "a", 1000), Append(1, "b", 1001)), producer="p"),
        Transaction(100.0, 101.0, Outcome.COMMITTED, (Append(0, "c", 1001), Append(1, "d", 1000)), producer="q"),
    ]
    history.final[0] |= {1000: "a", 1001: "c"}
    history.final[1] |= {1000: "d", 1001: "b"}


def half_of_a_transaction_is_stable(history: History) -> None:
    """Its other half is not: its marker is on the way, or another transaction is open there."""
    seen = Read(0, 1000, 1001, ((1000, "a"),)), Read(1, 1000, 1000, ())
    history.transactions += [
        Transaction(100.0, 101.0, Outcome.COMMITTED, (Append(0, "a", 1000), Append(1, "b", 1000)), producer="p"),
        Transaction(100.0, 103.0, Outcome.COMMITTED, (), seen),
    ]
    history.final[0][1000], history.final[1][1000] = "a", "b"


@pytest.mark.parametrize(
    ("change", "kind"), [(opposite_writes, "G0"), (half_of_a_transaction_is_stable, "G-single")], ids=["G0", "G-single"]
)
def test_a_cycle_that_kafka_permits_is_counted_and_no_anomaly(
    change: Callable[[History], None], kind: str, seed: int
) -> None:
    history = right_history(Random(seed))
    change(history)
    assert not anomalies(history)
    assert permitted_cycles(history)[kind] >= 2


@pytest.mark.parametrize("kind", KINDS)
def test_a_history_without_concurrent_transactions_can_show_no_cycle(kind: str) -> None:
    appends = [Transaction(at, at + 0.5, Outcome.COMMITTED, (Append(0, f"v{at}", at),)) for at in range(10)]
    assert not can_show(History(appends, {0: {at: f"v{at}" for at in range(10)}}), kind)
