"""Control records: what a bookie's log says of a ledger beside its entries (FORMAT.md, "Control records").

They lie in the same log as the entries, so that one sync orders them with adds; the newest of one code counts.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

from pyreplog._native.bookie.inspect_records import inspect_controls
from pyreplog._native.ledgerlog.entries import CONTROL, encode_control
from pyreplog.bookie.entrylog import EntryLog
from pyreplog.bookie.protocol import KEY_BYTES
from pyreplog.errors import CorruptionError, InvalidRecordsError

_BYTES_MAX = 4096


class ControlCode(IntEnum):
    """What a control record says; its entry id."""

    KEY = 0  # value: the key with which the ledger is written and fenced
    FENCE = 1  # only recovery writes to the ledger from now on
    LAC = 2  # the record's LAC was confirmed explicitly
    LIMBO = 3  # value: b"\1" entries may have been lost, b"\0" not any more


class Controls(NamedTuple):
    """What the control records of one ledger say together."""

    key: bytes | None = None
    fenced: bool = False
    lac: int = -1
    limbo: bool = False

    def encode(self, ledger: int) -> bytes:
        """Records that say the same."""
        records = []
        if self.key is not None:
            records.append(encode_control(ledger, ControlCode.KEY, self.key, lac=-1, time=0))
        if self.fenced:
            records.append(encode_control(ledger, ControlCode.FENCE, b"", lac=-1, time=0))
        if self.lac >= 0:
            records.append(encode_control(ledger, ControlCode.LAC, b"", lac=self.lac, time=0))
        if self.limbo:
            records.append(encode_limbo(ledger, True))
        return b"".join(records)


def encode_limbo(ledger: int, limbo: bool) -> bytes:
    """The record that says so."""
    return encode_control(ledger, ControlCode.LIMBO, bytes([limbo]), lac=-1, time=0)


def load_controls(log: EntryLog, ledger: int) -> Controls:
    """From the log's index; nothing is scanned. CorruptionError: they cannot be told."""
    records, _ = log.read(ledger + CONTROL, 0, max(ControlCode) + 1, _BYTES_MAX)
    try:
        return _decode(records)
    except InvalidRecordsError as error:
        raise CorruptionError(
            f"control records of ledger {ledger}", error.offset, error.expected, error.found
        ) from error


def _decode(records: bytes) -> Controls:
    found = Controls()
    for _, code, lac, value in inspect_controls(records):
        if code == ControlCode.KEY:
            if len(value) != KEY_BYTES:
                raise InvalidRecordsError(0, f"a key of {KEY_BYTES} bytes", f"{len(value)} bytes")
            found = found._replace(key=value)
        elif code == ControlCode.FENCE:
            found = found._replace(fenced=True)
        elif code == ControlCode.LIMBO:
            found = found._replace(limbo=value == b"\1")
        else:
            found = found._replace(lac=lac)
    return found
