"""What a write is asked for: options and columns, and what is said of those that mean nothing."""

from __future__ import annotations

import pytest

from pyreplog.errors import ConfigError
from pyreplog.net.credentials import Credentials
from pyreplog.spark.write.columns import WrittenColumns, written_columns
from pyreplog.spark.write.options import SECRET, WriteOptions

types = pytest.importorskip("pyspark.sql.types")

URL = "pyreplog://127.0.0.1:7400"
TYPES = {
    "binary": types.BinaryType(),
    "string": types.StringType(),
    "int": types.IntegerType(),
    "timestamp": types.TimestampType(),
    "timestamp_ntz": types.TimestampNTZType(),
    "map": types.MapType(types.StringType(), types.BinaryType()),
    "headers": types.ArrayType(types.StructType().add("key", "string").add("value", "binary")),
}


def columns_of(columns: str, **options: str) -> WrittenColumns:
    """columns: "name type" with commas between them."""
    schema = types.StructType()
    for column in columns.split(", "):
        name, kind = column.split()
        schema = schema.add(name, TYPES[kind])
    return written_columns(schema, WriteOptions.of({"cluster": URL, **options}))


def test_write_options_have_their_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SECRET, raising=False)
    assert WriteOptions.of({"CLUSTER": URL}) == WriteOptions(cluster=URL)
    assert WriteOptions(cluster=URL).is_exactly_once


def test_every_write_option_is_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SECRET, "of the environment")
    given = {"cluster": URL, "topic": "orders", "deliveryguarantee": "At-Least-Once", "checkpointLocation": "/c"}
    wanted = WriteOptions(
        cluster=URL, topic="orders", credentials=Credentials(secret=b"of the environment"), is_exactly_once=False
    )
    assert WriteOptions.of(given) == wanted
    assert WriteOptions.of({"cluster": URL, "secret": "mine"}).credentials.secret == b"mine"
    assert "mine" not in repr(WriteOptions.of({"cluster": URL, "secret": "mine"}))


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("topics", "a", "unknown option 'topics'; for writing there are cluster, deliveryGuarantee, secret, topic"),
        ("path", "/data", "path: topics are written through their servers; .*found '/data'"),
        ("cluster", "zk://host:2181/x", "cluster: expected the URL of topic servers, pyreplog://host:port, found 'zk"),
        ("topic", "", "topic: a name has 1 to 200 bytes"),
        ("deliveryGuarantee", "none", "deliveryGuarantee: expected exactly-once or at-least-once, found 'none'"),
    ],
)
def test_each_wrong_option_has_its_own_message(name: str, text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        WriteOptions.of({"cluster": URL, name: text})


def test_write_options_without_a_cluster_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"cluster: expected the URL .* found None"):
        WriteOptions.of({"topic": "orders"})


def test_columns_of_a_written_schema_are_found() -> None:
    assert columns_of("value binary", topic="a") == WrittenColumns(0, None, None, None, None)
    assert columns_of("topic string, TIMESTAMP timestamp, headers headers, key string, value string") == WrittenColumns(
        4, 3, 2, 1, 0
    )
    assert columns_of("value string, topic string, eventTime timestamp", topic="a") == WrittenColumns(
        0, None, None, 2, None
    )


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        ("value binary, offset int", "unknown column 'offset'; for writing there are value, key, headers, eventTime"),
        ("value int", "column value: expected the type binary or string, found int"),
        ("value binary, key int", "column key: expected the type binary or string, found int"),
        ("value binary, eventTime timestamp_ntz", "column eventTime: expected the type timestamp, found timestamp_ntz"),
        ("value binary, headers map", "column headers: expected the type array<struct<key:string,"),
        ("value binary, topic binary", "column topic: expected the type string, found binary"),
        ("key binary", "column value: expected in the DataFrame, found only key"),
        ("value binary, Value binary", "column value: expected once, found twice"),
        ("value binary, eventTime timestamp, timestamp timestamp", "columns eventTime, timestamp: both are the event"),
    ],
)
def test_each_wrong_column_has_its_own_message(columns: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        columns_of(columns, topic="a")


def test_written_rows_without_a_topic_are_refused() -> None:
    with pytest.raises(ConfigError, match="topic: expected the option or a column of that name, found neither"):
        columns_of("value binary")
