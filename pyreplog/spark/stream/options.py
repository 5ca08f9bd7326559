"""What a stream is asked for: the options of a batch, without an end, and how much of it comes at a time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from pyreplog.errors import ConfigError
from pyreplog.tables.offsets import EARLIEST, LATEST, Offsets
from pyreplog.tables.options import ANY, OF_STREAMS, ReadOptions, amount

START = "startingOffsets"
ROWS, BYTES = OF_STREAMS
_LIMIT_MAX = (1 << 63) - 1


@dataclass(frozen=True, kw_only=True)
class StreamOptions:
    """Options of a streaming query; `of` makes them from Spark's.

    read: of every batch. starting_offsets, starting_time (append time, microseconds since the epoch), subscription:
    where the first batch of a new query begins; at most one of them. max_rows, max_bytes: of a batch, at most one of
    them; None: all there is.
    """

    read: ReadOptions
    starting_offsets: Offsets = EARLIEST
    starting_time: int | None = None
    subscription: str | None = None
    max_rows: int | None = None
    max_bytes: int | None = None

    @classmethod
    def of(cls, options: Mapping[str, str]) -> StreamOptions:
        """From Spark's options. ConfigError names the option at fault."""
        given = {name.lower(): value for name, value in options.items()}
        read = ReadOptions.of(common_options(given))
        _check(read, given)
        limits = {
            name: amount(1, _LIMIT_MAX)(name, given[name.lower()]) for name in (ROWS, BYTES) if name.lower() in given
        }
        if len(limits) > 1:
            raise ConfigError(f"{ROWS}, {BYTES}: expected at most one of them, found 2")
        text = given.get(START.lower())
        return cls(
            read=replace(read, starting_time=None, subscription=None),
            starting_offsets=EARLIEST if text is None else Offsets.streaming(START, text),
            starting_time=read.starting_time, subscription=read.subscription,
            max_rows=limits.get(ROWS), max_bytes=limits.get(BYTES),
        )  # fmt: skip


def common_options(options: Mapping[str, str]) -> dict[str, str]:
    """Those that batch and stream understand alike."""
    own = {name.lower() for name in (START, ROWS, BYTES)}
    return {name: value for name, value in options.items() if name.lower() not in own}


def check_batch(options: Mapping[str, str]) -> None:
    """ConfigError: of a batch something was asked that only a stream does."""
    for name in (ROWS, BYTES):
        if name.lower() in (given.lower() for given in options):
            raise ConfigError(f"{name}: expected with readStream, found with read; a batch is read as a whole")


def _check(read: ReadOptions, given: Mapping[str, str]) -> None:
    starts = [name for name in (START, "startingTimestamp", "subscription") if name.lower() in given]
    if len(starts) > 1:
        raise ConfigError(f"{', '.join(starts)}: expected at most one of them, found {len(starts)}")
    if read.ending_offsets != LATEST or read.ending_time is not None:
        raise ConfigError("endingOffsets, endingTimestamp: expected with read, found with readStream, which has no end")
    if read.view is not None:
        raise ConfigError("view: expected with read, found with readStream; a report is of what is there")
    if read.ledgers is not None or read.replica != ANY:
        raise ConfigError("ledgers, replica: expected with read, found with readStream; a stream is of logs or topics")
    if read.cluster is not None and not read.reads_topics:
        raise ConfigError("cluster: expected topics or topicsPattern of it, found neither; ledgers are read with read")
