"""The state of a bookie's scrub; kept in the file `scrub` of its directory (FORMAT.md, "Scrub").

The file is a hint: without it, all segments are verified anew. Its times are those of the wall clock; in memory they
are monotonic, so that setting the wall clock has no effect while the bookie runs.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pyreplog.bookie.ledger_map import BadRange
from pyreplog.checksummed_json import dump_checksummed, load_checksummed
from pyreplog.clock import Clock
from pyreplog.errors import CorruptionError, FormatVersionError
from pyreplog.log.files import Files
from pyreplog.regular_files import read_regular

logger = logging.getLogger(__name__)

NAME = "scrub"
FORMAT = "pyreplog bookie scrub"
VERSION = 1
_FILE_MAX = 256 << 20


class SegmentAge(NamedTuple):
    """When a segment was verified last, or was first seen.

    Attributes:
        since_us: that time, monotonic microseconds.
        verified: whether it was verified since it was first seen, and since a pass was requested.
    """

    since_us: int
    verified: bool


@dataclass
class ScrubState:
    """The content of the file.

    Attributes:
        ages: age of each segment, by its base.
        place: (base of the segment that is being verified, offset, when its verification began); None: none is.
        pass_us: when the current pass began; monotonic microseconds; None: none has begun.
        complete_us: when the last complete pass ended; monotonic microseconds; None: there was none.
        asked: whether the pass runs at the highest rate, because an operator requested it.
        done_bytes: bytes of segments that the pass has verified.
        bad: damaged records that the pass has found.
        last_bad: damaged records that the last complete pass has found.
        mended: parts that the pass found damaged, and wrote anew.
        last_mended: the same of the last complete pass.
        damaged: damaged records of each segment that has damage, by its base. The list is empty if no record of the
            index lies at the damage.
    """

    ages: dict[int, SegmentAge] = field(default_factory=dict)
    place: tuple[int, int, int] | None = None
    pass_us: int | None = None
    complete_us: int | None = None
    asked: bool = False
    done_bytes: int = 0
    bad: int = 0
    last_bad: int = 0
    mended: int = 0
    last_mended: int = 0
    damaged: dict[int, tuple[BadRange, ...]] = field(default_factory=dict)


class ScrubFile:
    """The file in a bookie's directory. uuid: uuid of the bookie's log."""

    def __init__(self, directory: Path, uuid: bytes, files: Files, clock: Clock) -> None:
        self._path, self._uuid, self._files, self._clock = directory / NAME, uuid, files, clock

    def load(self) -> ScrubState:
        """Return the state; an empty one if the file is missing, damaged, of another log, or of a newer version."""
        now_us, wall_us = self._clock.monotonic_us(), self._clock.now_us()
        try:
            content = load_checksummed(read_regular(self._path, _FILE_MAX), FORMAT, VERSION, self._path)
            if content["log"] != self._uuid.hex():
                raise ValueError(f"log {content['log']}")
            return _decode(content, lambda time_us: min(now_us - (wall_us - time_us), now_us))
        except FileNotFoundError:
            return ScrubState()
        except (OSError, CorruptionError, FormatVersionError, ValueError, TypeError, KeyError) as error:
            logger.warning("%s cannot be read, and all segments will be verified anew: %s", self._path, error)
            return ScrubState()

    def save(self, state: ScrubState) -> None:
        """Write the file durably. Raises OSError when the disk fails."""
        offset_us = self._clock.now_us() - self._clock.monotonic_us()
        content = {
            "log": self._uuid.hex(),
            "segments": [[base, age.since_us + offset_us, age.verified] for base, age in sorted(state.ages.items())],
            "place": [*state.place[:2], state.place[2] + offset_us] if state.place is not None else None,
            "pass_us": _moved(state.pass_us, offset_us),
            "complete_us": _moved(state.complete_us, offset_us),
            "asked": state.asked,
            "done_bytes": state.done_bytes,
            "bad": [state.bad, state.last_bad],
            "mended": [state.mended, state.last_mended],
            "damaged": [[base, [list(bad) for bad in ranges]] for base, ranges in sorted(state.damaged.items())],
        }
        self._files.replace_small(self._path, dump_checksummed(FORMAT, VERSION, content))


def _moved(time_us: int | None, by_us: int) -> int | None:
    return None if time_us is None else time_us + by_us


def _decode(content: dict[str, Any], monotonic: Callable[[int], int]) -> ScrubState:
    """Decode the content of the file. Raises ValueError, TypeError and KeyError when it is malformed.

    monotonic: converts a time of the wall clock to one of the monotonic clock.
    """
    place, pass_us, complete_us = content["place"], content["pass_us"], content["complete_us"]
    mended = content.get("mended", (0, 0))
    return ScrubState(
        ages={int(base): SegmentAge(monotonic(since), bool(verified)) for base, since, verified in content["segments"]},
        place=(int(place[0]), int(place[1]), monotonic(place[2])) if place is not None else None,
        pass_us=monotonic(pass_us) if pass_us is not None else None,
        complete_us=monotonic(complete_us) if complete_us is not None else None,
        asked=bool(content["asked"]),
        done_bytes=int(content["done_bytes"]),
        bad=int(content["bad"][0]),
        last_bad=int(content["bad"][1]),
        mended=int(mended[0]),
        last_mended=int(mended[1]),
        damaged={int(base): tuple(BadRange(*bad) for bad in ranges) for base, ranges in content["damaged"]},
    )


def ranges_of(ledger: int, bad: npt.NDArray[np.int64], known: npt.NDArray[np.int64]) -> list[BadRange]:
    """Return damaged records of a ledger as ranges.

    Args:
        ledger: the ledger, with CONTROL for control records.
        bad: the entries, ascending.
        known: all entries of the ledger in the index of the segment, ascending; intact ones end a range.
    """
    places = np.searchsorted(known, bad)
    cuts = np.flatnonzero(np.diff(places) != 1) + 1
    return [BadRange(ledger, int(part[0]), int(part[-1])) for part in np.split(bad, cuts) if len(part)]
