"""The rules of histories.

| anomaly | what was seen |
|---|---|
| `divergence` | an offset of a partition has two values |
| `duplicate` | a value has two offsets |
| `loss` | a committed value is not there in the end, or not at its offset |
| `phantom` | a value that no client has sent |
| `aborted read` (G1a) | a value of a transaction that was aborted |
| `fracture` | some values of a transaction are there in the end, and others are not |
| `gap` | a read leaves out a value that lies between its ends |
| `future read` | a value was read before it was sent |
| `disorder` | a value was sent after another one was acknowledged, and lies before it |
| `write cycle` (G0) | the order of writes contradicts itself, over several partitions, transactions and clients |
| `circular flow` (G1c) | the same with reads that saw values: transactions that have read each other's values |
| `read skew` (G-single) | the same with reads that should have seen values: a reader saw what came later and not what came before |

The last three are judged when no other rule is broken, by `tests.histories.cycles`, which says what Kafka orders.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

from tests.histories.cycles import EventGraph
from tests.histories.history import Append, History, Outcome, Transaction


class Anomaly(NamedTuple):
    """A rule that a history breaks."""

    kind: str
    what: str


def anomalies(history: History) -> list[Anomaly]:
    """Return all rules that a history breaks, each as often as it does."""
    judgement = _Judgement(history)
    return list(judgement.run()) or list(judgement.cycles())


class _Judgement:
    def __init__(self, history: History) -> None:
        self._history = history
        self._transactions, self._final = history.transactions, history.final
        self._writer: dict[str, tuple[Transaction, Append]] = {}
        for transaction in self._transactions:
            for append in transaction.appends:
                assert append.value not in self._writer, "values must be unique"
                self._writer[append.value] = transaction, append
        self._places: dict[int, dict[str, int]] = {}  # offset by value, by partition, of the end

    def run(self) -> Iterator[Anomaly]:
        yield from self._final_log()
        yield from self._outcomes()
        for transaction in self._transactions:
            yield from self._reads(transaction)
        yield from self._order()

    def _final_log(self) -> Iterator[Anomaly]:
        for partition, log in self._final.items():
            places = self._places.setdefault(partition, {})
            for offset, value in sorted(log.items()):
                if value in places:
                    yield Anomaly("duplicate", f"{value} at {partition}:{places[value]} and {partition}:{offset}")
                places.setdefault(value, offset)
                yield from self._source(partition, offset, value)

    def _source(self, partition: int, offset: int, value: str) -> Iterator[Anomaly]:
        """Judge where a value comes from."""
        if value not in self._writer or self._writer[value][1].partition != partition:
            yield Anomaly("phantom", f"{value} at {partition}:{offset}")
        elif self._writer[value][0].outcome is Outcome.ABORTED:
            yield Anomaly("aborted read", f"{value} at {partition}:{offset}")

    def _outcomes(self) -> Iterator[Anomaly]:
        for transaction in self._transactions:
            missing = []
            for append in transaction.appends:
                place = self._places.get(append.partition, {}).get(append.value)
                if place is None:
                    missing.append(append)
                elif transaction.outcome is Outcome.COMMITTED and append.offset not in (None, place):
                    what = f"{append.value} at {append.partition}:{place}, acknowledged at {append.offset}"
                    yield Anomaly("loss", what)
            if transaction.outcome is Outcome.COMMITTED:
                for append in missing:
                    what = f"{append.value} of partition {append.partition}, acknowledged at {append.offset}"
                    yield Anomaly("loss", what)
            elif missing and len(missing) < len(transaction.appends):
                what = ", ".join(append.value for append in missing)
                yield Anomaly("fracture", f"{what} of {len(transaction.appends)} values of one transaction are missing")

    def _reads(self, transaction: Transaction) -> Iterator[Anomaly]:
        for read in transaction.reads:
            log, seen = self._final.get(read.partition, {}), dict(read.records)
            for offset, value in read.records:
                if log.get(offset, value) != value:
                    yield Anomaly("divergence", f"{read.partition}:{offset} was {value}, and is {log[offset]}")
                elif offset not in log:
                    yield Anomaly("loss", f"{value} at {read.partition}:{offset}, which was read")
                yield from self._source(read.partition, offset, value)
                if value in self._writer and self._writer[value][0].began > transaction.ended:
                    yield Anomaly("future read", f"{value} at {read.partition}:{offset}")
            for offset in range(read.start, read.end):
                if offset in log and offset not in seen:
                    yield Anomaly("gap", f"{log[offset]} at {read.partition}:{offset} was left out")

    def _order(self) -> Iterator[Anomaly]:
        """Compare the order of offsets with that of time, for appends of which one ended before the other began."""
        events: dict[int, list[tuple[float, int, int]]] = defaultdict(list)  # (time, 0: begin or 1: end, offset)
        for transaction in self._transactions:
            if transaction.outcome is not Outcome.COMMITTED:
                continue
            for append in transaction.appends:
                if append.offset is not None:
                    events[append.partition] += [
                        (transaction.began, 0, append.offset),
                        (transaction.ended, 1, append.offset),
                    ]
        for partition, of_partition in events.items():
            acknowledged = -1
            for _, is_end, offset in sorted(of_partition):
                if is_end:
                    acknowledged = max(acknowledged, offset)
                elif offset < acknowledged:
                    yield Anomaly(
                        "disorder", f"{partition}:{offset} was sent after {partition}:{acknowledged} was there"
                    )

    def cycles(self) -> Iterator[Anomaly]:
        for kind, numbers in EventGraph(self._history).cycles():
            yield Anomaly(kind, " before ".join(self._name(number) for number in [*numbers, *numbers[:1]]))

    def _name(self, number: int) -> str:
        transaction = self._transactions[number]
        written = "+".join(append.value for append in transaction.appends)
        read = ", ".join(f"{each.partition}:{each.start}-{each.end}" for each in transaction.reads)
        return f"[{written}{f' reads {read}' if read else ''}]"
