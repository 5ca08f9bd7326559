"""What auto-recovery keeps in the metadata store: values, and the changes of them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pyreplog.autorecovery.config import CONFIG, AutoRecoveryConfig, change_config, load_config
from pyreplog.autorecovery.hold import HOLD, begin_hold, end_hold, find_hold
from pyreplog.autorecovery.lost_entries import (
    RANGES_MAX,
    LostEntries,
    LostRange,
    list_lost,
    lost_key,
    note_lost,
    ranges_of,
    remove_lost,
)
from pyreplog.autorecovery.orders import list_orders, order_key, place_order, withdraw_order
from pyreplog.autorecovery.protocol.absence import Alarm
from pyreplog.autorecovery.status import PROGRESS_MAX, STATUS, AutoRecoveryStatus, find_status
from pyreplog.autorecovery.timed_reason import TimedReason
from pyreplog.autorecovery.worker_status import WorkerStatus, list_workers, worker_key
from pyreplog.errors import (
    ConfigError,
    InvalidMetadataError,
    MetadataVersionError,
    OutcomeUnknownError,
    VersionConflictError,
)
from pyreplog.metadata.changes import change_key, delete_key
from pyreplog.metadata.memory import MemoryStore
from pyreplog.metadata.store import Versioned


@pytest.fixture
def store() -> Any:
    with MemoryStore() as store:
        yield store


# ---- changes ---------------------------------------------------------------------------------------------------


class Interfering(MemoryStore):
    """Another process changes the key before each of our writes, some times; or replies are lost."""

    def __init__(self, times: int, *, lost: bool = False) -> None:
        super().__init__()
        self.times, self.lost = times, lost

    def _put(self, key: str, value: bytes, version: int) -> int:
        if self.times:
            self.times -= 1
            if self.lost:
                super()._put(key, value, version)
                raise OutcomeUnknownError("the reply was lost")
            other = super()._get(key)
            assert other is not None
            super()._put(key, other.value + b"+", other.version)
        return super()._put(key, value, version)


def test_a_change_is_decided_again_when_another_process_was_quicker() -> None:
    with Interfering(3) as store:
        store.create("/key", b"a")
        assert change_key(store, "/key", lambda value: (value or b"") + b"b") == b"a+++b"
        assert store.get("/key") == Versioned(b"a+++b", 4)


def test_a_change_ends_when_others_never_do() -> None:
    with Interfering(1000) as store:
        store.create("/key", b"a")
        with pytest.raises(VersionConflictError, match="/key was changed by others 64 times"):
            change_key(store, "/key", lambda value: (value or b"") + b"b")


def test_a_change_whose_reply_was_lost_is_not_made_twice() -> None:
    with Interfering(1, lost=True) as store:
        store.create("/key", b"a")
        assert change_key(store, "/key", lambda value: b"b") == b"b"
        assert store.get("/key") == Versioned(b"b", 1)


def test_a_change_to_nothing_deletes(store: MemoryStore) -> None:
    delete_key(store, "/key")
    store.create("/key", b"a")
    assert change_key(store, "/key", lambda value: value) == b"a"
    delete_key(store, "/key")
    assert store.get("/key") is None


# ---- orders and hold -------------------------------------------------------------------------------------------


def test_an_order_stays_as_it_was_placed_first(store: MemoryStore) -> None:
    place_order(store, "b@1", TimedReason(5, "first"))
    place_order(store, "b@1", TimedReason(6, "second"))
    place_order(store, "a@1", TimedReason(7, "other"))
    assert [(bookie, order.since_us, order.reason) for bookie, order in list_orders(store).items()] == [
        ("a@1", 7, "other"),
        ("b@1", 5, "first"),
    ]
    withdraw_order(store, "b@1")
    withdraw_order(store, "b@1")
    assert list(list_orders(store)) == ["a@1"]


@pytest.mark.parametrize("value", [b"", b"[]", b'{"version": 1}', b'{"version": 9, "since_us": 1, "reason": ""}'])
def test_an_order_that_cannot_be_read_is_an_order(store: MemoryStore, value: bytes) -> None:
    """It can be withdrawn like any other; to ignore it would hide it from operators."""
    store.create(order_key("b@1"), value)
    assert list_orders(store)["b@1"].reason.startswith(order_key("b@1"))
    withdraw_order(store, "b@1")
    assert not list_orders(store)


def test_a_hold_holds_until_it_is_ended(store: MemoryStore) -> None:
    assert find_hold(store) is None
    assert not end_hold(store)
    assert begin_hold(store, TimedReason(5, "upgrade")).since_us == 5
    assert begin_hold(store, TimedReason(6, "again")).reason == "upgrade"
    hold = find_hold(store)
    assert hold is not None
    assert (hold.since_us, hold.reason) == (5, "upgrade")
    assert end_hold(store)
    assert find_hold(store) is None


def test_a_hold_that_cannot_be_read_holds(store: MemoryStore) -> None:
    store.create(HOLD, b"?")
    hold = find_hold(store)
    assert hold is not None
    assert hold.since_us == 0


def test_fields_of_a_later_version_stay(store: MemoryStore) -> None:
    value = json.dumps({"version": 2, "min_reader": 1, "since_us": 5, "reason": "", "by": "somebody"}).encode()
    assert json.loads(TimedReason.decode(value).encode()) == json.loads(value)


# ---- settings --------------------------------------------------------------------------------------------------


def test_settings_have_defaults_and_are_changed_one_by_one(store: MemoryStore) -> None:
    assert load_config(store) == AutoRecoveryConfig()
    change_config(store, {"delay_ms": 1000})
    change_config(store, {"bytes_per_s": 5 << 20})
    config = load_config(store)
    assert (config.delay_ms, config.bytes_per_s, config.copies_at_once) == (1000, 5 << 20, 8)


@pytest.mark.parametrize("settings", [{"delay_ms": -1}, {"delay_ms": True}, {"bytes_per_s": 0}, {"delay": 1}])
def test_settings_out_of_bounds_are_refused(store: MemoryStore, settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(settings))):
        change_config(store, settings)
    assert store.get(CONFIG) is None


def test_settings_of_a_newer_version_are_refused_by_name(store: MemoryStore) -> None:
    store.create(CONFIG, b'{"version": 2, "min_reader": 2}')
    with pytest.raises(MetadataVersionError, match="settings of auto-recovery"):
        load_config(store)


@pytest.mark.parametrize("value", [b"{}", b'{"version": 1, "delay_ms": "x"}'])
def test_settings_that_make_no_sense_are_refused(store: MemoryStore, value: bytes) -> None:
    store.create(CONFIG, value)
    with pytest.raises(InvalidMetadataError, match=CONFIG):
        load_config(store)


# ---- lost entries ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "entries", [[], [3], [3, 4], [3, 4, 5, 9], [0, 5, 10, 15, 16], [1, 2, 4, 8, 16], list(range(0, 400, 5))]
)
def test_ranges_hold_these_entries_and_no_others(entries: list[int]) -> None:
    ranges = ranges_of(entries, "b@1", 5)
    assert sorted(entry for item in ranges for entry in item.entries) == entries
    assert len(ranges) <= max(1, len(entries) // 2 + 1)


def test_losses_are_added_once_and_taken_off(store: MemoryStore) -> None:
    note_lost(store, 7, ranges_of([1, 2, 3], "b@1", 5))
    note_lost(store, 7, ranges_of([1, 2, 3], "b@1", 9))  # a worker that was killed does it again
    note_lost(store, 7, ranges_of([9], "c@1", 6))
    note_lost(store, 8, ranges_of([0], "b@1", 5))
    lost = list_lost(store)
    assert [(item.start, item.stop, item.bookie, item.since_us) for item in lost[7].ranges] == [
        (1, 4, "b@1", 5),
        (9, 10, "c@1", 6),
    ]
    remove_lost(store, 7, range(2, 3))
    assert [entry for item in list_lost(store)[7].ranges for entry in item.entries] == [1, 3, 9]
    remove_lost(store, 7, range(100))
    remove_lost(store, 99, range(100))
    assert list(list_lost(store)) == [8]


def test_an_entry_that_several_bookies_may_have_had_is_lost_once() -> None:
    lost = LostEntries().with_ranges(
        [LostRange(3, 9, 2, "b@1", 5), LostRange(3, 9, 2, "c@1", 5), LostRange(5, 6, 1, "d@1", 5)]
    )
    assert lost.count == 3
    assert LostEntries().with_ranges([LostRange(0, 1 << 62, 1, "b@1", 5)]).count == 1 << 62


def test_too_many_ranges_are_joined_and_nothing_is_left_out() -> None:
    entries = [entry * entry for entry in range(RANGES_MAX * 3)]
    listed = LostEntries().with_ranges(LostRange(entry, entry + 1, 1, "b@1", 5) for entry in entries)
    assert listed.is_coarse
    assert len(listed.ranges) <= RANGES_MAX
    held = iter(listed.ranges)
    current = next(held)
    for entry in entries:
        while entry >= current.stop:
            current = next(held)
        assert entry in current.entries
    assert LostEntries.decode(listed.encode()) == listed


@pytest.mark.parametrize(
    "ranges",
    ["x", [[1, 2, 1, "b@1"]], [[2, 1, 1, "b@1", 5]], [[1, 2, 0, "b@1", 5]], [[-1, 2, 1, "b@1", 5]], [[1, 2, 1, 3, 5]]],
)
def test_a_list_that_makes_no_sense_is_refused_and_not_replaced(store: MemoryStore, ranges: Any) -> None:
    value = json.dumps({"version": 1, "ranges": ranges, "is_coarse": False}).encode()
    store.create(lost_key(7), value)
    with pytest.raises(InvalidMetadataError, match="lost entries"):
        note_lost(store, 7, ranges_of([1], "b@1", 5))
    assert store.get(lost_key(7)) == Versioned(value, 0)
    assert list_lost(store)[7].is_coarse, "operators see that there is a list"


# ---- status ----------------------------------------------------------------------------------------------------


def test_the_status_survives_its_bytes(store: MemoryStore) -> None:
    status = AutoRecoveryStatus("host:1", 5, {"b@1": 3}, (Alarm("hold", "text"),), {7: "why"}, (8, 9), ((1, 3), (4, 2)))
    assert find_status(store) is None
    store.create(STATUS, status.encode())
    assert find_status(store) == status


@pytest.mark.parametrize(
    "change",
    [
        {"ledgers_left": {"b": -1}},
        {"alarms": [["a"]]},
        {"failed": {"x": ""}},
        {"at_us": ""},
        {"progress": [[1]]},
        {"progress": 5},
    ],
)
def test_a_status_that_makes_no_sense_is_refused(change: dict[str, Any]) -> None:
    value = json.loads(AutoRecoveryStatus("host:1", 5, {}, (), {}, ()).encode())
    with pytest.raises(InvalidMetadataError, match=STATUS):
        AutoRecoveryStatus.decode(json.dumps({**value, **change}).encode())


def test_the_curve_goes_on_and_stays_short() -> None:
    curve: tuple[tuple[int, int], ...] = ()
    for at_us in range(1, 1000):
        status = AutoRecoveryStatus("host:1", at_us, {"b@1": 1 + at_us // 2, "c@1": 1}, (), {}, ())
        curve = status.following(curve).progress
        assert len(curve) <= PROGRESS_MAX and curve[-1][1] == 2 + at_us // 2
    assert curve[0] == (1, 2) or curve[0][0] < 20, "of the whole time"
    assert status.following(curve).progress == curve, "nothing changed"
    done = AutoRecoveryStatus("host:2", 5, {}, (), {}, ())
    assert done.following(curve).progress[-1] == (curve[-1][0], 0), "another clock; times ascend"
    assert done.following(()).progress == (), "there was nothing to do"


def test_a_status_of_before_there_was_a_curve() -> None:
    value = json.loads(AutoRecoveryStatus("host:1", 5, {}, (), {}, ()).encode())
    del value["progress"]
    assert AutoRecoveryStatus.decode(json.dumps(value).encode()).progress == ()


def test_workers_are_listed_by_name(store: MemoryStore) -> None:
    worker = WorkerStatus(5, copied_bytes=7, bytes_left=9)
    store.create(worker_key("host:1"), worker.encode())
    assert list_workers(store) == {"host:1": worker}
    with pytest.raises(InvalidMetadataError, match="copied_bytes"):
        WorkerStatus.decode(worker.encode().replace(b'"copied_bytes":7', b'"copied_bytes":-7'))
