"""Bugs of RocketMQ's history that take whole nodes to show; the others are in the tests of what they broke.

By number, in tests/ha: #3015, #1155, #323 (tests/ha/rocketmq/test_slave_feed_machine.py::test_hole_1_an_absurd_ack,
tests/ha/test_master_machine.py::test_absurd_progress_closes_the_connection); #3388
(tests/ha/rocketmq/test_slave_feed_machine.py::test_hole_1_an_absurd_request); #5579, what has diverged
(tests/ha/rocketmq/test_slave_machine.py::test_a_mismatch_is_tried_once_more_and_not_for_ever,
tests/ha/test_node.py::test_a_deposed_master_acknowledges_nothing_and_is_cut); #1082, #1118
(tests/ha/rocketmq/test_tcp.py::test_heartbeats_keep_an_idle_pair); #2528
(tests/ha/test_node.py::test_a_master_goes_on_alone_and_comes_back); #5128
(tests/ha/test_master_machine.py::test_commit_point_is_the_kth_largest_mark_of_the_others); #7017, #6662
(tests/ha/test_node.py::test_a_deposed_master_acknowledges_nothing_and_is_cut); #6728
(tests/ha/test_master_machine.py::test_nothing_counts_before_the_first_report); #5663
(tests/ha/test_master_machine.py::test_both_quorums_acknowledge_while_members_change); PR 9942
(tests/ha/test_terms.py::test_histories_have_a_common_point_where_they_diverge); #10666
(tests/ha/test_mirror_log.py::test_a_cut_of_a_mirror_log_survives_reopening,
tests/ha/rocketmq/test_raw_log.py::test_truncated_bytes_of_a_raw_log_are_zeroed); #10017
(tests/ha/test_mirror_log.py::test_bytes_of_another_place_are_refused); #1893
(tests/ha/test_attacks.py::test_secrets_that_differ_are_named); #2706, #3129, #5235, #7016, #9713
(tests/ha/test_attacks.py::test_a_sync_that_fails_ends_the_stream_at_once,
tests/ha/rocketmq/test_tcp.py::test_a_slave_whose_syncs_fail); #467, #1434 (tests/ha/test_kill.py); #2398
(tests/ha/test_attacks.py::test_a_full_disk_at_the_master_appends_nothing_and_loses_nothing); #6904
(tests/ha/rocketmq/test_raw_log.py::test_a_torn_new_file_has_no_name); #2140
(tests/ha/rocketmq/test_raw_log.py::test_a_raw_log_with_a_missing_file_is_refused).
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from pyreplog.errors import PoisonedError, ReplicationTimeoutError
from pyreplog.ha.failover import Failover
from pyreplog.metadata import open_store
from tests.ha.nodes import Lab, assert_same_files, level, until, values
from tests.ha.test_attacks import faulty_master
from tests.ha.test_node import cut_power


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    with ExitStack() as stack:
        yield Lab(tmp_path, stack)


@pytest.mark.parametrize("durability", ["appended", "synced"])
def test_records_of_many_frames_are_acknowledged(lab: Lab, durability: str) -> None:
    """#1535, PR 153: a record of more than five frames timed out although it was replicated; #1244: so did a record
    among many others."""
    a = lab.master(transfer_bytes=4096, durability=durability)
    b = lab.replica("b", a, durability=durability)
    numbers: list[int] = []

    def work() -> None:
        numbers.extend(a.append(b"small") for _ in range(50))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    large = [a.append(b"." * 60_000) for _ in range(10)]
    tasks = [a.submit(b"." * 60_000) for _ in range(10)]
    for thread in threads:
        thread.join()
    assert sorted([*numbers, *large, *(task.result(60) for task in tasks)]) == list(range(220))
    level(a, b)
    assert_same_files(a, b)


@pytest.mark.parametrize("ack", ["received", "synced"])
def test_a_master_whose_sync_fails_acknowledges_nothing_more(lab: Lab, ack: str) -> None:
    """#2706, #3129, #5235, #7016, #9713: records counted as flushed though they were not on disk."""
    a, files = faulty_master(lab, "ab", 1, durability="synced", group={"ack": ack})
    b = lab.replica("b", a, durability="synced")
    assert a.append(b"one") == 0
    level(a, b)
    files.failing.add("sync")
    for _ in range(2):
        with pytest.raises(PoisonedError):
            a.append(b"not on the disk of its master")
    files.failing.clear()
    with pytest.raises(PoisonedError):
        a.submit(b"nor that")
    assert a.committed.entry == a.log.end == b.log.end == 1


def test_a_master_that_starts_again_uses_no_number_twice(lab: Lab) -> None:
    """#7689: the master went on after its last confirmed record, and reused the numbers of unconfirmed ones."""
    a = lab.master(ack_timeout_ms=50)
    with pytest.raises(ReplicationTimeoutError):
        a.append(b"not committed")
    lab.close(a)
    a = lab.master()
    b = lab.replica("b", a)
    assert a.append(b"of the next process") == 1
    level(a, b)
    assert values(a) == values(b) == [b"not committed", b"of the next process"]


def test_stray_files_keep_no_node_from_starting(lab: Lab) -> None:
    """#3257; a `RawLog` names them: test_a_folder_with_foreign_file_names_is_no_raw_log in tests/ha/rocketmq/test_raw_log.py."""
    a = lab.master(members="ab")
    b = lab.replica("b", a)
    a.append(b"one")
    level(a, b)
    for node in (a, b):
        lab.close(node)
        (lab.folder / node.name / "notes.txt").write_bytes(b"")
        (lab.folder / node.name / "lost+found").mkdir()
    a = lab.master(members="ab")
    b = lab.replica("b", a)
    assert a.append(b"two") == 1
    level(a, b)
    assert values(b) == [b"one", b"two"]


def test_a_master_that_is_elected_again_streams_on(lab: Lab) -> None:
    """#9689: in a new term of the same master, no replica could be sent any records."""
    a = lab.master(members="ab")
    b = lab.replica("b", a)
    a.append(b"one")
    level(a, b)
    lab.close(a)
    cut_power(lab.folder / "a")
    a = lab.master(members="ab")
    b.follow(a.address)
    assert a.append(b"two") == 1
    level(a, b)
    assert str(a.term) == str(b.term) == "2 of a"
    assert values(b) == [b"one", b"two"]
    assert_same_files(a, b)


def test_failover_stores_the_advertised_address_of_the_master(lab: Lab) -> None:
    """#1057: slaves were given an address that only the master itself can reach."""
    a = lab.master(sync_replicas=0, advertise="a.example:7001")
    with open_store("memory:") as store, Failover(a, store, "orders", lease_ms=60_000):
        until(lambda: store.get("/ha/orders/master"))
        stored = store.get("/ha/orders/master")
        assert stored is not None and json.loads(stored.value) == ["a", "a.example:7001"]
