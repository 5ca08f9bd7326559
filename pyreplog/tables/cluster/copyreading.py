"""The copies of a ledger's entries that one bookie has, whatever others have."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from pyreplog._native.ledgerlog.entries import parse_entries
from pyreplog._native.log.batch import RecordBatch
from pyreplog.bookie.protocol import READ_BYTES_MAX, Reply, ReplyStatus, Request, RequestKind
from pyreplog.errors import InvalidRecordsError, UnauthorizedError, UnreadableError
from pyreplog.future import AppendFuture
from pyreplog.ledger.driver import Runtime


class UnknownCopyError(UnreadableError):
    """A bookie cannot tell whether it has an entry, or what is in it. entry: its number."""

    def __init__(self, ledger: int, entry: int, why: str) -> None:
        super().__init__(ledger, why)
        self.entry = entry


def read_copies(
    runtime: Runtime, bookie: str, ledger: int, key: bytes, first: int, stop: int
) -> Iterator[RecordBatch | UnreadableError]:
    """Entries `first` to before `stop`, those that it has, in batches. An error stands for one entry that it had: it is
    damaged, or cannot be told (UnknownCopyError); it goes on behind that.

    Errors: UnauthorizedError; NotConnectedError and the others of a bookie that does not answer.
    """
    while first < stop:
        request = Request(RequestKind.READ, ledger, first, stop - 1, key, limit=READ_BYTES_MAX)
        reply = _ask(runtime, bookie, request)
        if reply.status == ReplyStatus.UNAUTHORIZED:
            raise UnauthorizedError(ledger, f"{bookie} refuses its password")
        if reply.status != ReplyStatus.OK or not first <= reply.last < stop:
            why = f"{ReplyStatus(reply.status).name} {bytes(reply.body).decode('utf-8', 'replace')}"
            yield UnknownCopyError(ledger, first, f"entry {first} on {bookie}: {why}")
            first += 1
            continue
        found, first = _parsed(reply, bookie, first)
        yield from found


def _parsed(reply: Reply, bookie: str, first: int) -> tuple[list[RecordBatch | UnreadableError], int]:
    """What an answer gives, and the entry that is asked for next."""
    if not len(reply.body):
        return [], reply.last + 1
    try:
        batch = parse_entries(reply.body, ledger=reply.ledger, first=first, last=reply.last)
    except InvalidRecordsError as error:
        return [UnreadableError(reply.ledger, f"entry {first} on {bookie}: {error}")], first + 1
    if batch.next_position == len(reply.body):
        return [batch], reply.last + 1
    return [batch], int(np.max(batch.entry)) + 1  # what is damaged comes first in the next answer


def _ask(runtime: Runtime, bookie: str, request: Request) -> Reply:
    done: AppendFuture[Reply] = AppendFuture()
    runtime.expect(done)

    def answered(answer: Reply | Exception) -> None:
        if isinstance(answer, Exception):
            done.fail(answer)
        else:
            done.complete(answer)

    runtime.send(bookie, request, answered)
    return runtime.wait(done)
