"""Numbers that a client gives to the messages of its producers: the topic's owner decides what is a duplicate."""

from __future__ import annotations

from typing import Any

import numpy
from numpy.typing import NDArray

from pyreplog.topic.model.dedup import DedupVerdict, Producers, Sequences


class SequenceAllocator(Producers):
    """Of one producer. No number is given twice, whatever becomes of its message: the owner may have it, though the
    outcome is not known here."""

    is_last_word = False

    def __init__(self) -> None:
        super().__init__()
        self._highest = -1  # that was given, or is known to the owner

    def seed(self, last: int) -> None:
        """The owner knows numbers up to this one."""
        self._highest = max(self._highest, last)

    def last_sequence(self, name: bytes) -> int:
        return max(super().last_sequence(name), self._highest)

    def next_sequence(self, name: bytes) -> int:
        return self._highest + 1

    def push(self, name: bytes, sequences: Sequences) -> None:
        self._highest = max(self._highest, int(sequences[-1]))
        super().push(name, sequences)

    def judge(self, name: bytes, sequence: int) -> DedupVerdict:
        """In doubt is only what is on its way from here."""
        verdict = super().judge(name, sequence)
        return DedupVerdict.NEW if verdict is DedupVerdict.DUPLICATE else verdict

    def sift(self, name: bytes, sequences: Sequences) -> NDArray[numpy.bool_] | None:
        new = super().sift(name, sequences)
        return None if new is None else numpy.ones(len(sequences), numpy.bool_)

    def failed(self, name: bytes, sequences: Sequences) -> list[Any]:
        waiting = super().failed(name, sequences)
        self.has_new_failures = False  # they are the owner's to remember
        return waiting
