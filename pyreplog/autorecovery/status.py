"""AutoRecoveryStatus: what the auditor tells everybody, in the metadata store."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

from pyreplog.autorecovery.protocol.absence import Alarm
from pyreplog.metadata.store import MetadataStore
from pyreplog.metadata.values import MetadataValue, field, number

STATUS = "/autorecovery/status"
HEARTBEAT_US = 60_000_000
"""A status that did not change is written again after so long, so that one of an auditor that fails can be told."""
FRESH_US = 3 * HEARTBEAT_US
FAILED_MAX = 20
"""So many ledgers that cannot be copied are named."""
OPEN_MAX = 1000
"""So many ledgers that are not closed are named."""
PROGRESS_MAX = 240
"""Points of the curve of the ledgers that are left. Beyond it, every second one is dropped."""


@dataclass(frozen=True)
class AutoRecoveryStatus(MetadataValue):
    """What the auditor found last.

    Attributes:
        auditor: the process that is the auditor.
        at_us: when this was written, microseconds since 1970-01-01 UTC. It is written again when something changed, and
            after a minute.
        ledgers_left: bookie id -> number of ledgers that name it, of bookies with orders.
        alarms: what needs an operator.
        failed: ledger -> why it cannot be copied now, of up to FAILED_MAX ledgers.
        open_ledgers: ledgers whose writer, or whose recovery, has to replace a bookie with an order in their last
            fragment; the first OPEN_MAX.
        progress: how many ledgers were left, as pairs of a time, microseconds since 1970-01-01 UTC, and the number
            from then on; ascending, up to PROGRESS_MAX.
    """

    KIND: ClassVar[str] = f"status of auto-recovery, {STATUS}"

    auditor: str
    at_us: int
    ledgers_left: dict[str, int]
    alarms: tuple[Alarm, ...]
    failed: dict[int, str]
    open_ledgers: tuple[int, ...]
    progress: tuple[tuple[int, int], ...] = ()

    def _encode_fields(self) -> dict[str, Any]:
        return {
            **super()._encode_fields(),
            "alarms": [[alarm.code, alarm.text] for alarm in self.alarms],
            "failed": {str(ledger): why for ledger, why in self.failed.items()},
        }

    @classmethod
    def _decode_fields(cls, fields: dict[str, Any]) -> dict[str, Any]:
        return {
            "auditor": field(fields, "auditor", str),
            "at_us": number(fields, "at_us"),
            "ledgers_left": {name: _number(count) for name, count in field(fields, "ledgers_left", dict).items()},
            "alarms": tuple(Alarm(str(code), str(text)) for code, text in field(fields, "alarms", list)),
            "failed": {int(ledger): str(why) for ledger, why in field(fields, "failed", dict).items()},
            "open_ledgers": tuple(_number(ledger) for ledger in field(fields, "open_ledgers", list)),
            "progress": tuple((_number(at_us), _number(left)) for at_us, left in fields.get("progress", ())),
        }

    def following(self, earlier: tuple[tuple[int, int], ...]) -> AutoRecoveryStatus:
        """Return this status with a curve that goes on from an earlier one."""
        left = sum(self.ledgers_left.values())
        if left == (earlier[-1][1] if earlier else 0):
            return replace(self, progress=earlier)
        curve = (*earlier, (max(self.at_us, earlier[-1][0] if earlier else 0), left))
        if len(curve) > PROGRESS_MAX:  # the newest point stays
            curve = curve[(len(curve) - 1) % 2 :: 2]
        return replace(self, progress=curve)


def _number(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"expected a number, found {str(value)[:80]!r}")
    return value


def find_status(store: MetadataStore) -> AutoRecoveryStatus | None:
    """Return what the auditor found last; None: no auditor has written anything yet.

    Raises:
        InvalidMetadataError: the status is malformed, or needs a newer reader.
        ReplogError: errors of the store.
    """
    stored = store.get(STATUS)
    return None if stored is None else AutoRecoveryStatus.decode(stored.value)
