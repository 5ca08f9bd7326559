"""Reports on the scrub of a bookie: in the reply to a SCRUB request, and in the bookie's registration."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Self

from pyreplog.errors import InvalidMessageError
from pyreplog.metadata.values import decode_object, field


@dataclass(frozen=True)
class LastScrub:
    """The last complete pass of a bookie over its segments.

    Attributes:
        ended_us: end of the pass, microseconds since 1970-01-01 UTC.
        bad_records: damaged records without a newer copy that it found, and noted for repair.
        mended: header blocks, ends, index files and control records that it found damaged, and wrote anew.
        damaged_segments: number of segments that have damage now.
    """

    ended_us: int
    bad_records: int = 0
    mended: int = 0
    damaged_segments: int = 0


@dataclass(frozen=True)
class ScrubReport:
    """The progress of a bookie's verification of its segments.

    Attributes:
        is_asked: whether a requested pass is under way, or about to begin.
        done_bytes: bytes of segments that the pass has verified.
        total_bytes: bytes of all segments that the pass verifies.
        bad_records: damaged records without a newer copy that the pass has found.
        mended: parts of segments that the pass found damaged, and wrote anew.
        damaged_segments: number of segments that have damage now.
        last: the last complete pass; None: there was none.
    """

    is_asked: bool
    done_bytes: int
    total_bytes: int
    bad_records: int
    mended: int
    damaged_segments: int
    last: LastScrub | None = None

    def encode(self) -> bytes:
        """Encode as the body of a reply."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def decode(cls, data: bytes | memoryview) -> Self:
        """Decode a report from the body of an OK reply; unknown fields are skipped.

        Raises:
            InvalidMessageError: the body is not a report.
        """
        try:
            body = decode_object(bytes(data))
            last = body.get("last")
            return cls(
                field(body, "is_asked", bool),
                field(body, "done_bytes", int),
                field(body, "total_bytes", int),
                field(body, "bad_records", int),
                field(body, "mended", int),
                field(body, "damaged_segments", int),
                None if last is None else decode_last(last),
            )
        except ValueError as error:
            raise InvalidMessageError(f"report of a scrub: {bytes(data[:80])!r}: {error}") from error


def decode_last(value: object) -> LastScrub:
    """Decode the last complete pass from an object of JSON. Raises ValueError when it is malformed."""
    if type(value) is not dict:
        raise ValueError(f"expected the last scrub, found {str(value)[:80]}")
    return LastScrub(
        field(value, "ended_us", int),
        field(value, "bad_records", int),
        field(value, "mended", int),
        field(value, "damaged_segments", int),
    )
