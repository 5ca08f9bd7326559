"""Reads the copies of a ledger's entries that one bookie has."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from pyreplog._native.ledger_log.entries import parse_entries
from pyreplog._native.log.batch import RecordBatch
from pyreplog.bookie.protocol import READ_BYTES_MAX, Reply, ReplyStatus, Request, RequestKind
from pyreplog.errors import InvalidRecordsError, UnauthorizedError, UnreadableError
from pyreplog.future import AppendFuture, set_exception, set_result
from pyreplog.ledger.driver import Runtime


class UnknownCopyError(UnreadableError):
    """A bookie cannot tell whether it has an entry, or what the entry holds. entry: its number."""

    def __init__(self, ledger: int, entry: int, why: str) -> None:
        super().__init__(ledger, why)
        self.entry = entry


def read_copies(
    runtime: Runtime, bookie: str, ledger: int, key: bytes, first: int, stop: int
) -> Iterator[RecordBatch | UnreadableError]:
    """Yield the entries from `first` to before `stop` that a bookie has, in batches.

    An error stands for one entry whose copy is damaged, or unknown (UnknownCopyError). Reading goes on after it. Raises
    UnauthorizedError, and NotConnectedError or another error of a bookie that does not answer.
    """
    while first < stop:
        request = Request(RequestKind.READ, ledger, first, stop - 1, key, limit=READ_BYTES_MAX)
        reply = _ask(runtime, bookie, request)
        if reply.status == ReplyStatus.UNAUTHORIZED:
            raise UnauthorizedError(ledger, f"{bookie} refuses the password")
        if reply.status != ReplyStatus.OK or not first <= reply.last < stop:
            why = f"{ReplyStatus(reply.status).name} {bytes(reply.body).decode('utf-8', 'replace')}"
            yield UnknownCopyError(ledger, first, f"entry {first} on {bookie}: {why}")
            first += 1
            continue
        results, first = _parsed(reply, bookie, first)
        yield from results


def _parsed(reply: Reply, bookie: str, first: int) -> tuple[list[RecordBatch | UnreadableError], int]:
    """Return the entries or the error in a reply, and the next entry to ask for."""
    if not len(reply.body):
        return [], reply.last + 1
    try:
        batch = parse_entries(reply.body, ledger=reply.ledger, first=first, last=reply.last)
    except InvalidRecordsError as error:
        return [UnreadableError(reply.ledger, f"entry {first} on {bookie}: {error}")], first + 1
    if batch.next_position == len(reply.body):
        return [batch], reply.last + 1
    return [batch], int(np.max(batch.entry)) + 1  # the damaged entry is the first of the next reply


def _ask(runtime: Runtime, bookie: str, request: Request) -> Reply:
    done: AppendFuture[Reply] = AppendFuture()
    runtime.expect(done)

    def answered(answer: Reply | Exception) -> None:
        if isinstance(answer, Exception):
            set_exception(done, answer)
        else:
            set_result(done, answer)

    runtime.send(bookie, request, answered)
    return runtime.wait(done)
