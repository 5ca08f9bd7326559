"""Entries that another cluster replicates into a topic: checked, and admitted by the gate of their origin."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence

from pyreplog.errors import InvalidEntryError
from pyreplog.future import AppendFuture, Outcome
from pyreplog.origins.attribute import OriginAttribute
from pyreplog.origins.gate import Admission, OriginGate, check_entries
from pyreplog.origins.origin import Gap, OriginEntry
from pyreplog.topic.client.publishing.forwarded import decode
from pyreplog.topic.client.publishing.publish_batch import ENTRY_OVERHEAD, BatchEntrant, Encoder, Share
from pyreplog.topic.model.dedup import Producers

PRODUCER_LENGTH = struct.Struct("<4xH")
"""Of the value of an entry."""


class ReplicatedBatch(BatchEntrant):
    """Entries of one origin, as they are stored there, and gaps behind them.

    The producers of the topic do not judge them: the gate of the origin does. What costs time is done for each entry,
    not for each message.

    Attributes:
        gate: the gate of the origin.
        future: of what is stored of the origin afterwards.
        end: everything of the origin below this offset is in the call, or before it.
        admission: what of it is new, once the gate has admitted it.
    """

    future: AppendFuture[int]

    def __init__(
        self, gate: OriginGate, session: int, entries: Sequence[OriginEntry], gaps: Sequence[Gap], encoder: Encoder
    ) -> None:
        """Check entries.

        Raises InvalidEntryError; RecordTooLargeError; MissingExtraError if a codec is not installed.
        """
        check_entries(entries, gaps)
        self.gate, self._session, self._received, self._gaps = gate, session, entries, gaps
        self.messages = self.messages_submitted = sum([entry.messages for entry in entries])
        values = [entry.value for entry in entries]
        self.size = sum(map(len, values))
        if values:
            _, counts = decode(values)
            for entry, count in zip(entries, counts, strict=True):
                if entry.messages != count:
                    raise InvalidEntryError(
                        f"replicated entry at offset {entry.first}: expected {entry.messages} messages, found {count}"
                    )
            encoder.check_size(max(len(value) - PRODUCER_LENGTH.unpack_from(value)[0] for value in values))
        self.end = gaps[-1].end if gaps else entries[-1].end if entries else 0
        self.future = AppendFuture()
        self.admission: Admission | None = None

    def judge(self) -> Admission | None:
        """Ask the gate what of it is new; None: it has to wait. Raises as `OriginGate.judge`."""
        self.admission = admission = self.gate.judge(self._session, self._received, self._gaps)
        if admission is not None:
            self.messages = sum([entry.messages for entry in admission.entries])
            self.run = admission.run
        return admission

    def note_outcome(self, is_known: bool) -> None:
        """Tell the gate the outcome. is_known: it is stored, or its entries that were not cut off never will be."""
        admission, gate, error = self.admission, self.gate, self.error
        assert admission is not None
        if error is None:
            gate.settled(admission.entries)
            gate.notify(self.end, self.future)
        elif is_known:
            gate.failed(admission.entries[: self.cut_entries], error)
        else:
            gate.lost(error)

    def encode(self, encoder: Encoder) -> None:
        admission = self.admission
        assert admission is not None
        self.entries = [entry.value for entry in admission.entries]
        self.counts = [entry.messages for entry in admission.entries]
        self.attributes = [
            _attribute(attribute, encoder.entry_bytes_max - ENTRY_OVERHEAD - len(entry))
            for attribute, entry in zip(admission.attributes, self.entries, strict=True)
        ]

    def find_new(self, producers: Producers) -> bytes | None:
        return None

    def shares(self) -> Iterator[Share]:
        return iter(())

    def outcomes(self) -> list[Outcome]:
        """Return the outcome of a call that failed; the gate settles the others."""
        return [] if self.error is None else [(self.future, self.error)]


def _attribute(attribute: OriginAttribute, room: int) -> bytes:
    """Encode an attribute; its gaps, which touch each other, as one if they take more than `room` bytes."""
    data = attribute.to_bytes()
    if len(data) <= room or len(attribute.gaps) < 2:
        return data
    longest = max(attribute.gaps, key=lambda gap: gap.end - gap.start)
    one = Gap(attribute.gaps[0].start, attribute.gaps[-1].end, longest.cause)
    return attribute._replace(gaps=(one,)).to_bytes()
