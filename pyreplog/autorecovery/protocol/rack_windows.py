"""Racks of the copies of an entry: they lie on a window, Qw neighbouring places of the ensemble."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyreplog._native.quorum.quorum import write_set


def window_racks(ensemble: Sequence[str], write_quorum: int, racks: Mapping[str, str]) -> list[int | None]:
    """Return the number of racks in each window of an ensemble.

    Args:
        ensemble: the members.
        write_quorum: Qw, the size of a window.
        racks: rack of each bookie that is known; "": unknown.

    Returns:
        For each place the racks of the window that begins there; None if the rack of one of its members is unknown.
    """
    size = len(ensemble)
    known = [racks.get(bookie, "") for bookie in ensemble]
    windows = ({known[place] for place in write_set(first, size, write_quorum)} for first in range(size))
    return [None if "" in window else len(window) for window in windows]


def count_racks(racks: Mapping[str, str]) -> int:
    """Count the racks that bookies are in; unknown ones are none."""
    return len({rack for rack in racks.values() if rack})


def single_rack_windows(ensemble: Sequence[str], write_quorum: int, racks: Mapping[str, str]) -> int:
    """Count the windows within one rack, whose entries do not survive the loss of it.

    None count in a cluster of one rack, or when entries have one copy: no choice of bookies would help.

    Args:
        ensemble: the members.
        write_quorum: Qw, the size of a window.
        racks: rack of each bookie that is known; "": unknown.
    """
    if write_quorum < 2 or count_racks(racks) < 2:
        return 0
    return window_racks(ensemble, write_quorum, racks).count(1)


def keeps_racks(ensemble: Sequence[str], place: int, target: str, write_quorum: int, racks: Mapping[str, str]) -> bool:
    """Whether no window has fewer racks once another bookie has a place of an ensemble.

    A window whose racks were known and would be unknown counts as one that has fewer, and so does one whose racks were
    unknown and would be a single one.

    Args:
        ensemble: the members.
        place: index of the member that is replaced.
        target: the bookie that takes its place.
        write_quorum: Qw, the size of a window.
        racks: rack of each bookie that is known; "": unknown.
    """
    changed = [*ensemble[:place], target, *ensemble[place + 1 :]]
    least = min(write_quorum, 2)
    pairs = zip(window_racks(ensemble, write_quorum, racks), window_racks(changed, write_quorum, racks), strict=True)
    return all(before is after is None or (after is not None and after >= (before or least)) for before, after in pairs)
