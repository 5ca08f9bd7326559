"""Columns: which there are, and which a user's schema may ask for."""

from __future__ import annotations

import pytest
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from pyreplog.errors import ConfigError
from pyreplog.tables import schema
from pyreplog.tables.arrays import TYPES, schema_of
from pyreplog.tables.options import ReadOptions
from tests.spark.reading import options_of

KAFKA = ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType"]


def names(columns: tuple[schema.Column, ...]) -> list[str]:
    return [column.name for column in columns]


def test_default_columns_are_those_of_kafka() -> None:
    assert names(schema.default_columns(options_of("d"))) == KAFKA
    assert names(schema.default_columns(options_of("d", includeHeaders=True))) == [*KAFKA, "headers"]


def test_options_add_metadata_and_corrupt_record_columns() -> None:
    actual_names = names(schema.default_columns(options_of("d", includeMetadata=True, mode="permissive")))
    assert actual_names[:7] == KAFKA
    assert actual_names[7:9] == ["size", "ledgerId"]
    assert actual_names[-4:] == ["originCluster", "originOffset", "originPublishTime", "_corrupt_record"]


def test_every_column_has_an_arrow_type() -> None:
    known = names(schema.known_columns(options_of("d")))
    assert sorted(known) == sorted(TYPES)


def test_arrow_types_are_what_spark_expects() -> None:
    header = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
    data_types: dict[str, DataType] = {
        "binary": BinaryType(), "string": StringType(), "int": IntegerType(), "bigint": LongType(),
        "timestamp": TimestampType(), "boolean": BooleanType(), "array<struct<key:string,value:binary>>": ArrayType(header),
    }  # fmt: skip
    columns = schema.known_columns(options_of("d"))
    theirs = StructType([StructField(column.name, data_types[column.type]) for column in columns])
    assert to_arrow_schema(theirs, timezone="UTC").equals(schema_of(tuple(names(columns))))
    assert schema.columns_of(theirs, options_of("d")) == columns


def test_a_users_schema_chooses_and_orders() -> None:
    theirs = StructType([StructField("size", IntegerType()), StructField("timestamp", TimestampType())])
    assert names(schema.columns_of(theirs, options_of("d"))) == ["size", "timestamp"]


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        (
            [StructField("sise", IntegerType())],
            "unknown column 'sise'; there are key, value, topic, .*, originPublishTime$",
        ),
        ([StructField("size", LongType())], "column size: expected the type int, found bigint"),
        (
            [StructField("size", IntegerType(), False)],
            "column size: expected a column that may be null, found NOT NULL",
        ),
        ([StructField("size", IntegerType())] * 2, "column size: expected once, found twice"),
        ([StructField("_corrupt_record", IntegerType())], "unknown column '_corrupt_record'"),
    ],
)
def test_impossible_schemas_of_users_are_refused(fields: list[StructField], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        schema.columns_of(StructType(fields), options_of("d"))


def test_an_unknown_column_in_the_option() -> None:
    with pytest.raises(ConfigError, match="unknown column 'Key'; there are key,"):
        schema.default_columns(options_of("d", columns="Key"))


def test_a_corrupt_record_that_is_called_as_another_column() -> None:
    options = options_of("d", mode="PERMISSIVE", columnNameOfCorruptRecord="key")
    with pytest.raises(ConfigError, match="columnNameOfCorruptRecord: expected a name that no other column has"):
        schema.default_columns(options)


@pytest.mark.parametrize(
    ("columns", "more", "verified"),
    [
        ("timestamp,size", {}, False),
        ("key", {}, False),
        ("value", {}, True),
        ("value", {"verifyChecksum": "false"}, False),
        ("size", {"verifyChecksum": "true"}, True),
        ("size,crcOk", {"verifyChecksum": "false"}, True),
        ("size,_corrupt_record", {"mode": "PERMISSIVE", "verifyChecksum": "false"}, True),
    ],
)
def test_crc_is_verified_only_for_columns_that_need_it(columns: str, more: dict[str, str], verified: bool) -> None:
    options = ReadOptions.of({"path": "d", "columns": columns, **more})
    assert schema.is_verified(schema.default_columns(options), options) is verified
