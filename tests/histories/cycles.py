"""Cycles of what must have happened before what.

Kafka orders events of transactions, and not whole transactions, of which two may write to two partitions in opposite
orders. So the nodes of the graph are events: of a transaction its beginning, each append, each read, the decision to
commit, for each partition the moment when its marker counts, and the end, when the client is told; of an offset the
moments when the high watermark and the last stable offset pass it. An edge leads from what must be earlier:

| edge | why |
|---|---|
| beginning → appends, reads → decision → markers | the order in which a client works; reads have the order of the transaction |
| append → append | offsets of a partition: ww |
| append → high watermark → marker → last stable offset | no record is stable before the marker of its transaction is committed, and no offset before those below it |
| last stable offset → read | it was seen: wr |
| read → high watermark | the read went up to the high watermark, and did not see it: rw |
| marker → appends of the next transaction with this transactional id | the coordinator refuses it before (CONCURRENT_TRANSACTIONS) |
| end → beginning | time, if one client was told before another one began |

A cycle of these is an anomaly: without reads `write cycle` (G0), with wr `circular flow` (G1c), with rw `read skew`
(G-single). Cycles of transactions that are none of events are counted by `permitted_cycles`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise

from tests.histories.graph import cyclic_components, shortest_cycle
from tests.histories.history import History, Outcome

Node = tuple[str, *tuple[int, ...]]
"""What happens, and where: of a transaction begin, append, read, commit, marker, done, end, with its number and what else
tells two of them apart; of a partition and an offset high and stable; and moments of time."""
OF_PARTITIONS = {"high", "stable", "time"}
KINDS = {"write cycle": 0, "circular flow": 1, "read skew": 2}


class EventGraph:
    """The events of a history. Values must be unique, and the final log must have no other anomaly."""

    def __init__(self, history: History) -> None:
        self._history = history
        self.places = {
            value: (partition, offset) for partition, log in history.final.items() for offset, value in log.items()
        }
        self.offsets = {partition: sorted(log) for partition, log in history.final.items()}
        self.writer = {
            append.value: number
            for number, transaction in enumerate(history.transactions)
            for append in transaction.appends
        }
        self._edges: list[list[tuple[Node, Node]]] = [[], [], []]  # of order, wr, rw
        for number in range(len(history.transactions)):
            self._add_transaction(number)
        self._add_offsets()
        self._add_sessions()
        self._add_time()

    def cycles(self) -> Iterator[tuple[str, list[int]]]:
        """Iterate over cycles, of the first kind that has some: its name, and the transactions in their order."""
        graph: dict[Node, list[Node]] = defaultdict(list)
        for kind, number in KINDS.items():
            for before, after in self._edges[number]:
                graph[before].append(after)
            components = list(cyclic_components(graph))
            for component in components:
                of = [node[1] for node in shortest_cycle(graph, component) if node[0] not in OF_PARTITIONS]
                yield kind, [each for at, each in enumerate(of) if each != of[at - 1]]
            if components:
                return

    def _add(self, *path: Node, kind: int = 0) -> None:
        self._edges[kind] += pairwise(path)

    def _add_transaction(self, number: int) -> None:
        transaction = self._history.transactions[number]
        begin, commit, end = ("begin", number), ("commit", number), ("end", number)
        self._add(begin, *(("read", number, at) for at in range(len(transaction.reads))), end)
        places = [self.places[append.value] for append in transaction.appends if append.value in self.places]
        if places:
            last = ("read", number, len(transaction.reads) - 1) if transaction.reads else begin
            self._add(last, commit)
            for partition, offset in places:
                marker = ("marker", number, partition)
                self._add(begin, ("append", number, partition, offset), ("high", partition, offset), marker)
                self._add(("append", number, partition, offset), commit, marker, ("stable", partition, offset))
                if not transaction.producer and transaction.outcome is Outcome.COMMITTED:
                    self._add(marker, end)
            if transaction.outcome is Outcome.COMMITTED:
                self._add(commit, end)
        for at, read in enumerate(transaction.reads):
            log = self.offsets.get(read.partition, [])
            seen = [offset for offset, value in read.records if value in self.places]
            if seen:
                self._add(("stable", read.partition, max(seen)), ("read", number, at), kind=1)
            unseen = bisect_left(log, read.end)
            if read.is_latest and unseen < len(log):
                self._add(("read", number, at), ("high", read.partition, log[unseen]), kind=2)

    def _add_offsets(self) -> None:
        for partition, offsets in self.offsets.items():
            log = self._history.final[partition]
            known = [offset for offset in offsets if log[offset] in self.writer]
            self._add(*(("append", self.writer[log[offset]], partition, offset) for offset in known))
            self._add(*(("high", partition, offset) for offset in offsets))
            self._add(*(("stable", partition, offset) for offset in offsets))

    def _add_sessions(self) -> None:
        newest: dict[str, Node] = {}  # after all markers of all transactions so far, by producer
        for _, number in sorted((each.began, number) for number, each in enumerate(self._history.transactions)):
            transaction = self._history.transactions[number]
            places = [self.places[append.value] for append in transaction.appends if append.value in self.places]
            if transaction.producer and places:
                done = ("done", number)
                for partition, offset in places:
                    self._add(("marker", number, partition), done)
                    if transaction.producer in newest:
                        self._add(newest[transaction.producer], ("append", number, partition, offset))
                if transaction.producer in newest:
                    self._add(newest[transaction.producer], done)
                newest[transaction.producer] = done

    def _add_time(self) -> None:
        moments = []
        for number, transaction in enumerate(self._history.transactions):
            moments += [(transaction.began, 0, number), (transaction.ended, 1, number)]
        now: Node | None = None
        for at, (_, is_end, number) in enumerate(sorted(moments)):
            if is_end:
                then, now = now, ("time", at)
                self._add(("end", number), now)
                if then is not None:
                    self._add(then, now)
            elif now is not None:
                self._add(now, ("begin", number))


def permitted_cycles(history: History) -> dict[str, int]:
    """Count the transactions in cycles of transactions, by the edges: ww (G0), and wr (G1c), and rw (G-single).

    A history without anomalies may have them, as Kafka's do. They show that it can have cycles at all.
    """
    events, graph = EventGraph(history), defaultdict[int, set[int]](set)
    logs = {
        partition: [
            (offset, events.writer[value]) for offset, value in sorted(log.items()) if value in events.writer
        ]
        for partition, log in history.final.items()
    }  # fmt: skip
    counts = {}
    for log in logs.values():
        for (_, before), (_, after) in pairwise(log):
            graph[before].add(after)
    counts["G0"] = _in_cycles(graph)
    for number, transaction in enumerate(history.transactions):
        for read in transaction.reads:
            for _, value in read.records:
                graph[events.writer.get(value, number)].add(number)
    counts["G1c"] = _in_cycles(graph)
    for number, transaction in enumerate(history.transactions):
        for read in transaction.reads:
            log = logs.get(read.partition, [])
            unseen = bisect_left(log, (read.end, -1))
            if unseen < len(log):
                graph[number].add(log[unseen][1])
    counts["G-single"] = _in_cycles(graph)
    return counts


def _in_cycles(graph: dict[int, set[int]]) -> int:
    return sum(map(len, cyclic_components({node: others - {node} for node, others in graph.items()})))
