"""Entry point for Spark, which imports every top-level package whose name begins with `pyspark_` to find data sources.

Nothing is loaded before Spark asks for `DefaultSource`. If loading fails, Spark still finds the sources of other
packages.
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
