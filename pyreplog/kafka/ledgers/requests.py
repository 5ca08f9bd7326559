"""The outcomes of requests to topics on ledgers. They load nothing of topics: most listeners serve none."""

from __future__ import annotations

from typing import NamedTuple

from pyreplog.partition.protocol.error_codes import ErrorCode


class LedgerFetchData(NamedTuple):
    """The outcome of a fetch of one partition. Offsets of an error are -1.

    Attributes:
        code: NONE, or the error.
        high_watermark: offset behind the last message.
        log_start: offset of the first message that is kept.
        records: one record batch, or b"".
    """

    code: ErrorCode
    high_watermark: int = -1
    log_start: int = -1
    records: bytes = b""


class LedgerOffset(NamedTuple):
    """The outcome of a search for an offset.

    Attributes:
        code: NONE, or the error.
        offset: the offset; -1: there is no such message.
        time_ms: timestamp of the message, milliseconds since 1970; -1: it was not searched by time.
    """

    code: ErrorCode
    offset: int = -1
    time_ms: int = -1


class LedgerPosition(NamedTuple):
    """The place of a group in a partition.

    Attributes:
        offsets: the messages that are kept.
        published_us: when the first of them that the group has not consumed was published, microseconds since 1970;
            None: there is none.
    """

    offsets: range
    published_us: int | None
