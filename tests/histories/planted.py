"""Cycles that are planted into a recorded history. One in which they are not found could not have shown real ones."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice, pairwise

from tests.histories.anomalies import anomalies
from tests.histories.history import Append, History, Outcome, Read, Transaction

CANDIDATES, JUDGED = 25, 200_000
"""How many changes are tried: so many, and of short histories so many that this number of transactions is judged."""


def can_show(history: History, kind: str) -> bool:
    """Return whether a history without anomalies becomes one of this kind by a change that a defect could cause."""
    candidates = {"write cycle": _late_writes, "circular flow": _mutual_reads, "read skew": _shortened_reads}[kind]
    tries = max(CANDIDATES, JUDGED // max(len(history.transactions), 1))
    return any(
        kind in {anomaly.kind for anomaly in anomalies(changed)} for changed in islice(candidates(history), tries)
    )


def _changed(history: History, *changes: tuple[int, Transaction]) -> History:
    transactions = list(history.transactions)
    for number, transaction in changes:
        transactions[number] = transaction
    return History(transactions, {partition: dict(log) for partition, log in history.final.items()})


def _writers(history: History) -> dict[str, int]:
    return {
        append.value: number
        for number, transaction in enumerate(history.transactions)
        for append in transaction.appends
    }


def _late_writes(history: History) -> Iterator[History]:
    """Let a transaction begin after the client of another one was told, behind whose value one of its own should lie.
    Clients do not know these offsets, or `disorder` would be what is found."""
    writers = _writers(history)
    for log in history.final.values():
        offsets = sorted(log)
        for first, second in pairwise(offsets):
            number, other_number = writers[log[first]], writers[log[second]]
            late, other = history.transactions[number], history.transactions[other_number]
            if other.outcome is Outcome.COMMITTED and late.began < other.ended < late.ended:
                late = replace(late, began=(other.ended + late.ended) / 2)
                yield _changed(history, (number, _without_offsets(late)), (other_number, _without_offsets(other)))


def _without_offsets(transaction: Transaction) -> Transaction:
    return replace(transaction, appends=tuple(replace(append, offset=None) for append in transaction.appends))


def _mutual_reads(history: History) -> Iterator[History]:
    """Let a transaction see a value of another one that has seen one of its own."""
    writers = _writers(history)
    for number, transaction in enumerate(history.transactions):
        seen = {writers[value] for read in transaction.reads for _, value in read.records if value in writers}
        for writer in sorted(seen - {number}):
            other = history.transactions[writer]
            for at, read in enumerate(other.reads):
                for append in transaction.appends if transaction.began < other.ended else ():
                    longer = _longer(history, read, append)
                    if longer is not None:
                        reads = (*other.reads[:at], longer, *other.reads[at + 1 :])
                        yield _changed(history, (writer, replace(other, reads=reads)))


def _longer(history: History, read: Read, append: Append) -> Read | None:
    """Return the read as if it had seen an append beyond its end."""
    if append.partition != read.partition or append.offset is None or append.offset < read.end:
        return None
    log = history.final[read.partition]
    more = [(offset, log[offset]) for offset in range(read.end, append.offset + 1) if offset in log]
    return replace(read, end=append.offset + 1, records=(*read.records, *more))


def _shortened_reads(history: History) -> Iterator[History]:
    """Let a read that went up to the high watermark end earlier, where its transaction saw something newer before it,
    or began after a client had been told of what is left out."""
    writers = _writers(history)
    for number, transaction in enumerate(history.transactions):
        seen = set[int]()
        for at, read in enumerate(transaction.reads):
            for offset, value in read.records if read.is_latest else ():
                writer = history.transactions[writers[value]]
                newer = [history.transactions[each] for each in seen]
                if (not writer.producer and writer.ended < transaction.began) or any(
                    each.producer == writer.producer and each.began > writer.ended for each in newer
                ):
                    records = tuple(record for record in read.records if record[0] < offset)
                    shorter = replace(read, end=offset, records=records)
                    reads = (*transaction.reads[:at], shorter, *transaction.reads[at + 1 :])
                    yield _changed(history, (number, replace(transaction, reads=reads)))
            seen |= {writers[value] for _, value in read.records}
