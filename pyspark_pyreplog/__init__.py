"""How Spark finds the data source of pyreplog: it imports every top-level package whose name begins with `pyspark_`.

Nothing is loaded before `DefaultSource` is asked for; where that cannot be, the sources of others are still found.
"""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    if name == "DefaultSource":
        try:
            from pyreplog.spark.source import PyreplogDataSource
        except ImportError as error:
            raise AttributeError(f"{__name__}.{name}: {error}") from error
        return PyreplogDataSource
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
