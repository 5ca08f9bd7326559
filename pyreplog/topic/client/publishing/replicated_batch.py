"""Entries that another cluster replicates into a topic: checked, and admitted by the gate of their origin."""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterator, Sequence

from pyreplog.errors import InvalidEntryError
from pyreplog.future import AppendFuture, Outcome
from pyreplog.origins.attribute import OriginAttribute
from pyreplog.origins.gate import Admission, OriginGate, check_entries
from pyreplog.origins.origin import Gap, GapCause, OriginEntry
from pyreplog.topic.client.publishing.forwarded import EntryPart, decode, numbered_entries
from pyreplog.topic.client.publishing.publish_batch import ENTRY_OVERHEAD, BatchEntrant, Encoder, Share
from pyreplog.topic.model.dedup import DedupVerdict, GlobalProducers, Producers

PRODUCER_LENGTH = struct.Struct("<4xH")
"""Of the value of an entry."""


class ReplicatedBatch(BatchEntrant):
    """Entries of one origin, as they are stored there, and gaps behind them.

    The producers of the topic do not check them: the gate of the origin does. Global producers are asked before, for
    entries that are stored under other identities. What costs time is done for each entry, not for each message.

    Attributes:
        gate: the gate of the origin.
        session: number of the session.
        future: of what is stored of the origin afterwards.
        end: everything of the origin below this offset is in the call, or before it.
        admission: what of it is new, once the gate has admitted it.
    """

    future: AppendFuture[int]

    def __init__(
        self,
        gate: OriginGate,
        session: int,
        entries: Sequence[OriginEntry],
        gaps: Sequence[Gap],
        encoder: Encoder,
        *,
        is_numbered: bool = False,
    ) -> None:
        """Check entries. is_numbered: global producers will be asked.

        Raises InvalidEntryError; RecordTooLargeError; MissingExtraError if a codec is not installed.
        """
        check_entries(entries, gaps)
        self.gate, self.session, self._received, self._received_gaps = gate, session, entries, gaps
        self._entries, self._gaps = entries, gaps  # without copies
        self._numbered: dict[int, EntryPart] = {}  # by first offset at the origin
        self.messages = self.messages_submitted = sum([entry.messages for entry in entries])
        values = [entry.value for entry in entries]
        self.size = sum(map(len, values))
        if values:
            batch, counts = decode(values)
            for entry, count in zip(entries, counts, strict=True):
                if entry.messages != count:
                    raise InvalidEntryError(
                        f"replicated entry at offset {entry.first}: expected {entry.messages} messages, found {count}"
                    )
            if is_numbered:
                self._numbered = {entries[part.place].first: part for part in numbered_entries(batch)}
            encoder.check_size(
                max(
                    len(entry.value) - PRODUCER_LENGTH.unpack_from(entry.value)[0] + len(entry.replicate_to or b"")
                    for entry in entries
                )
            )
        self.end = gaps[-1].end if gaps else entries[-1].end if entries else 0
        self.future = AppendFuture()
        self.admission: Admission | None = None

    def drop_copies(self, producers: GlobalProducers, same_cluster: Collection[int]) -> bytes | None:
        """Make gaps of the entries whose messages are all stored under other identities.

        An entry of which only some are stored stays whole: with other bytes, the origin would not recognize it.

        Args:
            producers: those of the topic.
            same_cluster: keys of the origins in the cluster of this one.

        Returns:
            A producer, if it is in doubt whether messages of an entry are stored: then nothing is dropped, and the
            batch has to wait. None: all is known.
        """
        entries: list[OriginEntry] = []
        gaps: list[Gap] = []
        for entry in self._received:
            part = self._numbered.get(entry.first)
            if part is not None and entry.first >= self.gate.pushed:  # the gate decides about those before
                verdict = producers.check_copy(part.producer, part.sequences, same_cluster)
                if verdict is DedupVerdict.IN_DOUBT:
                    return part.producer
                if verdict is DedupVerdict.DUPLICATE:
                    gaps += [*entry.gaps, Gap(entry.first, entry.end, GapCause.DUPLICATE)]
                    continue
            entries.append(entry._replace(gaps=(*gaps, *entry.gaps)) if gaps else entry)
            gaps = []
        self._entries, self._gaps = entries, [*gaps, *self._received_gaps]
        return None

    def numbers(self) -> Iterator[tuple[int, Share]]:
        """Yield the number of each admitted entry that global producers have to know, with its share of the numbers."""
        assert self.admission is not None
        for number, entry in enumerate(self.admission.entries):
            part = self._numbered.get(entry.first)
            if part is not None:
                yield number, (part.producer, part.sequences)

    def admit(self) -> Admission | None:
        """Ask the gate what of it is new; None: it has to wait. Raises as `OriginGate.admit`."""
        self.admission = admission = self.gate.admit(self.session, self._entries, self._gaps)
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
            _attributes(attribute, entry, encoder.entry_bytes_max - ENTRY_OVERHEAD - len(entry.value))
            for attribute, entry in zip(admission.attributes, admission.entries, strict=True)
        ]

    def find_new(self, producers: Producers) -> bytes | None:
        return None

    def shares(self) -> Iterator[Share]:
        return iter(())

    def outcomes(self) -> list[Outcome]:
        """Return the outcome of a call that failed; the gate settles the others."""
        return [] if self.error is None else [(self.future, self.error)]


def _attributes(attribute: OriginAttribute, entry: OriginEntry, room: int) -> bytes:
    """Encode the attributes of the record of an entry, which ascend by tag."""
    names = entry.replicate_to
    return _attribute(attribute, room) if names is None else _attribute(attribute, room - len(names)) + names


def _attribute(attribute: OriginAttribute, room: int) -> bytes:
    """Encode an attribute; its gaps, which touch each other, as one if they take more than `room` bytes."""
    data = attribute.to_bytes()
    if len(data) <= room or len(attribute.gaps) < 2:
        return data
    longest = max(attribute.gaps, key=lambda gap: gap.end - gap.start)
    one = Gap(attribute.gaps[0].start, attribute.gaps[-1].end, longest.cause)
    return attribute._replace(gaps=(one,)).to_bytes()
