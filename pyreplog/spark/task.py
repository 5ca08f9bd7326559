"""The input partition that Spark sends to an executor."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import InputPartition

if TYPE_CHECKING:
    from pyreplog.tables.log_slices import Part


class ReadTask(InputPartition):
    """The slices that one task reads, all of one kind."""

    def __init__(self, slices: tuple[Part, ...]) -> None:
        super().__init__(slices)
