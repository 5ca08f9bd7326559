"""A bookie whose free space cannot be told for a while."""

from __future__ import annotations

import errno

import pytest

from pyreplog.bookie.protocol import Flag, ReplyStatus, Request, RequestKind
from tests.bookie.asking import LEDGER, Node, add, into, wait_lac
from tests.bookie.test_fast_add import plain_of


def _unknown() -> int:
    raise OSError(errno.EIO, "it cannot be told")


@pytest.mark.parametrize("free", [1500, 999])
def test_last_known_free_space_counts_while_it_cannot_be_read(monkeypatch: pytest.MonkeyPatch, free: int) -> None:
    """And nothing else depends on it: not what was appended before the look, nor those whose time is up."""
    node = Node(
        staged=False, read_only_below_bytes=1000, writable_from_bytes=1000, reserve_bytes=0, space_check_bytes=1
    )
    assert node.ask(add(0, flags=Flag.UNSYNCED)).status == ReplyStatus.OK
    node.log.free = free
    node.bookie.expire(0)
    monkeypatch.setattr(node.bookie._space, "_free_bytes", _unknown)
    waiting = node.send(wait_lac(10, limit=1))
    node.bookie.expire(1 << 40)
    assert [reply.status for reply in waiting] == [ReplyStatus.OK]
    taken = free >= 1000
    plain = plain_of(add(1, flags=Flag.UNSYNCED))
    assert plain is not None
    lac = node.bookie.add_fast(plain, into([]))
    assert (lac is not None, node.bookie.read_only, node.bookie.free_bytes) == (taken, not taken, free)
    assert node.ask(add(2, flags=Flag.UNSYNCED)).status == (ReplyStatus.OK if taken else ReplyStatus.READ_ONLY)
    assert node.ask(Request(RequestKind.LAST, LEDGER)).last == (2 if taken else 0)
    assert node.bookie.failure is None
