"""What a bookie says it holds: exact, on disk, verified, and "unknown" is never "not here"."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyreplog._native.ledger_log.digest import holdings_digest
from pyreplog._native.ledger_log.entries import encode_entries
from pyreplog.bookie import holdings
from pyreplog.bookie.holdings import DIGEST_MODULUS, RANGES_MAX, Holdings
from pyreplog.bookie.protocol import Flag, Reply, ReplyStatus, Request, RequestKind
from pyreplog.errors import InvalidMessageError, InvalidRecordsError, WrongTypeError
from tests.bookie.asking import KEY, LEDGER, Node, add, last, read, records_of
from tests.bookie.memory_log import MemoryLog, split

MASK = DIGEST_MODULUS - 1


def ask_for(first: int, end: int, *, limit: int = 0, step: int = 1, run: int = 1, ledger: int = LEDGER) -> Request:
    return Request(RequestKind.HOLDINGS, ledger, first, end, limit=limit, step=step, run=run)


def mix(z: int) -> int:
    """As FORMAT.md writes it."""
    z = (z + 0x9E3779B97F4A7C15) & MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def digest_of(*entries: int, **settings: Any) -> int:
    crcs = {item.entry: int.from_bytes(item.raw[4:8], "little") for item in split(records_of(*entries, **settings))}
    return sum(mix((mix(entry) + crc) & MASK) for entry, crc in crcs.items()) & MASK


def holdings_of(node: Node, request: Request) -> tuple[Holdings, int]:
    reply = node.ask(request)
    assert reply.status == ReplyStatus.OK, bytes(reply.body)
    assert (reply.ledger, reply.first) == (request.ledger, request.first)
    return Holdings.decode(request, reply), reply.last


# ---- digests -----------------------------------------------------------------------------------------------------


def test_a_digest_is_that_of_the_format() -> None:
    assert holdings_digest(records_of(5)) == digest_of(5)
    assert mix(0) == 0xE220A8397B1DCDAF  # SplitMix64's first number of seed 0


@pytest.mark.parametrize("size", [1, 20_000])
def test_digests_add_up_in_any_order(size: int) -> None:
    """Above 256 KiB the GIL is released."""
    rng = random.Random(size)
    raws = [
        bytes(encode_entries([rng.randbytes(rng.randrange(99))], ledger=1, first=e, lac=-1, time=e).view)
        for e in range(size)
    ]
    whole = holdings_digest(b"".join(raws))
    rng.shuffle(raws)
    half = len(raws) // 2
    parts = [holdings_digest(b"".join(part)) for part in (raws[:half], raws[half:])]
    assert whole == holdings_digest(memoryview(b"".join(raws))) == sum(parts) % DIGEST_MODULUS
    assert 0 < whole < DIGEST_MODULUS and holdings_digest(b"") == 0


def test_digest_depends_on_entry_ledger_and_contents() -> None:
    seen = {holdings_digest(records_of(entry, mark=mark)) for entry in range(500) for mark in (b"", b"a", b"b")}
    assert len(seen) == 1500
    assert holdings_digest(records_of(1, ledger=2)) != holdings_digest(records_of(1, ledger=3))


def test_digest_does_not_depend_on_the_log_stamp() -> None:
    raw = bytearray(records_of(1))
    raw[8:12] = b"\1\2\3\4"  # the stamp, which a log writes
    assert holdings_digest(raw) == digest_of(1)


@pytest.mark.parametrize(
    "bad",
    [b"x", bytes(63), bytes(64), b"\xff" * 64, records_of(0) + b"x", records_of(0)[:-8], records_of(0) * 3 + b"1"],
)
def test_lengths_that_do_not_fit_have_no_digest(bad: bytes) -> None:
    with pytest.raises(InvalidRecordsError):
        holdings_digest(bad)
    with pytest.raises(WrongTypeError):
        holdings_digest("text")  # type: ignore[arg-type]


# ---- replies -----------------------------------------------------------------------------------------------------


@pytest.fixture(params=[True, False], ids=["synced", "appended"])
def node(request: pytest.FixtureRequest) -> Node:
    return Node(staged=request.param)


def test_holdings_name_stored_entries_with_their_digest(node: Node) -> None:
    node.ask(add(0, 1, 2, 5, 6))
    assert holdings_of(node, ask_for(0, 9)) == (Holdings(5, digest_of(0, 1, 2, 5, 6), (range(3), range(5, 7))), 9)
    assert holdings_of(node, ask_for(1, 5)) == (Holdings(3, digest_of(1, 2, 5), (range(1, 3), range(5, 6))), 5)
    assert holdings_of(node, ask_for(3, 4)) == (Holdings(), 4)
    assert holdings_of(node, ask_for(7, 900)) == (Holdings(), 900), "behind the last one"
    assert holdings_of(node, ask_for(0, 9, ledger=8)) == (Holdings(), 9), "of an unknown ledger"


def test_only_entries_that_are_asked_for_count(node: Node) -> None:
    node.ask(add(*range(20)))
    runs = (1, 2, 6, 7, 11, 12, 16, 17)
    assert holdings_of(node, ask_for(1, 19, step=5, run=2))[0] == Holdings(8, digest_of(*runs), (range(1, 18),))
    node.ask(add(*range(40, 60, 5), ledger=8))
    request = ask_for(40, 59, step=5, ledger=8)
    assert holdings_of(node, request)[0] == Holdings(4, digest_of(40, 45, 50, 55, ledger=8), (range(40, 56),))
    assert holdings_of(node, ask_for(41, 59, step=5, ledger=8))[0] == Holdings()


def test_holdings_are_told_without_the_key_of_the_ledger(node: Node) -> None:
    node.ask(add(0))
    assert not node.bookie.claims(ask_for(0, 0)._replace(key=b"w" * 16))
    assert holdings_of(node, ask_for(0, 0)._replace(key=b"w" * 16))[0].count == 1


def test_holdings_wait_for_the_sync_of_their_entries() -> None:
    """The reply waits for the sync; no crash takes away what it names."""
    for staged, flags in ((True, Flag.NONE), (False, Flag.NONE), (True, Flag.UNSYNCED), (False, Flag.UNSYNCED)):
        node = Node(staged=staged)
        node.send(add(0, 1, flags=flags))
        replies = node.send(ask_for(0, 9))
        for _ in range(3):
            assert replies == [] or node.log.synced == len(node.log.stored)
            node.bookie.commit()
        assert Holdings.decode(ask_for(0, 9), replies[0]).count == 2
        assert holdings_of(node.crash(), ask_for(0, 9))[0].count == 2


def test_holdings_sync_entries_that_were_added_unsynced() -> None:
    """A proof stands for copies on disk; a power cut after it would leave metadata that name who has nothing."""
    node = Node(staged=False)
    node.ask(add(0, 1, flags=Flag.UNSYNCED))
    assert node.log.synced < len(node.log.stored)
    assert holdings_of(node, ask_for(0, 9))[0].count == 2
    assert node.log.synced == len(node.log.stored)


def test_a_disk_that_fails_meanwhile_is_unknown() -> None:
    node = Node(staged=False)
    node.ask(add(0, flags=Flag.UNSYNCED))
    node.log.poisoned = True
    assert node.ask(ask_for(0, 9)).status == ReplyStatus.UNKNOWN


@pytest.mark.parametrize("count", [RANGES_MAX, RANGES_MAX + 1, 3 * RANGES_MAX])
def test_a_reply_of_holdings_has_a_bounded_number_of_ranges(count: int, node: Node) -> None:
    node.ask(add(*range(0, 2 * count, 2)))
    request = ask_for(0, 2 * count)
    ranges, end = holdings_of(node, request)
    assert len(ranges.ranges) == ranges.count == min(count, RANGES_MAX)
    assert end == (2 * count if count <= RANGES_MAX else 2 * RANGES_MAX - 1), "the next one is not spoken of"
    seen = [*ranges.entries(request)]
    while end < request.last:
        rest = ask_for(end + 1, request.last)
        ranges, end = holdings_of(node, rest)
        seen += [*ranges.entries(rest)]
    assert seen == list(range(0, 2 * count, 2))


def test_bytes_to_look_at_are_bounded(node: Node) -> None:
    node.ask(add(*range(10), mark=b"." * 100))
    records = len(records_of(0, mark=b"." * 100))
    assert holdings_of(node, ask_for(0, 9, limit=3 * records)) == (
        Holdings(3, digest_of(0, 1, 2, mark=b"." * 100), (range(3),)),
        2,
    )
    assert holdings_of(node, ask_for(0, 9, limit=1))[1] == 0, "at least one"


# ---- damage, limbo ---------------------------------------------------------------------------------------------


def flipped(log: MemoryLog, entry: int) -> None:
    """A bit of what was stored is another one."""
    for at, item in enumerate(log.stored):
        if (item.ledger, item.entry) == (LEDGER, entry):
            log.stored[at] = type(item)(item.ledger, item.entry, item.raw[:-1] + bytes((item.raw[-1] ^ 1,)))


def test_holdings_end_before_a_damaged_entry(node: Node) -> None:
    node.ask(add(0, 1, 2, 3, 6, 7, 8, 9))
    flipped(node.log, 7)
    assert holdings_of(node, ask_for(0, 9)) == (Holdings(5, digest_of(0, 1, 2, 3, 6), (range(4), range(6, 7))), 6)
    assert holdings_of(node, ask_for(4, 9)) == (Holdings(1, digest_of(6), (range(6, 7),)), 6)
    reply = node.ask(ask_for(7, 9))
    assert reply.status == ReplyStatus.UNKNOWN and bytes(reply.body) == b"entry 7 is damaged"
    assert holdings_of(node, ask_for(8, 9))[0].count == 2


def test_absence_before_the_first_damaged_entry_is_certain(node: Node) -> None:
    node.ask(add(5, 6))
    flipped(node.log, 5)
    assert holdings_of(node, ask_for(0, 9)) == (Holdings(), 4)


def test_damage_of_the_log_is_unknown(node: Node) -> None:
    node.ask(add(0, 1, 2, 3))
    node.log.damaged = {(LEDGER, 2)}
    ranges, end = holdings_of(node, ask_for(0, 3))
    assert ranges.count == end + 1 <= 2
    assert node.ask(ask_for(2, 3)).status == ReplyStatus.UNKNOWN


def test_missing_entries_of_a_ledger_in_limbo_are_not_denied(node: Node) -> None:
    """What is here is here. What is not may have been lost."""
    node.ask(add(0, 1, 3))
    node = node.crash(limbo=(LEDGER, 8))
    assert holdings_of(node, ask_for(0, 9)) == (Holdings(2, digest_of(0, 1), (range(2),)), 1)
    for request in (ask_for(2, 9), ask_for(4, 9), ask_for(0, 9, ledger=8)):
        assert node.ask(request).status == ReplyStatus.LIMBO


def test_a_deleted_ledger_is_refused(node: Node) -> None:
    node.ask(add(0))
    node.bookie.forget(LEDGER)
    assert node.ask(ask_for(0, 9)).status == ReplyStatus.REFUSED
    assert node.ask(ask_for(5, 4)).status == ReplyStatus.REFUSED


@pytest.mark.parametrize("seed", range(60))
def test_holdings_equal_the_entries_that_reads_return(seed: int) -> None:
    """Any entries, damage and steps, in any number of requests: held exactly if a READ gives an intact record."""
    rng = random.Random(seed)
    node = Node(staged=rng.random() < 0.5, limbo=(LEDGER,) if rng.random() < 0.2 else ())
    here = sorted(rng.sample(range(60), rng.randrange(1, 50)))
    node.ask(add(*here, flags=Flag.RECOVERY))
    bad = set(rng.sample(here, rng.choice([0, 0, 1, 2]) if len(here) > 2 else 0))
    for entry in bad:
        flipped(node.log, entry)
    run = rng.randint(1, 3)
    step, at = rng.randint(run, 7), rng.randrange(5)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(holdings, "RANGES_MAX", rng.choice([1, 2, 256]))
        while at < 70:
            request = ask_for(at, 69, step=step, run=run, limit=rng.choice([0, 1, 500]))
            reply = node.ask(request)
            asked = {e for e in range(at, (reply.last if reply.status == 0 else at) + 1) if (e - at) % step < run}
            if reply.status != ReplyStatus.OK:
                in_limbo = node.bookie.limbo.ledgers == [LEDGER]
                assert reply.status == (ReplyStatus.LIMBO if in_limbo else ReplyStatus.UNKNOWN)
                assert at in bad or (in_limbo and at not in here)
            else:
                actual_holdings = Holdings.decode(request, reply)
                assert {*actual_holdings.entries(request).tolist()} == asked & {*here} and not asked & bad
                assert (
                    actual_holdings.digest == digest_of(*sorted(asked & {*here}))
                    if asked & {*here}
                    else actual_holdings.digest == 0
                )
            at = (reply.last if reply.status == ReplyStatus.OK else at) + 1


# ---- bytes -------------------------------------------------------------------------------------------------------


def ok(body: bytes, end: int = 99, first: int = 0, **fields: Any) -> Reply:
    return Reply(ReplyStatus.OK, LEDGER, first, end, body=body)._replace(**fields)


def raw(count: int, digest: int, *ranges: tuple[int, int], number: int | None = None) -> bytes:
    number = len(ranges) if number is None else number
    return struct.pack(">QQI", count, digest, number) + b"".join(struct.pack(">qq", *pair) for pair in ranges)


def test_holdings_have_golden_bytes_and_are_decoded() -> None:
    holdings = Holdings(5, 0xFEDCBA9876543210, (range(1, 4), range(8, 10)))
    assert holdings.encode().hex() == "0000000000000005fedcba987654321000000002" + "".join(
        f"{bound:016x}" for bound in (1, 4, 8, 10)
    )
    assert Holdings.decode(ask_for(0, 99), ok(holdings.encode())) == holdings
    assert Holdings.decode(ask_for(0, 99), ok(memoryview(holdings.encode()), 9)) == holdings  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "reply",
    [
        ok(b""),
        ok(raw(0, 0)[:-1]),
        ok(raw(0, 0) + b"x"),
        ok(raw(1, 0, (3, 4), number=2)),
        ok(raw(1, 0, (3, 4), number=0)),
        ok(raw(1, 0, number=0xFFFFFFFF)),
        ok(raw(257, 0, *((n, n + 1) for n in range(0, 514, 2))), 900),
        ok(raw(2, 0, (3, 4))),
        ok(raw(0, 0, (3, 4))),
        ok(raw(1, 0)),
        ok(raw(0, 0, (3, 3))),
        ok(raw(0, 0, (4, 3))),
        ok(raw(4, 0, (0, 2), (1, 3))),
        ok(raw(4, 0, (0, 2), (2, 4))),
        ok(raw(2, 0, (5, 6), (3, 4))),
        ok(raw(2, 0, (-1, 1))),
        ok(raw(101, 0, (0, 101))),
        ok(raw(6, 0, (5, 11)), 9),
        ok(raw(1, 0, (3, 4)), 100),
        ok(raw(0, 0), -1),
        ok(raw(1, 0, (3, 4)), first=1),
        ok(raw(1, 0, (3, 4)), ledger=8),
        ok(raw(1, 0, (3, 4)), status=ReplyStatus.LIMBO),
    ],
)
def test_bytes_that_are_no_holdings(reply: Reply) -> None:
    with pytest.raises(InvalidMessageError, match="holdings"):
        Holdings.decode(ask_for(0, 99), reply)


@pytest.mark.parametrize("pair", [(11, 16), (10, 17), (10, 13), (15, 16), (9, 16)])
def test_ranges_begin_and_end_at_entries_that_were_asked_for(pair: tuple[int, int]) -> None:
    request = ask_for(0, 99, step=5)
    assert Holdings.decode(request, ok(raw(2, 0, (10, 16)))).entries(request).tolist() == [10, 15]
    if pair != (15, 16):
        with pytest.raises(InvalidMessageError):
            Holdings.decode(request, ok(raw(2, 0, pair)))
    with pytest.raises(InvalidMessageError):
        Holdings.decode(request, ok(raw(2, 0, (10, 11), (15, 16))))  # they are one


@given(
    first=st.integers(0, 1000), step=st.integers(1, 255), data=st.data(), here=st.sets(st.integers(0, 300), max_size=60)
)
def test_ranges_and_entries_of_holdings_agree(first: int, step: int, data: st.DataObject, here: set[int]) -> None:
    run = data.draw(st.integers(1, step))
    request = ask_for(first, first + 100_000, step=step, run=run)
    asked = request.asked(301).tolist()
    held = [asked[rank] for rank in sorted(here)]
    ranges = ranges_of(sorted(here), asked)
    new_holdings = Holdings(len(held), 7, ranges)
    holdings = (
        Holdings.decode(request, ok(new_holdings.encode(), first + 100_000, first))
        if len(ranges) <= RANGES_MAX
        else new_holdings
    )
    assert holdings.entries(request).tolist() == held


def ranges_of(ranks: Iterable[int], asked: list[int]) -> tuple[range, ...]:
    ranges: list[range] = []
    before = -2
    for rank in ranks:
        if rank == before + 1:
            ranges[-1] = range(ranges[-1].start, asked[rank] + 1)
        else:
            ranges.append(range(asked[rank], asked[rank] + 1))
        before = rank
    return tuple(ranges)


def test_reads_and_others_go_on_as_before(node: Node) -> None:
    node.ask(add(0, 1))
    holdings_of(node, ask_for(0, 1))
    assert node.bookie.counts.requests[RequestKind.HOLDINGS] == 1 and node.bookie.counts.read_bytes == 0
    assert node.ask(read(0, 1)).status == node.ask(last(fence=True, key=KEY)).status == ReplyStatus.OK
