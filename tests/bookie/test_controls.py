"""Control records of a ledger: each fact by itself, the newest, and those that are damaged."""

from __future__ import annotations

from itertools import product

import pytest

from pyreplog._native.ledger_log.entries import CONTROL, encode_control
from pyreplog.bookie.controls import ControlCode, Controls, encode_limbo, load_controls
from pyreplog.errors import CorruptionError
from tests.bookie.asking import KEY, LEDGER
from tests.bookie.memory_log import MemoryLog

FACTS = [Controls(*facts) for facts in product((None, KEY), (False, True), (-1, 0, 9), (False, True), (False, True))]


@pytest.mark.parametrize("controls", FACTS)
def test_load_controls_returns_the_stored_controls(controls: Controls) -> None:
    log = MemoryLog(staged=False)
    records = controls.encode(LEDGER)
    if records:
        log.append(records)
    assert load_controls(log, LEDGER) == controls
    assert load_controls(log, LEDGER + 1) == Controls()


def test_the_newest_control_record_of_a_ledger_counts() -> None:
    log = MemoryLog(staged=False)
    for limbo, lac in ((True, 3), (False, 7)):
        log.append(encode_limbo(LEDGER, limbo) + Controls(lac=lac).encode(LEDGER))
        assert load_controls(log, LEDGER) == Controls(limbo=limbo, lac=lac)


@pytest.mark.parametrize("key", [b"", KEY[:-1], KEY + b"k"])
def test_a_key_of_another_length_is_corruption(key: bytes) -> None:
    log = MemoryLog(staged=False)
    log.append(encode_control(LEDGER, ControlCode.KEY, key, lac=-1, time=0))
    with pytest.raises(
        CorruptionError, match=f"control records of ledger {LEDGER}.*a key of 16 bytes, found {len(key)}"
    ):
        load_controls(log, LEDGER)


@pytest.mark.parametrize("code", ControlCode)
def test_a_damaged_record_counts_as_what_is_safe(code: ControlCode) -> None:
    log = MemoryLog(staged=False)
    log.append(Controls(KEY, True, 9, False, False).encode(LEDGER) + encode_limbo(LEDGER, False))
    log.append(Controls(copied=True).encode(LEDGER + 1))
    log.damaged = {(LEDGER + CONTROL, code)}
    whole = Controls(KEY, True, 9, False, False)
    expected = {
        ControlCode.KEY: whole._replace(key=None, copied=True),
        ControlCode.LAC: whole._replace(lac=-1),
        ControlCode.LIMBO: whole._replace(limbo=True),
    }
    assert load_controls(log, LEDGER) == expected.get(code, whole)
    log = MemoryLog(staged=False)
    log.append(encode_limbo(LEDGER, False) + Controls(copied=True).encode(LEDGER))
    log.damaged = {(LEDGER + CONTROL, code)}
    assert load_controls(log, LEDGER) == Controls(copied=True, limbo=code == ControlCode.LIMBO)
