"""Acknowledgements of a client that no flush has confirmed, compared with sets of offsets."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pyreplog.topic.client.remote.remote_subscription import UnconfirmedAcks


def offsets(kept: UnconfirmedAcks, cut: int = 0) -> set[int]:
    return {offset for start, end in kept.ranges(cut).tolist() for offset in range(start, end)}


def test_a_flush_confirms_what_was_there() -> None:
    kept = UnconfirmedAcks()
    kept.add((3, 5))
    first = kept.cut()
    kept.add(np.array([1, 9]))
    assert offsets(kept) == {1, 3, 4, 9} and offsets(kept, first) == {1, 9}
    second = kept.cut()
    kept.add_below(7)
    kept.confirmed(first)
    assert offsets(kept) == {1, 9} and kept.below == 7
    kept.confirmed(second)
    assert offsets(kept) == set() and kept.below == 7 and kept
    kept.clear()
    assert not kept and kept.below == 0


def test_remove_deletes_refused_acknowledgements() -> None:
    kept = UnconfirmedAcks()
    kept.add((3, 9))
    kept.cut()
    kept.add(np.array([11]))
    kept.add_below(2)
    kept.remove((4, 6))
    kept.remove(np.array([8, 11]))
    kept.remove_below(2)
    assert offsets(kept) == {3, 6, 7} and kept.below == 0


STEPS = st.lists(st.one_of(st.integers(0, 30), st.just("cut"), st.integers(-4, -1)), max_size=60)


@given(STEPS)
def test_unconfirmed_acknowledgements_behave_as_sets(steps: list[int | str]) -> None:
    """Offsets are acknowledged in the order of numbers from 0 on; negative numbers confirm one of the last cuts."""
    kept, model, cuts = UnconfirmedAcks(), list[tuple[int, int]](), list[tuple[int, int]]()
    for turn, step in enumerate(steps):
        if step == "cut":
            cuts.append((kept.cut(), turn))
        elif isinstance(step, int) and step >= 0:
            kept.add((step, step + 1))
            model.append((turn, step))
        elif isinstance(step, int) and -step <= len(cuts):
            cut, at = cuts[step]
            kept.confirmed(cut)
            model = [(turn, offset) for turn, offset in model if turn > at]
        assert offsets(kept) == {offset for _, offset in model}
