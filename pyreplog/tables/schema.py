"""The columns of a read: those of Kafka's source, by name and type, and further columns of a record."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from pyreplog.errors import ConfigError
from pyreplog.tables.options import ReadOptions

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


class Column(NamedTuple):
    """A column of the result.

    Attributes:
        name: its name.
        type: its type, as Spark writes it.
    """

    name: str
    type: str


USUAL = (
    Column("key", "binary"), Column("value", "binary"), Column("topic", "string"), Column("partition", "int"),
    Column("offset", "bigint"), Column("timestamp", "timestamp"), Column("timestampType", "int"),
)  # fmt: skip
HEADERS = (Column("headers", "array<struct<key:string,value:binary>>"),)
METADATA = (
    Column("size", "int"), Column("ledgerId", "bigint"), Column("entryId", "bigint"), Column("segment", "string"),
    Column("position", "bigint"), Column("producerName", "string"), Column("sequenceId", "bigint"),
    Column("publishTime", "timestamp"), Column("eventTime", "timestamp"), Column("crc", "bigint"),
    Column("storedSize", "int"), Column("crcOk", "boolean"), Column("bookie", "string"),
    Column("originCluster", "string"), Column("originOffset", "bigint"),
    Column("originPublishTime", "timestamp"),
)  # fmt: skip

NEED_CRC = {"value", "crcOk"}
"""Columns that are read unverified only if verifyChecksum is false."""


def known_columns(options: ReadOptions) -> tuple[Column, ...]:
    """Return all columns that may be read.

    Args:
        options: options of the read; mode "PERMISSIVE" adds the column for damaged bytes.

    Raises:
        ConfigError: `columnNameOfCorruptRecord` is the name of another column.
    """
    known = (*USUAL, *HEADERS, *METADATA)
    if options.mode != "PERMISSIVE":
        return known
    name = options.column_name_of_corrupt_record
    if name in {column.name for column in known}:
        raise ConfigError(f"columnNameOfCorruptRecord: expected a name that no other column has, found {name!r}")
    return (*known, Column(name, "binary"))


def default_columns(options: ReadOptions) -> tuple[Column, ...]:
    """Return the columns that are read if no schema is given.

    Args:
        options: options of the read.

    Raises:
        ConfigError: `columns` names an unknown column.
    """
    known = known_columns(options)
    if options.columns is not None:
        return tuple(_find(name, known) for name in options.columns)
    chosen = (*USUAL, *(HEADERS if options.include_headers else ()), *(METADATA if options.include_metadata else ()))
    return chosen + known[len((*USUAL, *HEADERS, *METADATA)) :]


def planning_options(options: ReadOptions, columns: tuple[Column, ...]) -> ReadOptions:
    """Return options whose plan has what the columns need, also if they are those of a schema that a user gave."""
    return replace(options, columns=tuple(column.name for column in columns))


def as_ddl(columns: tuple[Column, ...]) -> str:
    """Return a schema in Spark's notation."""
    return ", ".join(f"`{name.replace('`', '``')}` {kind}" for name, kind in columns)


def columns_of(schema: StructType, options: ReadOptions) -> tuple[Column, ...]:
    """Return the columns of a schema that a user gave.

    Raises ConfigError for a column that is unknown, has another type, occurs twice, or is NOT NULL.
    """
    known, chosen = known_columns(options), list[Column]()
    for field in schema.fields:
        column = _find(field.name, known)
        kind = field.dataType.simpleString()
        if kind != column.type:
            raise ConfigError(f"column {column.name}: expected the type {column.type}, found {kind}")
        if not field.nullable:
            raise ConfigError(f"column {column.name}: expected a column that may be null, found NOT NULL")
        if column in chosen:
            raise ConfigError(f"column {column.name}: expected once, found twice")
        chosen.append(column)
    return tuple(chosen)


def _find(name: str, known: tuple[Column, ...]) -> Column:
    for column in known:
        if column.name == name:
            return column
    raise ConfigError(f"unknown column {name!r}; there are {', '.join(column.name for column in known)}")


def is_verified(columns: tuple[Column, ...], options: ReadOptions) -> bool:
    """Whether records are checked against their CRC-32C, which touches their values."""
    names = {column.name for column in columns}
    if options.mode == "PERMISSIVE" and options.column_name_of_corrupt_record in names:
        return True
    if "crcOk" in names or options.verify_checksum is None:
        return bool(names & NEED_CRC)
    return options.verify_checksum
