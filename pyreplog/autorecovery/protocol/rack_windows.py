"""Counts the racks of the copies of an entry. The copies are in a window: Qw adjacent places of the ensemble."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyreplog._native.quorum.quorum import write_set


def window_racks(ensemble: Sequence[str], write_quorum: int, racks: Mapping[str, str]) -> list[int | None]:
    """Return the number of racks of each window of an ensemble.

    Args:
        ensemble: the members.
        write_quorum: Qw, the size of a window.
        racks: rack of each known bookie; "": unknown.

    Returns:
        For each place the number of racks of the window that begins there; None if the rack of a member is unknown.
    """
    size = len(ensemble)
    known = [racks.get(bookie, "") for bookie in ensemble]
    windows = ({known[place] for place in write_set(first, size, write_quorum)} for first in range(size))
    return [None if "" in window else len(window) for window in windows]


def count_racks(racks: Mapping[str, str]) -> int:
    """Count the racks of bookies; unknown racks do not count."""
    return len({rack for rack in racks.values() if rack})


def single_rack_windows(ensemble: Sequence[str], write_quorum: int, racks: Mapping[str, str]) -> int:
    """Count the windows within one rack: their entries do not survive the loss of that rack.

    The result is 0 if the cluster has one rack, or entries have one copy: no choice of bookies would help.

    Args:
        ensemble: the members.
        write_quorum: Qw, the size of a window.
        racks: rack of each known bookie; "": unknown.
    """
    if write_quorum < 2 or count_racks(racks) < 2:
        return 0
    return window_racks(ensemble, write_quorum, racks).count(1)


def keeps_racks(ensemble: Sequence[str], place: int, target: str, write_quorum: int, racks: Mapping[str, str]) -> bool:
    """Return whether replacing a member of an ensemble leaves each window at least as many racks.

    A window whose racks become unknown counts as a loss of racks, and so does one whose racks were unknown and would be
    a single one.

    Args:
        ensemble: the members.
        place: index of the member that is replaced.
        target: the bookie that replaces it.
        write_quorum: Qw, the size of a window.
        racks: rack of each known bookie; "": unknown.
    """
    changed = [*ensemble[:place], target, *ensemble[place + 1 :]]
    least = min(write_quorum, 2)
    pairs = zip(window_racks(ensemble, write_quorum, racks), window_racks(changed, write_quorum, racks), strict=True)
    return all(before is after is None or (after is not None and after >= (before or least)) for before, after in pairs)
