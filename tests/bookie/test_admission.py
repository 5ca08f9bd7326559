"""Which requests are allowed: by the state of the ledger, by its key, and by what the metadata say of a key."""

from __future__ import annotations

from itertools import product

import pytest

from pyreplog.bookie.admission import (
    PROOFS_MAX,
    Refusal,
    VerifiedProofs,
    check_add,
    check_claim,
    check_key,
    check_writer,
    has_key,
)
from pyreplog.bookie.controls import Controls
from pyreplog.bookie.key_verifier import KeyVerdict
from pyreplog.bookie.ledger_state import LedgerState
from pyreplog.bookie.protocol import Flag, ReplyStatus, Request, RequestKind
from tests.bookie.asking import KEY, LEDGER, OTHER_KEY

BOOLS = (False, True)


def state_of(
    key: bytes | None = KEY, *, fenced: bool = False, limbo: bool = False, copied: bool = False
) -> LedgerState:
    return LedgerState(LEDGER, Controls(key, fenced, -1, limbo, copied), -1, -1)


def adds(flags: int = 0, key: bytes = KEY) -> Request:
    return Request(RequestKind.ADD, LEDGER, 0, 0, key, flags)


def status_of(refusal: Refusal | None) -> ReplyStatus | None:
    if refusal is None:
        return None
    status, reason = refusal
    assert reason
    return status


def test_every_request_for_an_unknown_ledger_is_allowed() -> None:
    assert check_key(adds(), None) is check_writer(adds(), None) is check_add(adds(), None) is None
    assert not has_key(adds(), None)


@pytest.mark.parametrize(("key", "limbo", "copied"), [*product((KEY, OTHER_KEY, None), BOOLS, BOOLS)])
def test_the_key_that_was_noted_counts_and_one_that_was_lost_is_unknown(
    key: bytes | None, limbo: bool, copied: bool
) -> None:
    """Unless it may have been lost in a crash, or the ledger here began with copies, which bring none."""
    state = state_of(key, limbo=limbo, copied=copied)
    expected = {KEY: None, OTHER_KEY: ReplyStatus.UNAUTHORIZED}.get(
        key or b"", None if limbo or copied else ReplyStatus.UNKNOWN
    )
    assert status_of(check_key(adds(), state)) == expected
    assert has_key(adds(), state) is (key == KEY)


@pytest.mark.parametrize(("fenced", "limbo", "flags"), [*product(BOOLS, BOOLS, (0, Flag.RECOVERY, Flag.UNSYNCED))])
def test_a_fence_and_limbo_keep_out_all_but_the_recovery(fenced: bool, limbo: bool, flags: int) -> None:
    state = state_of(fenced=fenced, limbo=limbo)
    expected = None
    if flags != Flag.RECOVERY:
        expected = ReplyStatus.FENCED if fenced else ReplyStatus.UNKNOWN if limbo else None
    assert status_of(check_writer(adds(flags), state)) == expected
    assert status_of(check_add(adds(flags), state)) == expected
    assert status_of(check_writer(adds(flags, OTHER_KEY), state)) == ReplyStatus.UNAUTHORIZED


def test_copies_bring_the_flag_alone_and_pass_a_fence() -> None:
    state = state_of(fenced=True, limbo=True)
    assert check_add(adds(Flag.COPY, OTHER_KEY), state) is None
    for flag in (Flag.RECOVERY, Flag.FENCE, Flag.UNSYNCED):
        assert status_of(check_add(adds(Flag.COPY | flag), None)) == ReplyStatus.REFUSED


@pytest.mark.parametrize(
    ("verdict", "expected"),
    [
        (KeyVerdict.RIGHT, None),
        (KeyVerdict.WRONG, ReplyStatus.UNAUTHORIZED),
        (KeyVerdict.NO_LEDGER, ReplyStatus.UNAUTHORIZED),
        (KeyVerdict.UNKNOWN, ReplyStatus.UNKNOWN),
        (KeyVerdict.SURPLUS, ReplyStatus.UNKNOWN),
    ],
)
def test_copies_wait_for_the_metadata(verdict: KeyVerdict, expected: ReplyStatus | None) -> None:
    for state, deleted in product((None, state_of()), BOOLS):
        assert status_of(check_claim(adds(Flag.COPY), state, verdict, deleted=deleted)) == expected


@pytest.mark.parametrize(
    ("verdict", "is_noted", "expected"),
    [
        (KeyVerdict.RIGHT, False, None),
        (KeyVerdict.RIGHT, True, ReplyStatus.UNAUTHORIZED),
        (KeyVerdict.WRONG, False, ReplyStatus.UNAUTHORIZED),
        (KeyVerdict.WRONG, True, ReplyStatus.UNAUTHORIZED),
        (KeyVerdict.NO_LEDGER, False, ReplyStatus.UNAUTHORIZED),
        (KeyVerdict.NO_LEDGER, True, ReplyStatus.UNAUTHORIZED),
        (KeyVerdict.SURPLUS, False, ReplyStatus.UNKNOWN),
        (KeyVerdict.SURPLUS, True, ReplyStatus.UNKNOWN),
        (KeyVerdict.UNKNOWN, False, None),
        (KeyVerdict.UNKNOWN, True, ReplyStatus.UNKNOWN),
    ],
)
def test_writers_do_not_wait_for_metadata_that_do_not_answer(
    verdict: KeyVerdict, is_noted: bool, expected: ReplyStatus | None
) -> None:
    """They do where another key was noted, or the ledger was deleted here."""
    another = state_of(OTHER_KEY)
    cases = (
        [(another, False), (None, True), (state_of(None), True)]
        if is_noted
        else [(None, False), (state_of(None), False)]
    )
    for state, deleted in cases:
        assert status_of(check_claim(adds(), state, verdict, deleted=deleted)) == expected


def test_proofs_that_were_confirmed_are_known_until_others_take_their_place() -> None:
    proofs = VerifiedProofs()
    assert not proofs.has(1, KEY)
    proofs.note(0, KEY)
    proofs.note(1, KEY)
    assert proofs.has(0, KEY) and not proofs.has(0, OTHER_KEY)
    for ledger in range(2, PROOFS_MAX):
        proofs.note(ledger, KEY)
    assert proofs.has(1, KEY) and proofs.has(0, KEY), "there is room for so many"
    proofs.note(PROOFS_MAX, KEY)
    assert not proofs.has(2, KEY), "it was not asked for the longest time"
    assert all(proofs.has(ledger, KEY) for ledger in (0, 1, 3, PROOFS_MAX))
    proofs.forget(0)
    proofs.forget(0)
    assert not proofs.has(0, KEY) and proofs.has(1, KEY)
