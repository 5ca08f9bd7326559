"""The output of `pyreplog topic consume`: messages."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from pyreplog._native.topic.messages import Message
from pyreplog.cli.shared.output import json_bytes, json_text, raw_lines


class MessagePrinter:
    """Prints messages: raw (the value, or key TAB value, and a line feed), or as one JSON object on each line."""

    def __init__(self, *, as_json: bool, keys: bool) -> None:
        self._json, self._keys = as_json, keys
        self._out = sys.stdout.buffer

    def print(self, messages: Sequence[Message]) -> None:
        """Print messages, and flush."""
        if self._json:
            data = b"\n".join([*(json_text(_described(message)).encode() for message in messages), b""])
        elif self._keys:
            data = raw_lines((message.key or b"") + b"\t" + message.value for message in messages)
        else:
            data = raw_lines(message.value for message in messages)
        self._out.write(data)
        self._out.flush()


def _described(message: Message) -> dict[str, Any]:
    where = {} if message.partition < 0 else {"partition": message.partition}
    return {
        **where, "offset": message.offset, "publish_time": message.publish_time, "event_time": message.event_time,
        "deliver_at": message.deliver_at, "key": None if message.key is None else json_bytes(message.key),
        "value": json_bytes(message.value),
        "properties": {name: json_bytes(value) for name, value in message.properties.items()},
        "producer": json_bytes(message.producer) or None, "sequence": message.sequence,
        "redelivered": message.redelivered, "ledger": message.ledger, "entry": message.entry, "index": message.index,
        "origin_key": None if message.origin_key is None else f"{message.origin_key:016x}",
        "origin_offset": message.origin_offset, "origin_publish_time": message.origin_publish_time,
    }  # fmt: skip
