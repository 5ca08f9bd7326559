"""How far a stream has come, as Spark's checkpoint keeps it: JSON in a fixed order, with a version.

    {"source":"pyreplog","tasks":1,"topics":{"orders":{"-1":{"offset":41,"token":"9f…"}}},"v":1}
    {"logs":{"<uuid>":{"name":"orders","offset":41}},"source":"pyreplog","tasks":1,"v":1}

The offset is that of the next message, or entry. Tokens are of a topic's creation, uuids of a log's: what has the same
name is not always the same. tasks: how many read the batch that ends there, so that one that is replayed is cut as it
was, whatever was sealed meanwhile: sinks may number the rows of a task. Two of these are equal when their texts are, as
Spark compares them.
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
TRACKS_MAX = 10_000
"""Logs, or partitions of topics, in one stream."""

TASKS_MAX = 1_000_000
_TEXT_MAX = 1000
_OFFSET_MAX = (1 << 63) - 1
_ADVICE = "begin with a new checkpointLocation, or give the query the source that it had"

Kind = Literal["logs", "topics"]


class Position(NamedTuple):
    """offset: of what comes next. token: of a topic's creation; of a log: none. name: of a log's directory, for people;
    of a topic: none."""

    offset: int
    token: str = ""
    name: str = ""


@dataclass(frozen=True)
class StreamOffset:
    """kind: of what is read. positions: by topic and partition; by uuid, in hex, and -1. tasks: that read the batch
    which ends there."""

    kind: Kind
    positions: Mapping[Partition, Position]
    tasks: int = 1

    def encode(self) -> dict[str, Any]:
        """As Spark takes it. CheckpointError: these are more than one stream may have."""
        if len(self.positions) > TRACKS_MAX:
            raise CheckpointError(
                f"one stream is of at most {TRACKS_MAX} logs or partitions, found {len(self.positions)}: "
                "let several queries share them"
            )
        rows: dict[str, Any] = {}
        for (topic, partition), position in sorted(self.positions.items()):
            if self.kind == "logs":
                rows[topic] = {"name": position.name, "offset": position.offset}
            else:
                rows.setdefault(topic, {})[str(partition)] = {"offset": position.offset, "token": position.token}
        made = {
            self.kind: {name: dict(sorted(row.items())) for name, row in rows.items()},
            "source": SOURCE,
            "tasks": self.tasks,
            "v": VERSION,
        }
        return dict(sorted(made.items()))

    @classmethod
    def decode(cls, found: object) -> StreamOffset:
        """What `encode` made. CheckpointError: another source or version wrote it, or it is damaged."""
        if not isinstance(found, dict) or found.get("source") != SOURCE:
            raise CheckpointError(f"the checkpoint is of another source: found the offset {_short(found)}; {_ADVICE}")
        if type(found.get("v")) is not int or found["v"] != VERSION:
            raise CheckpointError(
                f"the checkpoint has offsets of version {_short(found.get('v'))}, this build reads {VERSION}: go on "
                "with the pyreplog that wrote it, or begin with a new checkpointLocation"
            )
        try:
            return cls._decode(
                {name: part for name, part in found.items() if name not in ("source", "tasks", "v")}, found.get("tasks")
            )
        except (ValueError, TypeError, AttributeError) as error:
            raise CheckpointError(f"the checkpoint is damaged: {error}, found the offset {_short(found)}") from error

    @classmethod
    def _decode(cls, found: dict[str, Any], tasks: object) -> StreamOffset:
        positions: dict[Partition, Position] = {}
        if type(tasks) is not int or not 1 <= tasks <= TASKS_MAX:
            raise ValueError(f"expected 1 to {TASKS_MAX} tasks, found {_short(tasks)}")
        if found.keys() == {"logs"}:
            for uuid, row in found["logs"].items():
                if len(bytes.fromhex(uuid)) != 16:
                    raise ValueError(f"expected the uuid of a log, found {_short(uuid)}")
                positions[uuid, NO_PARTITION] = Position(name=_text(row, "name"), offset=_offset(row, "name"))
        elif found.keys() == {"topics"}:
            for topic, rows in found["topics"].items():
                for number, row in rows.items():
                    if str(int(number)) != number:
                        raise ValueError(f"expected the number of a partition, found {_short(number)}")
                    positions[topic, int(number)] = Position(token=_text(row, "token"), offset=_offset(row, "token"))
        else:
            raise ValueError("expected logs or topics")
        if len(positions) > TRACKS_MAX:
            raise ValueError(f"expected at most {TRACKS_MAX} logs or partitions, found {len(positions)}")
        return cls("logs" if "logs" in found else "topics", positions, tasks)


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


def _short(found: object) -> str:
    text = json.dumps(found, default=repr)
    return text if len(text) <= 200 else f"{text[:200]}…"
