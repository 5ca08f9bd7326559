"""The columns of a DataFrame that are written: those of Kafka's sink, by name and type, checked before rows arrive."""

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
"""Types by name, in Spark's notation; `timestamp` is another name of `eventTime`, as in Kafka."""

_PLACES = {name.lower(): name for name in TYPES}


class WrittenColumns(NamedTuple):
    """The index of each column in a batch; None: the DataFrame does not have it."""

    value: int
    key: int | None
    headers: int | None
    event_time: int | None
    topic: int | None


def written_columns(schema: StructType, options: WriteOptions) -> WrittenColumns:
    """Return the columns of the DataFrame that is written. The case of names does not matter, as in Spark.

    Raises ConfigError for a column that is unknown, has another type, occurs twice or is missing; and if neither a
    column nor an option names the topic.
    """
    places = dict[str, int]()
    for at, column in enumerate(schema.fields):
        name = _PLACES.get(column.name.lower())
        if name is None:
            raise ConfigError(f"unknown column {column.name!r}; for writing there are {', '.join(TYPES)}")
        kind = column.dataType.simpleString()
        if kind not in TYPES[name]:
            raise ConfigError(f"column {name}: expected the type {' or '.join(TYPES[name])}, found {kind}")
        if name in places:
            raise ConfigError(f"column {name}: expected once, found twice")
        places[name] = at
    if "value" not in places:
        raise ConfigError(f"column value: expected in the DataFrame, found only {', '.join(places) or 'no column'}")
    if "eventTime" in places and "timestamp" in places:
        raise ConfigError("columns eventTime, timestamp: both are the event time; expected one of them, found both")
    if "topic" not in places and options.topic is None:
        raise ConfigError("topic: expected the option or a column of that name, found neither")
    return WrittenColumns(
        places["value"],
        places.get("key"),
        places.get("headers"),
        places.get("eventTime", places.get("timestamp")),
        places.get("topic") if options.topic is None else None,
    )
