"""Options: what they mean, and what is said of those that mean nothing."""

from __future__ import annotations

import dataclasses

import pytest

from pyreplog.errors import ConfigError
from pyreplog.net.credentials import Credentials
from pyreplog.tables.offsets import FIRST, LAST
from pyreplog.tables.options import ReadOptions

OFFSETS = ("starting_offsets", "ending_offsets")
DEFAULTS = {
    "storage_options": "{}", "cluster": None, "credentials": Credentials(), "password": b"", "replica": "any",
    "topics": None, "topics_pattern": None, "subscription": None, "starting_time": None, "ending_time": None,
    "ledgers": None, "columns": None, "include_headers": False, "include_metadata": False,
    "max_partition_bytes": 256 << 20, "min_partitions": 1, "batch_rows": 0, "batch_bytes": 0, "verify_checksum": None,
    "mode": "FAILFAST", "column_name_of_corrupt_record": "_corrupt_record", "fail_on_data_loss": True,
    "isolation": "read_uncommitted", "view": None, "view_options": "{}",
}  # fmt: skip


def test_read_options_have_their_defaults() -> None:
    options = ReadOptions.of({"path": "data"})
    assert options == ReadOptions(paths=("data",))
    for name, value in DEFAULTS.items():
        assert getattr(options, name) == value, name
    assert {field.name for field in dataclasses.fields(options)} == DEFAULTS.keys() | {"paths", *OFFSETS}
    assert options.starting_offsets.of(("any", 0)) == FIRST
    assert options.ending_offsets.of(("any", 0)) == LAST


def test_spark_stores_names_in_lower_case() -> None:
    options = ReadOptions.of({"paths": '["a", "b*"]', "maxpartitionbytes": "128m", "FAILONDATALOSS": "False"})
    assert (options.paths, options.max_partition_bytes, options.fail_on_data_loss) == (("a", "b*"), 128 << 20, False)


def test_topics_with_commas_in_their_names() -> None:
    def topics(text: str) -> tuple[str, ...] | None:
        return ReadOptions.of({"path": "a", "topics": text}).topics

    assert topics(' ["a, b", "[c"] ') == ("a, b", "[c")
    assert topics("a, b") == ("a", "b")
    assert topics("[a, b") == ("[a", "b")
    for wrong in ("[]", '["a", 1]', '[""]'):
        with pytest.raises(ConfigError, match="topics: expected names, found"):
            topics(wrong)


def test_path_and_paths_are_both_read() -> None:
    assert ReadOptions.of({"path": "a", "paths": '["b"]'}).paths == ("a", "b")


@pytest.mark.parametrize(
    ("text", "microseconds"),
    [
        ("1700000000123", 1_700_000_000_123_000),
        ("-1", -1000),
        ("2023-11-14T22:13:20+00:00", 1_700_000_000_000_000),
        ("2023-11-14T23:13:20.000001+01:00", 1_700_000_000_000_001),
        ("2023-11-14T22:13:20", 1_700_000_000_000_000),
    ],
)
def test_times_of_options_are_parsed(text: str, microseconds: int) -> None:
    assert ReadOptions.of({"path": "a", "startingTimestamp": text}).starting_time == microseconds


def test_offsets_of_options_may_name_partitions() -> None:
    options = ReadOptions.of({"path": "a", "startingOffsets": '{"orders": {"-1": 23, "0": -2}}', "endingOffsets": "40"})
    assert options.starting_offsets.of(("orders", -1)) == 23
    assert options.starting_offsets.of(("orders", 0)) == FIRST
    assert options.ending_offsets.of(("anything", 5)) == 40


def test_ranges_of_ledgers_are_parsed() -> None:
    assert ReadOptions.of({"path": "a", "ledgers": "9-12, 7"}).ledgers == ((7, 7), (9, 12))


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("startingOffset", "1", "unknown option 'startingoffset'; there are batchBytes, batchRows,"),
        ("maxOffsetPerTrigger", "1", "; of streams, maxOffsetsPerTrigger, maxBytesPerTrigger"),
        ("paths", "a,b", "paths: expected a JSON list of paths, found 'a,b'"),
        ("paths", '["a", 1]', "paths: expected a JSON list of paths"),
        ("path", " ", "path: expected a name, found nothing"),
        ("includeHeaders", "yes", "includeHeaders: expected true or false, found 'yes'"),
        ("maxPartitionBytes", "0", "maxPartitionBytes: expected 1 to"),
        ("maxPartitionBytes", "1.5g", "maxPartitionBytes: expected 1 to"),
        ("minPartitions", "many", "minPartitions: expected 1 to 1000000, as in 1000 or 128m, found 'many'"),
        ("batchRows", "-5", "batchRows: expected 1 to 10000000"),
        ("startingTimestamp", "yesterday", "startingTimestamp: expected milliseconds since 1970 or ISO 8601"),
        ("startingOffsets", "latest", 'startingOffsets: expected "earliest", a number or'),
        ("endingOffsets", "earliest", 'endingOffsets: expected "latest", a number or'),
        ("startingOffsets", "-1", "startingOffsets: .*0 or more, or -2 for the earliest.*, found -1"),
        ("endingOffsets", '{"t": {"0": -2}}', "endingOffsets: .*0 or more, or -1 for the latest.*, found -2"),
        ("startingOffsets", '{"t": 5}', "startingOffsets: expected"),
        ("startingOffsets", '{"t": {"0": true}}', "startingOffsets: .*found True"),
        ("ledgers", "12-9", "ledgers: expected ledger ids or ranges of them, as in 7, 9-12, found '12-9'"),
        ("columns", "key,,value", "columns: expected names with commas between them"),
        ("mode", "IGNORE", "mode: expected one of FAILFAST, DROPMALFORMED, PERMISSIVE, found 'IGNORE'"),
    ],
)
def test_each_mistake_has_its_own_message(name: str, text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says.replace("(", r"\(")):
        ReadOptions.of({"path": "data", name: text})


def test_read_options_without_a_path_are_refused() -> None:
    with pytest.raises(ConfigError, match="path: expected the directory of a log, found none"):
        ReadOptions.of({"mode": "FAILFAST"})


@pytest.mark.parametrize("url", ["pyreplog://host:7400", "memory:", "host:2181/pyreplog", "zk:host"])
def test_a_cluster_is_its_metadata(url: str) -> None:
    with pytest.raises(ConfigError, match=f"cluster: expected the URL of a metadata store, .*, found '{url}'"):
        ReadOptions.of({"cluster": url, "topics": "orders"})


def test_offsets_and_times_exclude_each_other() -> None:
    with pytest.raises(ConfigError, match="endingOffsets, endingTimestamp: expected at most one of them"):
        ReadOptions.of({"path": "a", "endingOffsets": "4", "endingTimestamp": "4"})
    with pytest.raises(ConfigError, match="endingTimestamp: expected 9 or later, found 8"):
        ReadOptions.of({"path": "a", "startingTimestamp": "9", "endingTimestamp": "8"})
