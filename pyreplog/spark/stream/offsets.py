"""The position of a stream, as Spark's checkpoint stores it: JSON in a fixed order, with a version.

    {"source":"pyreplog","tasks":1,"topics":{"orders":{"-1":{"offset":41,"token":"9f…"}}},"v":1}
    {"logs":{"<uuid>":{"name":"orders","offset":41}},"source":"pyreplog","tasks":1,"v":1}

An offset is that of the next message or entry. The token of a topic's creation, or the uuid of a log, tells it from a
later one of the same name. `tasks` is the number of tasks that read the batch that ends at the offset: a batch that is
read again is cut in the same way, whatever was sealed meanwhile, because sinks may number the rows of a task. Spark
compares offsets as texts, so equal offsets have equal texts.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from pyreplog.errors import CheckpointError
from pyreplog.tables.offsets import Partition
from pyreplog.tables.slices import NO_PARTITION

SOURCE, VERSION = "pyreplog", 1
SOURCE_PARTITIONS_MAX = 10_000
"""Logs, or partitions of topics, in one stream, at most."""

TASKS_MAX = 1_000_000
_TEXT_MAX = 1000
_OFFSET_MAX = (1 << 63) - 1
_ADVICE = "begin with a new checkpointLocation, or use the former source for the query"

Kind = Literal["logs", "topics"]


class Position(NamedTuple):
    """The position in one log or partition.

    offset: of the next entry. token: of the topic's creation; empty for a log. name: directory of the log, for people;
    empty for a topic.
    """

    offset: int
    token: str = ""
    name: str = ""


@dataclass(frozen=True)
class StreamOffset:
    """The position of a stream.

    kind: kind of the source. positions: by topic and partition; for logs by uuid in hex, and -1. tasks: number of tasks
    that read the batch that ends here.
    """

    kind: Kind
    positions: Mapping[Partition, Position]
    tasks: int = 1

    def encode(self) -> dict[str, Any]:
        """Return the form that Spark stores.

        Raises CheckpointError if there are more positions than a stream may have.
        """
        if len(self.positions) > SOURCE_PARTITIONS_MAX:
            raise CheckpointError(
                f"a stream may read at most {SOURCE_PARTITIONS_MAX} logs or partitions, found {len(self.positions)}: "
                "divide them among several queries"
            )
        rows: dict[str, Any] = {}
        for (topic, partition), position in sorted(self.positions.items()):
            if self.kind == "logs":
                rows[topic] = {"name": position.name, "offset": position.offset}
            else:
                rows.setdefault(topic, {})[str(partition)] = {"offset": position.offset, "token": position.token}
        fields = {
            self.kind: {name: dict(sorted(row.items())) for name, row in rows.items()},
            "source": SOURCE,
            "tasks": self.tasks,
            "v": VERSION,
        }
        return dict(sorted(fields.items()))

    @classmethod
    def decode(cls, encoded: object) -> StreamOffset:
        """Decode what `encode` returned.

        Raises CheckpointError if another source or version wrote it, or it is damaged.
        """
        if not isinstance(encoded, dict) or encoded.get("source") != SOURCE:
            raise CheckpointError(
                f"the checkpoint belongs to another source: found the offset {_short(encoded)}; {_ADVICE}"
            )
        if type(encoded.get("v")) is not int or encoded["v"] != VERSION:
            raise CheckpointError(
                f"the checkpoint has offsets of version {_short(encoded.get('v'))}, this build reads {VERSION}: use "
                "the pyreplog version that wrote it, or begin with a new checkpointLocation"
            )
        try:
            return cls._decode(
                {name: part for name, part in encoded.items() if name not in ("source", "tasks", "v")},
                encoded.get("tasks"),
            )
        except (ValueError, TypeError, AttributeError) as error:
            raise CheckpointError(f"the checkpoint is damaged: {error}, found the offset {_short(encoded)}") from error

    @classmethod
    def _decode(cls, encoded: dict[str, Any], tasks: object) -> StreamOffset:
        positions: dict[Partition, Position] = {}
        if type(tasks) is not int or not 1 <= tasks <= TASKS_MAX:
            raise ValueError(f"expected 1 to {TASKS_MAX} tasks, found {_short(tasks)}")
        if encoded.keys() == {"logs"}:
            for uuid, row in encoded["logs"].items():
                if len(bytes.fromhex(uuid)) != 16:
                    raise ValueError(f"expected the uuid of a log, found {_short(uuid)}")
                positions[uuid, NO_PARTITION] = Position(name=_text(row, "name"), offset=_offset(row, "name"))
        elif encoded.keys() == {"topics"}:
            for topic, rows in encoded["topics"].items():
                for number, row in rows.items():
                    if str(int(number)) != number:
                        raise ValueError(f"expected the number of a partition, found {_short(number)}")
                    positions[topic, int(number)] = Position(token=_text(row, "token"), offset=_offset(row, "token"))
        else:
            raise ValueError("expected logs or topics")
        if len(positions) > SOURCE_PARTITIONS_MAX:
            raise ValueError(f"expected at most {SOURCE_PARTITIONS_MAX} logs or partitions, found {len(positions)}")
        return cls("logs" if "logs" in encoded else "topics", positions, tasks)


def _offset(row: dict[str, Any], other: str) -> int:
    offset = row.get("offset")
    if row.keys() != {"offset", other} or type(offset) is not int or not 0 <= offset <= _OFFSET_MAX:
        raise ValueError(f"expected an offset from 0 on and a {other}, found {_short(row)}")
    return offset


def _text(row: dict[str, Any], name: str) -> str:
    text = row.get(name)
    if not isinstance(text, str) or len(text) > _TEXT_MAX:
        raise ValueError(f"{name}: expected text, found {_short(text)}")
    return text


def _short(value: object) -> str:
    text = json.dumps(value, default=repr)
    return text if len(text) <= 200 else f"{text[:200]}…"
