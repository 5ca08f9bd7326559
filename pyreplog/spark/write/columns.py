"""Columns that are written: Kafka's by name and type; which of a DataFrame's they are, checked before rows come."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from pyreplog.errors import ConfigError
from pyreplog.spark.write.options import WriteOptions

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_BYTES = ("binary", "string")
_TIME = ("timestamp",)

TYPES = {
    "value": _BYTES,
    "key": _BYTES,
    "headers": ("array<struct<key:string,value:binary>>",),
    "eventTime": _TIME,
    "timestamp": _TIME,
    "topic": ("string",),
}
"""By name, as Spark writes them; `timestamp` is another name of `eventTime`, as Kafka has it."""

_PLACES = {name.lower(): name for name in TYPES}


class WrittenColumns(NamedTuple):
    """Where each is in a batch; None: there is none."""

    value: int
    key: int | None
    headers: int | None
    event_time: int | None
    topic: int | None


def written_columns(schema: StructType, options: WriteOptions) -> WrittenColumns:
    """Of the DataFrame that is written; names are not told apart by case, as in Spark.

    ConfigError: a column is unknown, of another type, there twice or missing; or neither a column nor an option says
    which topic.
    """
    places = dict[str, int]()
    for at, column in enumerate(schema.fields):
        name = _PLACES.get(column.name.lower())
        if name is None:
            raise ConfigError(f"unknown column {column.name!r}; for writing there are {', '.join(TYPES)}")
        found = column.dataType.simpleString()
        if found not in TYPES[name]:
            raise ConfigError(f"column {name}: expected the type {' or '.join(TYPES[name])}, found {found}")
        if name in places:
            raise ConfigError(f"column {name}: expected once, found twice")
        places[name] = at
    if "value" not in places:
        raise ConfigError(f"column value: expected one, found {', '.join(places) or 'none'}")
    if "eventTime" in places and "timestamp" in places:
        raise ConfigError("columns eventTime, timestamp: both are the event time; expected one of them, found two")
    if "topic" not in places and options.topic is None:
        raise ConfigError("topic: expected the option or a column of that name, found neither")
    return WrittenColumns(
        places["value"],
        places.get("key"),
        places.get("headers"),
        places.get("eventTime", places.get("timestamp")),
        places.get("topic") if options.topic is None else None,
    )
