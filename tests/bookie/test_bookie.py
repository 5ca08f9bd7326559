"""The bookie's rules, over a log in memory that loses what was not synced. Numbers: scenarios of BookKeeper's tests."""

from __future__ import annotations

import json

import pytest

from pyreplog.bookie.protocol import ID_MAX, READ_BYTES_MAX, WAIT_MS_MAX, Flag, Reply, ReplyStatus, Request, RequestKind
from tests.bookie.asking import KEY, LEDGER, OTHER_KEY, Node, add, entries_in, last, read, records_of, set_lac, wait_lac
from tests.bookie.memory_log import MemoryLog

# ---- adds ------------------------------------------------------------------------------------------------------


def test_adds_are_acknowledged_after_the_sync_that_serves_them_all() -> None:
    node = Node()
    replies = [node.send(add(0, 1)), node.send(add(2)), node.send(add(0, ledger=8))]
    assert replies == [[], [], []] and node.log.syncs == 0
    node.bookie.commit()
    assert [reply.status for (reply,) in replies] == [ReplyStatus.OK] * 3 and node.log.syncs == 1
    assert (replies[0][0].first, replies[0][0].last) == (0, 1)
    node.bookie.commit()
    assert node.log.syncs == 1, "nothing waits"


def test_unsynced_adds_are_acknowledged_at_once_where_they_survive_the_process() -> None:
    """27, DeferredSyncTest: here they count at once, and what a power cut takes of them is in limbo, never denied."""
    mapped, staged = Node(staged=False), Node(staged=True)
    assert [reply.status for reply in mapped.send(add(0, flags=Flag.UNSYNCED))] == [ReplyStatus.OK]
    assert entries_in(mapped.ask(read(0, 9))) == [0] and mapped.log.syncs == 0
    assert staged.send(add(0, flags=Flag.UNSYNCED)) == []
    staged.bookie.commit()
    assert entries_in(staged.ask(read(0, 9))) == [0]


@pytest.mark.parametrize("staged", [True, False])
def test_acknowledged_entries_survive_a_crash(staged: bool) -> None:
    node = Node(staged=staged)
    node.ask(add(0, 1))
    node.send(add(2, 3))
    assert entries_in(node.crash().ask(read(0, 9))) == [0, 1]
    assert entries_in(node.crash(kept=1).ask(read(0, 9))) == [0, 1, 2]


def test_bad_records_are_refused_and_nothing_is_stored() -> None:
    node = Node()
    good = records_of(0, 1)
    damaged = bytearray(good)
    damaged[-1] ^= 1
    for records in (
        b"",
        b"x",
        bytes(64),
        b"\xff" * 64,
        good[:-8],
        good + b"x",
        bytes(damaged),
        records_of(0, ledger=8),
        records_of(0, 2),
    ):
        reply = node.ask(Request(RequestKind.ADD, LEDGER, 0, 1, KEY, records=records))
        assert (reply.status, node.log.stored) == (ReplyStatus.INVALID, []), records
    control = Node()
    control.ask(last(fence=True))
    fence = b"".join(item.raw for item in control.log.stored)
    assert node.ask(Request(RequestKind.ADD, LEDGER, 0, 1, KEY, records=fence)).status == ReplyStatus.INVALID
    assert node.ask(last()) == Reply(ReplyStatus.OK, LEDGER), "never seen"


def test_the_same_entries_again_are_stored_once_and_others_under_their_ids_refused() -> None:
    node = Node()
    node.ask(add(0, 1, 2))
    size = len(node.log.stored)
    assert node.ask(add(1, 2)).status == ReplyStatus.OK and len(node.log.stored) == size
    assert node.ask(add(2, 3)).status == ReplyStatus.OK and entries_in(node.ask(read(0, 9))) == [0, 1, 2, 3]
    second_writer = node.ask(add(3, mark=b"!"))
    assert second_writer.status == ReplyStatus.REFUSED and b"entry 3" in bytes(second_writer.body)
    assert entries_in(node.ask(read(0, 9))) == [0, 1, 2, 3]


@pytest.mark.parametrize("staged", [True, False])
def test_other_entries_are_refused_also_before_the_first_are_durable(staged: bool) -> None:
    """A staged log cannot read what it is about to sync: the second comer waits for that, and is looked at again."""
    node = Node(staged=staged)
    first, other, same, more = (
        node.send(add(0, 1)), node.send(add(1, mark=b"!")), node.send(add(0, 1)), node.send(add(1, 2)),
    )  # fmt: skip
    while node.bookie.waits:
        node.bookie.commit()
    assert [reply.status for (reply,) in (first, other, same, more)] == [
        ReplyStatus.OK, ReplyStatus.REFUSED, ReplyStatus.OK, ReplyStatus.OK,
    ]  # fmt: skip
    assert entries_in(node.ask(read(0, 9))) == [0, 1, 2]
    assert [item.entry for item in node.log.stored if item.ledger == LEDGER] == [0, 1, 1, 2]
    assert entries_in(node.crash().ask(read(0, 9))) == [0, 1, 2]


def test_adds_that_wait_for_a_commit_are_refused_when_the_ledger_is_fenced_or_deleted() -> None:
    node = Node()
    fenced = node.send(add(0)), node.send(add(0)), node.send(last(fence=True))
    gone = node.send(add(0, ledger=8)), node.send(add(0, ledger=8))
    node.bookie.forget(8)
    while node.bookie.waits:
        node.bookie.commit()
    assert [reply.status for (reply,) in (*fenced, *gone)] == [
        ReplyStatus.OK, ReplyStatus.FENCED, ReplyStatus.OK, ReplyStatus.OK, ReplyStatus.REFUSED,
    ]  # fmt: skip


@pytest.mark.parametrize("lac", [ID_MAX + 1, (1 << 63) - 1])
def test_a_lac_beyond_all_bounds_is_refused(lac: int) -> None:
    node = Node()
    assert node.ask(set_lac(lac)).status == ReplyStatus.REFUSED and node.ask(last()).lac == -1
    assert node.ask(set_lac(ID_MAX)).lac == ID_MAX


def test_a_damaged_copy_is_replaced_by_a_new_one() -> None:
    node = Node()
    node.ask(add(0, 1))
    node.log.damaged = {(LEDGER, 1)}
    size = len(node.log.stored)
    assert node.ask(add(1, flags=Flag.RECOVERY)).status == ReplyStatus.OK and len(node.log.stored) == size + 1


# ---- keys (34) -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("first", [add(0), last(fence=True), set_lac(3), read(0, 0, flags=Flag.FENCE)])
def test_the_first_key_counts_for_ever(first: Request) -> None:
    node = Node()
    node.ask(first)
    node.ask(add(1, flags=Flag.RECOVERY))
    for bookie in (node, node.crash()):
        for request in (
            add(2),
            add(2, flags=Flag.RECOVERY),
            last(fence=True),
            read(0, 0, flags=Flag.FENCE),
            set_lac(1),
        ):
            wrong = bookie.ask(request._replace(key=OTHER_KEY))
            assert wrong.status == ReplyStatus.UNAUTHORIZED, request
        assert bookie.ask(last()._replace(key=OTHER_KEY)).status == ReplyStatus.OK, "reading needs no key"
        assert bookie.ask(add(2, flags=Flag.RECOVERY)).status == ReplyStatus.OK


def test_a_wrong_key_fences_nothing() -> None:
    node = Node()
    node.ask(add(0))
    node.ask(last(fence=True, key=OTHER_KEY))
    assert node.ask(add(1)).status == ReplyStatus.OK


def test_entries_without_a_key_are_a_ledger_whose_key_is_lost() -> None:
    log = MemoryLog()
    log.append(records_of(0))
    log.sync()
    node = Node(log)
    assert node.ask(add(1)).status == ReplyStatus.UNKNOWN
    assert node.ask(last(fence=True)).status == ReplyStatus.UNKNOWN
    assert entries_in(node.ask(read(0, 0))) == [0]


# ---- fences (31-34) --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fence", [last(fence=True), read(0, 9, flags=Flag.FENCE)])
@pytest.mark.parametrize("known", [True, False])
def test_a_fence_is_durable_before_any_reply(fence: Request, known: bool) -> None:
    """33. Positive or negative, and also of a ledger never seen (BookKeeper answers negatives before the fence is)."""
    node = Node(staged=False)
    if known:
        node.send(add(0, flags=Flag.UNSYNCED))
    replies = node.send(fence)
    assert replies == []
    assert node.ask(add(1)).status == ReplyStatus.FENCED, "at once"
    assert len(replies) == 1 and replies[0].status == ReplyStatus.OK, "the commit answered"
    again = node.crash()
    assert again.ask(add(1)).status == ReplyStatus.FENCED
    assert entries_in(again.ask(read(0, 9))) == ([0] if known else [])
    assert again.ask(add(1, flags=Flag.RECOVERY)).status == ReplyStatus.OK
    assert len(again.send(fence)) == 1, "it is durable already"


def test_a_fence_that_was_not_answered_may_be_lost() -> None:
    """What makes the test before this one able to fail."""
    node = Node()
    node.ask(add(0))
    node.send(last(fence=True))
    assert node.crash().ask(add(1)).status == ReplyStatus.OK


@pytest.mark.parametrize("staged", [True, False])
def test_a_read_that_fences_sees_what_was_appended_before_it(staged: bool) -> None:
    node = Node(staged=staged)
    first, second = node.send(add(0, 1)), node.send(add(2, flags=Flag.UNSYNCED))
    fence = node.send(read(0, 9, flags=Flag.FENCE))
    highest = node.send(last(fence=True))
    refused = node.send(add(3))
    node.bookie.commit()
    assert entries_in(fence[0]) == [0, 1, 2] and highest[0].last == 2
    assert (first[0].status, second[0].status, refused[0].status) == (
        ReplyStatus.OK,
        ReplyStatus.OK,
        ReplyStatus.FENCED,
    )


def test_second_fence_waits_for_the_first_to_be_durable() -> None:
    node = Node()
    first, second, plain = node.send(last(fence=True)), node.send(last(fence=True)), node.send(read(0, 5))
    assert (first, second, plain) == ([], [], [])
    node.bookie.commit()
    assert len(first) == len(second) == len(plain) == 1 and node.log.syncs == 1


def test_an_add_under_way_when_the_fence_comes_is_answered_and_seen() -> None:
    """31: whoever fences agrees with the writer on what was acknowledged."""
    node = Node()
    pending = node.send(add(0))
    group = node.bookie.begin_commit()
    fence = node.send(last(fence=True))
    node.bookie.end_commit(group, node.bookie.sync())
    assert pending[0].status == ReplyStatus.OK and fence == []
    node.bookie.commit()
    assert fence[0].last == 0


def test_a_fence_that_cannot_be_stored_is_unknown_and_does_not_count() -> None:
    node = Node()
    node.ask(add(0))
    node.log.full = True
    assert node.ask(last(fence=True)).status == ReplyStatus.UNKNOWN
    node.log.full = False
    node.bookie.expire(0)
    assert node.ask(add(1)).status == ReplyStatus.OK


# ---- reads -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("staged", [True, False])
def test_nothing_is_given_out_before_it_is_durable(staged: bool) -> None:
    node = Node(staged=staged)
    node.ask(add(0, 1, 2))
    node.send(add(3, 4))
    before, across, behind, highest = (
        node.send(read(0, 2)),
        node.send(read(2, 9)),
        node.send(read(3, 9)),
        node.send(last()),
    )
    assert entries_in(before[0]) == [0, 1, 2]
    assert entries_in(across[0]) == [2] and across[0].last == 2, "what is durable, at once"
    assert (behind, highest) == ([], [])
    node.bookie.commit()
    assert entries_in(behind[0]) == [3, 4] and highest[0].last == 4


def test_a_read_may_wait_again_for_what_came_during_the_sync() -> None:
    node = Node(staged=False)
    node.send(add(3))
    waiting = node.send(read(3, 9))
    group = node.bookie.begin_commit()
    node.send(add(4))
    node.bookie.end_commit(group, node.bookie.sync())
    assert entries_in(waiting[0]) == [3] and waiting[0].last == 3, "not entry 4, which is not durable"


def test_reads_by_step_and_by_size() -> None:
    node = Node()
    node.ask(add(*range(10)))
    assert entries_in(node.ask(read(1, 9, step=4))) == [1, 5, 9]
    records = len(records_of(0))
    some = node.ask(read(0, 9, limit=3 * records))
    assert entries_in(some) == [0, 1, 2] and some.last == 2
    assert entries_in(node.ask(read(0, 9, limit=1))) == [0], "at least one"
    assert node.ask(read(0, 9, limit=READ_BYTES_MAX * 2)).last == 9
    assert node.ask(read(5, 4)).status == ReplyStatus.REFUSED


def test_damage_is_never_a_negative() -> None:
    """#2908: the index says that it is here, the record cannot be read."""
    node = Node()
    node.ask(add(*range(8)))
    node.log.damaged = {(LEDGER, 5)}
    assert node.ask(read(5, 5)).status == node.ask(read(5, 9)).status == ReplyStatus.UNKNOWN
    before = node.ask(read(0, 9))
    assert entries_in(before) == list(range(before.last + 1)) and before.last < 5
    assert entries_in(node.ask(read(6, 9))) == [6, 7] and node.ask(last()).last == 7
    assert node.crash().ask(last()).status == ReplyStatus.OK
    node.log.damaged = {(LEDGER, 7)}
    again = Node(node.log)
    assert again.ask(last()) == Reply(ReplyStatus.OK, LEDGER, 0, 7, -1), "the LAC is not known, the entry is"


# ---- LACs (35) -------------------------------------------------------------------------------------------------


def test_the_lac_is_the_highest_there_is_and_survives() -> None:
    node = Node()
    assert node.ask(add(0, 1, lac=-1)).lac == -1
    assert node.ask(add(2, lac=1)).lac == 1
    assert node.ask(set_lac(2)).lac == 2
    assert node.ask(set_lac(0)).lac == 2, "never back"
    assert node.ask(read(0, 0)).lac == 2
    assert node.ask(add(3, lac=1, flags=Flag.RECOVERY)).lac == 2
    assert node.crash().ask(last()) == Reply(ReplyStatus.OK, LEDGER, 0, 3, 2)


def test_explicit_lacs_are_one_record_per_commit_and_cost_no_sync() -> None:
    node = Node()
    node.ask(add(0))
    stored, syncs = len(node.log.stored), node.log.syncs
    for lac in range(1, 100):
        assert [reply.lac for reply in node.send(set_lac(lac))] == [lac]
    node.bookie.commit()
    assert (len(node.log.stored), node.log.syncs) == (stored + 1, syncs)
    assert node.crash().ask(last()).lac == -1
    node.ask(add(1, lac=0))
    assert node.crash().ask(last()).lac == 99


def test_long_polls_end_when_the_lac_moves_when_time_is_up_and_when_the_ledger_is_fenced() -> None:
    node = Node()
    node.ask(add(0, 1, lac=-1))
    assert [reply.lac for reply in node.send(wait_lac(-2))] == [-1]
    node.bookie.expire(1_000_000)
    moved, late, never = node.send(wait_lac(-1)), node.send(wait_lac(5, limit=50)), node.send(wait_lac(5, limit=90))
    unseen = node.send(wait_lac(-1, ledger=99))
    node.ask(add(2, lac=1))
    assert [(reply.status, reply.lac) for reply in moved] == [(ReplyStatus.OK, 1)]
    assert node.bookie.next_deadline_us() == 1_050_000
    node.bookie.expire(1_049_999)
    assert late == []
    node.bookie.expire(1_050_000)
    assert [(reply.status, reply.lac) for reply in late] == [(ReplyStatus.OK, 1)] and never == []
    node.send(last(fence=True))
    assert len(never) == 1 and unseen == []
    node.ask(add(1, ledger=99))
    assert len(unseen) == 1 and node.bookie.next_deadline_us() is None


def test_long_poll_ends_at_the_maximum_wait() -> None:
    node = Node()
    ended = node.send(wait_lac(5, limit=(1 << 32) - 1))
    node.bookie.expire(WAIT_MS_MAX * 1000)
    assert len(ended) == 1


def test_too_many_long_polls_are_refused() -> None:
    node = Node(long_polls_max=2)
    first = node.send(wait_lac(5, limit=1))
    node.send(wait_lac(5))
    assert node.ask(wait_lac(5)).status == ReplyStatus.OVERLOADED
    node.bookie.expire(1000)
    assert len(first) == 1 and node.send(wait_lac(5)) == []


# ---- limbo (46, 49) --------------------------------------------------------------------------------------------


def test_limbo_bookie_denies_no_entry_until_the_ledger_leaves_limbo() -> None:
    before = Node()
    before.ask(add(0, 1, 4))
    node = before.crash(limbo=(LEDGER, 99)).crash()
    assert entries_in(node.ask(read(0, 9))) == [0, 1] and node.ask(read(0, 9)).last == 1
    assert entries_in(node.ask(read(0, 4, step=4))) == [0, 4]
    for request in (
        read(2, 9),
        last(),
        read(2, 2, flags=Flag.FENCE),
        last(fence=True),
        read(0, 0, ledger=99),
        last(ledger=99),
    ):
        assert node.ask(request).status == ReplyStatus.LIMBO, request
    assert entries_in(node.ask(read(0, 0, ledger=5))) == [], "others are not concerned"
    assert node.crash().ask(add(2)).status == ReplyStatus.FENCED, "it was fenced all the same"
    assert node.ask(add(2, 3, flags=Flag.RECOVERY)).status == ReplyStatus.OK
    node.bookie.limbo.leave(LEDGER)
    assert node.ask(last()).last == 4 and entries_in(node.ask(read(5, 9))) == []


def test_in_limbo_the_fence_may_be_lost_too() -> None:
    node = Node(limbo=(LEDGER,))
    assert node.ask(add(0)).status == node.ask(set_lac(0)).status == ReplyStatus.UNKNOWN


def test_limbo_ledger_takes_the_key_of_its_recoverer() -> None:
    node = Node(limbo=(LEDGER,))
    assert node.ask(last(fence=True)).status == ReplyStatus.LIMBO
    assert node.ask(add(0, flags=Flag.RECOVERY)).status == ReplyStatus.OK
    for bookie in (node, node.crash()):
        assert bookie.ask(add(1, flags=Flag.RECOVERY, key=OTHER_KEY)).status == ReplyStatus.UNAUTHORIZED
        assert bookie.ask(add(1)).status == ReplyStatus.FENCED
        assert bookie.ask(last()).status == ReplyStatus.LIMBO, "limbo survives a crash"


# ---- disks (45, 50) --------------------------------------------------------------------------------------------


def test_after_a_failed_sync_everything_is_unknown() -> None:
    node = Node()
    node.ask(add(0))
    waiting = [node.send(add(1)), node.send(last(fence=True)), node.send(read(1, 1))]
    poll = node.send(wait_lac(9))
    node.log.poisoned = True
    node.bookie.commit()
    assert [reply.status for (reply,) in waiting] == [ReplyStatus.UNKNOWN] * 3
    for request in (add(2), read(0, 0), last(), set_lac(5), wait_lac(-2), Request(RequestKind.STATUS)):
        assert node.ask(request).status == ReplyStatus.UNKNOWN, request
    assert node.bookie.failure is not None and poll == []
    node.bookie.stop("closed")
    assert [reply.status for reply in poll] == [ReplyStatus.UNKNOWN]


def test_an_append_to_a_failed_log_is_unknown() -> None:
    node = Node()
    node.log.poisoned = True
    assert node.ask(add(0)).status == ReplyStatus.UNKNOWN


def test_read_only_below_one_threshold_until_above_another() -> None:
    """50. Recovery may write while the reserve lasts; reads and fences go on; no flapping (#3285)."""
    node = Node(read_only_below_bytes=1000, writable_from_bytes=2000, reserve_bytes=100, space_check_bytes=1)
    assert node.ask(add(0)).status == ReplyStatus.OK

    def at(free: int) -> tuple[int, int]:
        node.log.free = free
        node.bookie.expire(0)
        return node.ask(add(1)).status, node.ask(add(0, ledger=8, flags=Flag.RECOVERY)).status

    assert at(999) == (ReplyStatus.READ_ONLY, ReplyStatus.OK) and node.bookie.read_only
    assert at(1999) == (ReplyStatus.READ_ONLY, ReplyStatus.OK)
    assert at(99) == (ReplyStatus.READ_ONLY, ReplyStatus.READ_ONLY)
    assert entries_in(node.ask(read(0, 0))) == [0] and node.ask(last(fence=True, ledger=9)).status == ReplyStatus.OK
    status = json.loads(bytes(node.ask(Request(RequestKind.STATUS)).body))
    assert (status["read_only"], status["free_bytes"]) == (True, 99)
    assert at(2000) == (ReplyStatus.OK, ReplyStatus.OK)
    assert at(1000) == (ReplyStatus.OK, ReplyStatus.OK)


def test_free_space_is_looked_at_while_entries_come() -> None:
    node = Node(space_check_bytes=500)
    node.ask(add(0))
    node.log.free = 0
    assert [node.ask(add(entry)).status for entry in range(1, 10)].count(ReplyStatus.READ_ONLY) >= 1


def test_a_full_disk_makes_the_bookie_read_only() -> None:
    node = Node()
    node.log.full = True
    assert node.ask(add(0)).status == ReplyStatus.READ_ONLY and node.bookie.read_only
    assert node.ask(add(0, flags=Flag.RECOVERY)).status == ReplyStatus.UNKNOWN
    node.log.full = False
    node.bookie.expire(0)
    assert node.ask(add(0)).status == ReplyStatus.OK


# ---- deleted ledgers -------------------------------------------------------------------------------------------


def test_a_deleted_ledger_does_not_come_back() -> None:
    """34, #4462: its fence is gone with it, and still its old writer gets nothing acknowledged."""
    node = Node()
    node.ask(last(fence=True))
    poll = node.send(wait_lac(4))
    node.bookie.forget(LEDGER)
    assert [reply.status for reply in poll] == [ReplyStatus.REFUSED]
    for request in (add(0), last(), last(fence=True), read(0, 0)):
        assert node.ask(request).status == ReplyStatus.REFUSED
    assert node.ask(Request(RequestKind.STATUS, LEDGER)).status == ReplyStatus.OK
