"""All words of the tail page at once: at open, truncation and close. In between, each append moves its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyreplog._native.log.segment import HEADER_BYTES

if TYPE_CHECKING:
    from pyreplog.log.commitlog import CommitLog


def publish(log: CommitLog, *, is_open: bool) -> None:
    """Tell readers where an open log stands."""
    _, end, entry, _ = log._state
    synced_end, synced_entry = log.tail.synced_end, log.tail.synced_entry
    if log._staged:
        end, entry = synced_end, synced_entry
    visible, visible_entry = _shown(log, end, entry)
    log.tail.publish(
        start=log.start_position, end=end, end_entry=entry, synced_end=synced_end, synced_entry=synced_entry,
        visible=visible, visible_entry=visible_entry, is_open=is_open,
    )  # fmt: skip


def _shown(log: CommitLog, end: int, entry: int) -> tuple[int, int]:
    """Where readers stop. With a commit point: where they stopped before; at least at the first record, for a page that
    shows nothing is not believed."""
    if not log._gated:
        return end, entry
    before, first = (log.tail.visible, log.tail.visible_entry), (log.start_position + HEADER_BYTES, log.start)
    return min((end, entry), max(before, first))
