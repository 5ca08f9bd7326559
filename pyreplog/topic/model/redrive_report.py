"""RedriveReport: how many dead letters were sent back, and where to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class RedriveReport:
    """The outcome of `redrive`, or how far it has come.

    sent: dead letters that are in their topics again, and acknowledged; of a dry run, those that would be. repeated: of
    these, those that an earlier, interrupted run had sent, and that the topic dropped as duplicates. skipped: `where`
    left them out. stranded: they do not say which topic they come from, or it does not exist any more. The last two
    stay in the dead-letter topic. topics: of `sent`, how many went to each topic.
    """

    sent: int = 0
    repeated: int = 0
    skipped: int = 0
    stranded: int = 0
    topics: Mapping[str, int] = field(default_factory=dict)

    def __add__(self, other: RedriveReport) -> RedriveReport:
        topics = dict(self.topics)
        for topic, count in other.topics.items():
            topics[topic] = topics.get(topic, 0) + count
        return RedriveReport(
            self.sent + other.sent,
            self.repeated + other.repeated,
            self.skipped + other.skipped,
            self.stranded + other.stranded,
            topics,
        )
