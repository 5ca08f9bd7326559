"""Options of `spark.read.format("pyreplog")`, parsed and checked before anything is opened."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Literal

from pyreplog.errors import ConfigError
from pyreplog.metadata.url import is_shared
from pyreplog.net.credentials import Credentials
from pyreplog.offload.storage import options_text
from pyreplog.tables.offsets import EARLIEST, LATEST, Offsets

Mode = Literal["FAILFAST", "DROPMALFORMED", "PERMISSIVE"]
MODES: tuple[Mode, ...] = ("FAILFAST", "DROPMALFORMED", "PERMISSIVE")

Isolation = Literal["read_uncommitted", "read_committed"]
ISOLATIONS: tuple[Isolation, ...] = ("read_uncommitted", "read_committed")

ANY, ALL = "any", "all"
"""Values of `replica`: each entry once, or every copy."""

EXCLUSIVE = (
    ("startingOffsets", "startingTimestamp", "subscription"),
    ("endingOffsets", "endingTimestamp"),
    ("topics", "topicsPattern", "ledgers"),
    ("cluster", "path"),
    ("cluster", "paths"),
    ("secret", "secretFile"),
    ("view", "columns"),
)
"""Groups of options of which at most one may be set."""

OF_STREAMS = ("maxOffsetsPerTrigger", "maxBytesPerTrigger")
"""Options that only streams have."""

OF_CLUSTERS = ("secretFile", "tlsCa", "tlsCert", "tlsKey")
"""Options that apply only to a cluster over TCP."""

_CREDENTIALS = ("secret", "secret_file", "tls_ca", "tls_cert", "tls_key")
"""Fields of `Credentials`."""

_OF_VALUES, _OF_NUMBERS = (10_000, 2 << 20), (1 << 15, 16 << 20)
"""Rows and bytes of log in one batch: when values are read, and when only numbers are."""

_UNITS = {"": 0, "k": 10, "m": 20, "g": 30}
_NUMBER_MAX = (1 << 63) - 1
_LEDGER_MAX = (1 << 62) - 1


@dataclass(frozen=True, kw_only=True)
class ReadOptions:
    """Options of a batch read. `ReadOptions.of` makes them from the options of the Spark source.

    Attributes:
        paths: directories or globs, or URLs of offloaded logs.
        storage_options: options of fsspec's file system for those URLs, as JSON.
        cluster: URL of a metadata store, in place of `paths`.
        credentials: secret and TLS files for the bookies of `cluster`.
        password: password of ledgers.
        replica: which copies of an entry to read: "any", "all", or the name of a bookie.
        topics: names of topics; None, without `topics_pattern`: read ledgers.
        topics_pattern: pattern of topic names.
        subscription: read the backlog of this subscription.
        starting_offsets: offsets to begin at.
        ending_offsets: offsets to stop before.
        starting_time: append time to begin at, microseconds since 1970-01-01 UTC.
        ending_time: append time to stop before, microseconds since 1970-01-01 UTC.
        ledgers: ranges of ledger ids, both ends included, ascending; None: all.
        columns: names of columns; None: the usual ones.
        include_headers: give the column `headers` as well.
        include_metadata: give the columns of metadata as well.
        max_partition_bytes: bytes of log in a task; a sixteenth more is allowed.
        min_partitions: number of tasks, at least.
        batch_rows: rows of an Arrow batch, at most; 0: a number that suits the columns.
        batch_bytes: bytes of log in an Arrow batch, at most (one larger record is allowed); 0: a size that suits the
            columns.
        verify_checksum: verify each record; None: if values are read.
        mode: what to do with damage, as Spark's readers: "PERMISSIVE", "DROPMALFORMED" or "FAILFAST".
        column_name_of_corrupt_record: column for damaged bytes, in mode "PERMISSIVE".
        fail_on_data_loss: raise if entries were removed or cut before they were read.
        isolation: of logs of partitions: "read_uncommitted" reads up to the high watermark, "read_committed" up to the
            last stable offset and without aborted transactions.
        view: name of a report; its partial results are read in place of rows.
        view_options: parameters of that report, as JSON.

    See docs/spark.md.
    """

    paths: tuple[str, ...] = ()
    storage_options: str = field(default="{}", repr=False)
    cluster: str | None = None
    credentials: Credentials = field(default_factory=Credentials)
    password: bytes = field(default=b"", repr=False)
    replica: str = ANY
    topics: tuple[str, ...] | None = None
    topics_pattern: re.Pattern[str] | None = None
    subscription: str | None = None
    starting_offsets: Offsets = EARLIEST
    ending_offsets: Offsets = LATEST
    starting_time: int | None = None
    ending_time: int | None = None
    ledgers: tuple[tuple[int, int], ...] | None = None
    columns: tuple[str, ...] | None = None
    include_headers: bool = False
    include_metadata: bool = False
    max_partition_bytes: int = 256 << 20
    min_partitions: int = 1
    batch_rows: int = 0
    batch_bytes: int = 0
    verify_checksum: bool | None = None
    mode: Mode = "FAILFAST"
    column_name_of_corrupt_record: str = "_corrupt_record"
    fail_on_data_loss: bool = True
    isolation: Isolation = "read_uncommitted"
    view: str | None = None
    view_options: str = field(default="{}", repr=False)

    @classmethod
    def of(cls, options: Mapping[str, str]) -> ReadOptions:
        """Make options from those of the Spark source. Upper and lower case do not matter in their names.

        Args:
            options: text by name of the option.

        Raises:
            ConfigError: an option is unknown or its value invalid, or two options contradict each other. The message
                names it.

        Example:
            ```python
            options = ReadOptions.of({"path": "data/orders", "startingOffsets": "earliest"})
            columns = default_columns(options)
            for parts in plan(options):
                for batch in read(parts, columns, options):
                    print(batch.num_rows)
            ```
        """
        given = {name.lower(): value for name, value in options.items()}
        unknown = sorted(given.keys() - _OPTIONS.keys())
        if unknown:
            known = ", ".join(sorted((name for name, _, _ in _OPTIONS.values()), key=str.lower))
            raise ConfigError(f"unknown option {unknown[0]!r}; there are {known}; of streams, {', '.join(OF_STREAMS)}")
        fields: dict[str, Any] = {}
        for key, text in given.items():
            name, target, parse = _OPTIONS[key]
            value = parse(name, text)
            fields[target] = fields.get(target, ()) + value if target == "paths" else value
        if not fields.get("paths") and "cluster" not in fields:
            raise ConfigError("path: expected the directory of a log, found none; give it to load() or as an option")
        credentials = {name: fields.pop(name) for name in _CREDENTIALS if name in fields}
        checked = cls(**fields, credentials=Credentials(**credentials))
        checked._check_credentials(given, credentials)
        checked._check_choices(given)
        checked._check_ranges(given)
        checked._check_cluster()
        return checked

    def limited(self, *, to_values: bool) -> ReadOptions:
        """Return options whose batch limits are set.

        to_values: values are read. If only numbers are read, larger batches cost less for each row.
        """
        rows, size = _OF_VALUES if to_values else _OF_NUMBERS
        return replace(self, batch_rows=self.batch_rows or rows, batch_bytes=self.batch_bytes or size)

    @property
    def reads_topics(self) -> bool:
        """Whether messages of topics are read, not entries of ledgers."""
        return self.topics is not None or self.topics_pattern is not None

    def _check_credentials(self, given: Mapping[str, str], credentials: Mapping[str, object]) -> None:
        for name in OF_CLUSTERS:
            if self.cluster is None and _OPTIONS[name.lower()][1] in credentials:
                raise ConfigError(f"{name}: expected with cluster, found with {given.get('path', 'paths')}")

    def _check_choices(self, given: Mapping[str, str]) -> None:
        for names in EXCLUSIVE:
            chosen = [name for name in names if name.lower() in given]
            if len(chosen) > 1:
                raise ConfigError(f"{', '.join(chosen)}: expected at most one of them, found {len(chosen)}")
        if self.subscription is not None and not self.reads_topics:
            raise ConfigError("subscription: expected with topics or topicsPattern, found neither")
        if self.reads_topics and self.replica != ANY:
            raise ConfigError(f"replica: topics are read once, from any replica; expected any, found {self.replica!r}")

    def _check_ranges(self, given: Mapping[str, str]) -> None:
        low, high = self.starting_time, self.ending_time
        if low is not None and high is not None and low > high:
            raise ConfigError(
                f"endingTimestamp: expected {given['startingtimestamp']} or later, found {given['endingtimestamp']}"
            )

    def _check_cluster(self) -> None:
        """Raise ConfigError for a topic server, and for a store in memory, which executors cannot see."""
        if self.cluster is not None and not is_shared(self.cluster):
            raise ConfigError(
                "cluster: expected the URL of a metadata store, zk://host:port/root or sqlite:/path, found "
                f"{self.cluster!r}"
            )


# ---- one parser for each type: (name of the option, its text) -> value ------------------------------------------


def _text(name: str, text: str) -> str:
    if not text.strip():
        raise ConfigError(f"{name}: expected a name, found nothing")
    return text


def _path(name: str, text: str) -> tuple[str, ...]:
    return (_text(name, text),)


def _paths(name: str, text: str) -> tuple[str, ...]:
    try:
        paths = json.loads(text)
    except ValueError:
        paths = None
    if not isinstance(paths, list) or not all(isinstance(path, str) and path for path in paths):
        raise ConfigError(f"{name}: expected a JSON list of paths, found {text!r}")
    return tuple(paths)


def _storage_options(name: str, text: str) -> str:
    return options_text(text)


def _flag(name: str, text: str) -> bool:
    if text.strip().lower() not in ("true", "false"):
        raise ConfigError(f"{name}: expected true or false, found {text!r}")
    return text.strip().lower() == "true"


def amount(low: int, high: int) -> Callable[[str, str], int]:
    """Return a parser of whole numbers, which may be followed by k, m or g."""

    def parse(name: str, text: str) -> int:
        match = re.fullmatch(r"\s*(\d{1,19})\s*([kmg]?)b?\s*", text, re.IGNORECASE)
        value = int(match[1]) << _UNITS[match[2].lower()] if match else -1
        if not low <= value <= high:
            raise ConfigError(f"{name}: expected {low} to {high}, as in 1000 or 128m, found {text!r}")
        return value

    return parse


def _time(name: str, text: str) -> int:
    """Parse milliseconds since 1970, or ISO 8601 (UTC without a zone), into microseconds since 1970."""
    try:
        if re.fullmatch(r"\s*-?\d{1,15}\s*", text):
            return int(text) * 1000
        moment = datetime.fromisoformat(text.strip())
    except ValueError as error:
        raise ConfigError(f"{name}: expected milliseconds since 1970 or ISO 8601, found {text!r}") from error
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    since = moment - datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds


def _names(name: str, text: str) -> tuple[str, ...]:
    names = tuple(word.strip() for word in text.split(","))
    if not all(names):
        raise ConfigError(f"{name}: expected names with commas between them, found {text!r}")
    return names


def _topics(name: str, text: str) -> tuple[str, ...]:
    """Parse names of topics. Names that hold commas are given as a JSON list."""
    if not text.lstrip().startswith("["):
        return _names(name, text)
    try:
        names = json.loads(text)
    except ValueError:
        return _names(name, text)
    if not names or not all(isinstance(topic, str) and topic for topic in names):
        raise ConfigError(f"{name}: expected names, found {text!r}")
    return tuple(names)


def _ledgers(name: str, text: str) -> tuple[tuple[int, int], ...]:
    ranges = list[tuple[int, int]]()
    for word in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,19})\s*(?:-\s*(\d{1,19})\s*)?", word)
        low, high = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if not low <= high <= _LEDGER_MAX:
            raise ConfigError(f"{name}: expected ledger ids or ranges of them, as in 7, 9-12, found {text!r}")
        ranges.append((low, high))
    return merged(ranges)


def merged(ranges: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Return the same numbers in as few ranges as possible, ascending; both ends are included."""
    result = list[tuple[int, int]]()
    for low, high in sorted(ranges):
        if result and low <= result[-1][1] + 1:
            result[-1] = result[-1][0], max(result[-1][1], high)
        else:
            result.append((low, high))
    return tuple(result)


def _pattern(name: str, text: str) -> re.Pattern[str]:
    try:
        return re.compile(_text(name, text))
    except re.error as error:
        raise ConfigError(f"{name}: expected a regular expression, found {text!r}: {error}") from error


def _bytes(name: str, text: str) -> bytes:
    return text.encode()


def _replica(name: str, text: str) -> str:
    text = _text(name, text).strip()
    return text.lower() if text.lower() in (ANY, ALL) else text


def _isolation(name: str, text: str) -> Isolation:
    for isolation in ISOLATIONS:
        if text.strip().lower() == isolation:
            return isolation
    raise ConfigError(f"{name}: expected one of {', '.join(ISOLATIONS)}, found {text!r}")


def _mode(name: str, text: str) -> Mode:
    for mode in MODES:
        if text.strip().upper() == mode:
            return mode
    raise ConfigError(f"{name}: expected one of {', '.join(MODES)}, found {text!r}")


# (name, field of ReadOptions, parser) by the name in lower case, as Spark passes it.
_OPTIONS: dict[str, tuple[str, str, Callable[[str, str], Any]]] = {
    name.lower(): (name, target, parse)
    for name, target, parse in (
        ("path", "paths", _path),
        ("paths", "paths", _paths),
        ("storageOptions", "storage_options", _storage_options),
        ("cluster", "cluster", _text),
        ("secret", "secret", _bytes),
        ("secretFile", "secret_file", _text),
        ("tlsCa", "tls_ca", _text),
        ("tlsCert", "tls_cert", _text),
        ("tlsKey", "tls_key", _text),
        ("password", "password", _bytes),
        ("replica", "replica", _replica),
        ("topics", "topics", _topics),
        ("topicsPattern", "topics_pattern", _pattern),
        ("subscription", "subscription", _text),
        ("startingOffsets", "starting_offsets", Offsets.starting),
        ("endingOffsets", "ending_offsets", Offsets.ending),
        ("startingTimestamp", "starting_time", _time),
        ("endingTimestamp", "ending_time", _time),
        ("ledgers", "ledgers", _ledgers),
        ("columns", "columns", _names),
        ("includeHeaders", "include_headers", _flag),
        ("includeMetadata", "include_metadata", _flag),
        ("maxPartitionBytes", "max_partition_bytes", amount(1, _NUMBER_MAX)),
        ("minPartitions", "min_partitions", amount(1, 1_000_000)),
        ("batchRows", "batch_rows", amount(1, 10_000_000)),
        ("batchBytes", "batch_bytes", amount(1, 1 << 30)),
        ("verifyChecksum", "verify_checksum", _flag),
        ("mode", "mode", _mode),
        ("columnNameOfCorruptRecord", "column_name_of_corrupt_record", _text),
        ("failOnDataLoss", "fail_on_data_loss", _flag),
        ("isolation", "isolation", _isolation),
        ("view", "view", _text),
        ("viewOptions", "view_options", _text),
    )
}
