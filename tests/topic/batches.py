"""Entries in the form in which a sink of a topic gets them, without a publisher."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from pyreplog.future import AppendFuture, Outcome, set_exception, set_result
from pyreplog.topic.client.publishing.publish_batch import Encoder, PublishBatch, Share
from pyreplog.topic.client.publishing.sequencer import Sink


class EntryBatch(PublishBatch):
    """A batch of encoded entries. future: its result is the offsets of their messages."""

    def __init__(self, entries: Sequence[bytes], counts: Sequence[int]) -> None:
        self.entries, self.counts = entries, counts
        self.entry_bytes = self.size = sum(map(len, entries))
        self.messages = self.messages_submitted = sum(counts)
        self.is_ready = True
        self.future: AppendFuture[range] = AppendFuture()
        self.on_settled: Callable[[PublishBatch], object] = self._complete

    def encode(self, encoder: Encoder) -> None:
        raise AssertionError

    def shares(self) -> Iterator[Share]:
        return iter(())

    def outcomes(self) -> list[Outcome]:
        raise AssertionError

    def _complete(self, _: PublishBatch) -> None:
        if self.error is not None:
            set_exception(self.future, self.error)
        else:
            set_result(self.future, self.offsets)  # type: ignore[arg-type]


def submit(sink: Sink, entries: Sequence[bytes], counts: Sequence[int]) -> AppendFuture[range]:
    """Submit entries to a sink; return a future with the offsets of their messages. Errors are those of the sink."""
    batch = EntryBatch(entries, counts)
    sink.submit_all([batch])
    return batch.future
