"""The control record of a leader epoch. FORMAT.md, "Epoch records of a partition".

A leader appends it before all other records of its epoch, and again as the first record of each segment that it rolls.
So a log contains its epochs itself, also after it was trimmed, and only the first records of its older segments are
read when it is opened.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyreplog.stream.fields import FieldReader, FieldWriter
from pyreplog.stream.terms import NO_TERM, TermStart, read_term, write_term

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

MAGIC = b"RPEPOCH1"


def encode_epoch(start: TermStart) -> bytes:
    """Return the value of the control record of an epoch.

    Args:
        start: the epoch, and the end of its leader's log when it began.
    """
    fields = FieldWriter("<")
    write_term(fields, start.term)
    fields.mark(start.start)
    return MAGIC + fields.take()


def decode_epoch(value: ReadableBuffer) -> TermStart | None:
    """Return the epoch of a control record, and where it began; None: it is another kind of record.

    Bytes behind the last known field are ignored: later versions may add fields.

    Raises:
        InvalidMessageError: the record is malformed.
    """
    data = bytes(value)
    if not data.startswith(MAGIC):
        return None
    fields = FieldReader("<", data[len(MAGIC) :], "epoch record")
    start = TermStart(read_term(fields), fields.mark())
    if start.term <= NO_TERM or not start.term.master:
        raise fields.error("an epoch from 1 on, and its leader", f"{start.term!r}")
    return start
