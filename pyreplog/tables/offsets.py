"""Where a read begins or ends in each log, in the notation of Kafka's Spark source."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass

from pyreplog.errors import ConfigError

FIRST, LAST = -2, -1
"""Kafka's numbers for the earliest and the latest offset."""

Partition = tuple[str, int]
"""Topic and partition number; a log that is no partition is partition -1 of the topic of its name."""

_MAX = (1 << 63) - 1


@dataclass(frozen=True)
class Offsets:
    """Offsets of a read: `everywhere` is one for all partitions; None: `each` has one for each partition."""

    everywhere: int | None
    each: tuple[tuple[Partition, int], ...] = ()

    @classmethod
    def starting(cls, name: str, text: str) -> Offsets:
        """Parse an option whose text is "earliest", a number, or {"topic": {"partition": number}}.

        Raises ConfigError.
        """
        return cls._parse(name, text, "earliest", FIRST)

    @classmethod
    def ending(cls, name: str, text: str) -> Offsets:
        """Parse an option like `starting`, with "latest". The read stops before the offset."""
        return cls._parse(name, text, "latest", LAST)

    @classmethod
    def streaming(cls, name: str, text: str) -> Offsets:
        """Parse an option like `starting`, or "latest" (-1), for streams that begin with the next entry."""
        if text.strip().lower() == "latest":
            return cls(LAST)
        return cls._parse(name, text, "earliest", FIRST, also=LAST)

    @classmethod
    def _parse(cls, name: str, text: str, word: str, number: int, also: int | None = None) -> Offsets:
        expected = f'{name}: expected "{word}", a number or {{"topic": {{"partition": number}}}}'
        if text.strip().lower() == word:
            return cls(number)
        try:
            parsed = json.loads(text)
            if isinstance(parsed, dict):
                each = {(topic, int(at)): offset for topic, row in parsed.items() for at, offset in row.items()}
            else:
                each = {("", 0): parsed}
        except (ValueError, AttributeError) as error:
            raise ConfigError(f"{expected}, found {text!r}") from error
        for offset in each.values():
            if not _is_int(offset) or not (0 <= offset <= _MAX or offset in (number, also)):
                raise ConfigError(f"{expected} (0 or more, or {number} for the {word}), found {offset!r}")
        return cls(None, tuple(sorted(each.items()))) if isinstance(parsed, dict) else cls(parsed)

    def of(self, partition: Partition) -> int:
        """Return the offset of a partition, which may be FIRST or LAST."""
        return self.everywhere if self.everywhere is not None else dict(self.each)[partition]

    def check_names(self, name: str, partitions: Iterable[Partition]) -> None:
        """Raise ConfigError if offsets are given by partition, and not for exactly these partitions."""
        known, given = set(partitions), {partition for partition, _ in self.each}
        if self.everywhere is None and known != given:
            raise ConfigError(f"{name}: expected offsets of {_words(known)}, found those of {_words(given)}")


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _words(partitions: set[Partition]) -> str:
    return ", ".join(f"{topic} partition {number}" for topic, number in sorted(partitions)) or "none"


EARLIEST, LATEST = Offsets(FIRST), Offsets(LAST)
