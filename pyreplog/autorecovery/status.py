"""AutoRecoveryStatus: the status that the auditor publishes in the metadata store."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

from pyreplog.autorecovery.protocol.absence import Alarm
from pyreplog.metadata.store import MetadataStore
from pyreplog.metadata.values import MetadataValue, field, number

STATUS = "/autorecovery/status"
HEARTBEAT_US = 60_000_000
"""An unchanged status is written again after this time, microseconds, so that an auditor that fails is noticed."""
FRESH_US = 3 * HEARTBEAT_US
FAILED_MAX = 20
"""Maximum number of named ledgers that cannot be copied."""
OPEN_MAX = 1000
"""Maximum number of named ledgers that are not closed."""
PROGRESS_MAX = 240
"""Maximum number of points of the progress curve. Beyond it every second point is dropped."""


@dataclass(frozen=True)
class AutoRecoveryStatus(MetadataValue):
    """The last result of the auditor.

    Attributes:
        auditor: name of the auditor's process.
        at_us: time of the write, microseconds since 1970-01-01 UTC. The status is written after each change, and after
            a minute.
        ledgers_left: number of ledgers that name each bookie with an order.
        alarms: conditions that need an operator.
        failed: why ledgers cannot be copied now, for up to FAILED_MAX ledgers.
        open_ledgers: ledgers whose writer, or recovery, has to replace a bookie with an order in the last fragment; the
            first OPEN_MAX.
        progress: number of ledgers left over time, as ascending pairs (microseconds since 1970-01-01 UTC, number from
            then on), up to PROGRESS_MAX.
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
        """Return this status with a progress curve that extends an earlier one."""
        left = sum(self.ledgers_left.values())
        if left == (earlier[-1][1] if earlier else 0):
            return replace(self, progress=earlier)
        curve = (*earlier, (max(self.at_us, earlier[-1][0] if earlier else 0), left))
        if len(curve) > PROGRESS_MAX:  # keep the newest point
            curve = curve[(len(curve) - 1) % 2 :: 2]
        return replace(self, progress=curve)


def _number(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"expected a number, found {str(value)[:80]!r}")
    return value


def find_status(store: MetadataStore) -> AutoRecoveryStatus | None:
    """Return the last published status; None: no auditor has published one.

    Raises:
        InvalidMetadataError: the status is malformed, or needs a newer reader.
        ReplogError: errors of the store.
    """
    stored = store.get(STATUS)
    return None if stored is None else AutoRecoveryStatus.decode(stored.value)
