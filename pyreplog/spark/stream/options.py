"""The options of a stream: those of a batch without an end, and the size of each batch."""

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
    """Options of a streaming query; `of` makes them from those of Spark.

    read: options of every batch. starting_offsets, starting_time (append time, microseconds since 1970), subscription:
    where the first batch of a new query begins; at most one of them is set. max_rows, max_bytes: size of a batch, at
    most one of them; None: unlimited.
    """

    read: ReadOptions
    starting_offsets: Offsets = EARLIEST
    starting_time: int | None = None
    subscription: str | None = None
    max_rows: int | None = None
    max_bytes: int | None = None

    @classmethod
    def of(cls, options: Mapping[str, str]) -> StreamOptions:
        """Make options from those of Spark. Raises ConfigError, which names the option."""
        texts = {name.lower(): value for name, value in options.items()}
        read = ReadOptions.of(common_options(texts))
        _check(read, texts)
        limits = {
            name: amount(1, _LIMIT_MAX)(name, texts[name.lower()]) for name in (ROWS, BYTES) if name.lower() in texts
        }
        if len(limits) > 1:
            raise ConfigError(f"{ROWS}, {BYTES}: expected at most one of them, found 2")
        text = texts.get(START.lower())
        return cls(
            read=replace(read, starting_time=None, subscription=None),
            starting_offsets=EARLIEST if text is None else Offsets.streaming(START, text),
            starting_time=read.starting_time, subscription=read.subscription,
            max_rows=limits.get(ROWS), max_bytes=limits.get(BYTES),
        )  # fmt: skip


def common_options(options: Mapping[str, str]) -> dict[str, str]:
    """Return the options that batches and streams share."""
    own = {name.lower() for name in (START, ROWS, BYTES)}
    return {name: value for name, value in options.items() if name.lower() not in own}


def check_batch(options: Mapping[str, str]) -> None:
    """Raise ConfigError for an option that only streams have."""
    for name in (ROWS, BYTES):
        if name.lower() in (option.lower() for option in options):
            raise ConfigError(f"{name}: expected with readStream, found with read; a batch is read as a whole")


def _check(read: ReadOptions, texts: Mapping[str, str]) -> None:
    starts = [name for name in (START, "startingTimestamp", "subscription") if name.lower() in texts]
    if len(starts) > 1:
        raise ConfigError(f"{', '.join(starts)}: expected at most one of them, found {len(starts)}")
    if read.ending_offsets != LATEST or read.ending_time is not None:
        raise ConfigError("endingOffsets, endingTimestamp: expected with read, found with readStream, which has no end")
    if read.view is not None:
        raise ConfigError("view: expected with read, found with readStream; a report reads a finite source")
    if read.ledgers is not None or read.replica != ANY:
        raise ConfigError("ledgers, replica: expected with read, found with readStream; a stream reads logs or topics")
    if read.cluster is not None and not read.reads_topics:
        raise ConfigError("cluster: expected topics or topicsPattern as well, found neither; for ledgers use read")
