"""Control records: facts about a ledger in a bookie's log, beside its entries (FORMAT.md, "Control records").

They are in the same log as the entries, so that one sync orders them with ADDs. The newest record of a code counts.
"""

from __future__ import annotations

import logging
from enum import IntEnum
from typing import NamedTuple

from pyreplog._native.bookie.inspect_records import inspect_controls
from pyreplog._native.ledger_log.entries import CONTROL, encode_control
from pyreplog.bookie.entry_log import EntryLog
from pyreplog.bookie.protocol import KEY_BYTES
from pyreplog.errors import CorruptionError, InvalidRecordsError

_BYTES_MAX = 4096

logger = logging.getLogger(__name__)


class ControlCode(IntEnum):
    """The kind of a control record, which is its entry number."""

    KEY = 0  # value: the key with which the ledger is written and fenced
    FENCE = 1  # only recovery may write to the ledger
    LAC = 2  # the record's LAC was confirmed explicitly
    LIMBO = 3  # value: b"\1" the ledger is in limbo, b"\0" it is not any more
    COPIED = 4  # the first entries were copies: if no key is stored, none was lost


class Controls(NamedTuple):
    """The contents of all control records of one ledger."""

    key: bytes | None = None
    fenced: bool = False
    lac: int = -1
    limbo: bool = False
    copied: bool = False

    def encode(self, ledger: int) -> bytes:
        """Encode as control records."""
        records = []
        if self.key is not None:
            records.append(encode_control(ledger, ControlCode.KEY, self.key, lac=-1, time=0))
        if self.fenced:
            records.append(encode_control(ledger, ControlCode.FENCE, b"", lac=-1, time=0))
        if self.lac >= 0:
            records.append(encode_control(ledger, ControlCode.LAC, b"", lac=self.lac, time=0))
        if self.limbo:
            records.append(encode_limbo(ledger, True))
        if self.copied:
            records.append(encode_control(ledger, ControlCode.COPIED, b"", lac=-1, time=0))
        return b"".join(records)


def encode_limbo(ledger: int, limbo: bool) -> bytes:
    """Encode the record that puts a ledger into limbo, or takes it out."""
    return encode_control(ledger, ControlCode.LIMBO, bytes([limbo]), lac=-1, time=0)


def load_controls(log: EntryLog, ledger: int) -> Controls:
    """Read the control records of a ledger by the log's index, without a scan.

    A damaged record counts as the safe value: the ledger is fenced, or in limbo, and its LAC is unknown. If the key is
    damaged, that of the next request that passes verification is noted; no fence was lost with the old one. Raises
    CorruptionError if it is unknown which control records exist.
    """
    try:
        records, _ = log.read(ledger + CONTROL, 0, max(ControlCode) + 1, _BYTES_MAX)
    except CorruptionError as error:
        logger.warning("ledger %d: a control record is damaged: %s", ledger, error)
        return _load_each(log, ledger)
    return _decode(ledger, records)


def _load_each(log: EntryLog, ledger: int) -> Controls:
    """Read the control records one by one, because one of them is damaged."""
    intact, damaged = [], set()
    for code in log.held_entries(ledger + CONTROL, 0, max(ControlCode) + 1).tolist():
        try:
            intact.append(log.read(ledger + CONTROL, code, code + 1, _BYTES_MAX)[0])
        except CorruptionError:
            damaged.add(code)
    controls = _decode(ledger, b"".join(intact))
    return controls._replace(
        fenced=controls.fenced or ControlCode.FENCE in damaged,
        limbo=controls.limbo or ControlCode.LIMBO in damaged,
        copied=controls.copied or bool({ControlCode.COPIED, ControlCode.KEY} & damaged),
    )


def _decode(ledger: int, records: bytes) -> Controls:
    controls = Controls()
    try:
        for _, code, lac, value in inspect_controls(records):
            if code == ControlCode.KEY:
                if len(value) != KEY_BYTES:
                    raise InvalidRecordsError(0, f"a key of {KEY_BYTES} bytes", f"{len(value)} bytes")
                controls = controls._replace(key=value)
            elif code == ControlCode.FENCE:
                controls = controls._replace(fenced=True)
            elif code == ControlCode.LIMBO:
                controls = controls._replace(limbo=value == b"\1")
            elif code == ControlCode.COPIED:
                controls = controls._replace(copied=True)
            else:
                controls = controls._replace(lac=lac)
    except InvalidRecordsError as error:
        raise CorruptionError(
            f"control records of ledger {ledger}", error.offset, error.expected, error.found
        ) from error
    return controls
