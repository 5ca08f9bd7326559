"""A report of one's own: departures by the hour of the day, from event times."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pyreplog.reports.page.drawings import Buckets
from pyreplog.reports.report import Report, ReportColumn
from pyreplog.reports.snapshot import Snapshot


class DeparturesByHour(Report):
    name = "departures_by_hour"
    title = "Departures by the hour of the day"
    definition = "Flights whose scheduled departure, the event time of their message, is in this hour of any day, UTC."
    figures = (
        ReportColumn("hour", pa.int64(), "0 to 23"),
        ReportColumn("departures", pa.int64(), "flights"),
        ReportColumn("days", pa.int64(), "days on which there are any"),
    )
    needs = ("eventTime",)
    parts = pa.schema([("start", pa.timestamp("us", "UTC")), ("departures", pa.int64())])

    def partial(self, batches: Iterator[pa.RecordBatch]) -> pa.Table:
        """By the beginning of each hour of the year."""
        made = self.parts.empty_table()
        for batch in batches:
            start = pc.floor_temporal(batch["eventTime"].drop_null(), unit="hour")
            ones = pa.repeat(pa.scalar(1, pa.int64()), len(start))
            made = _summed(pa.concat_tables([made, pa.table([start, ones], schema=self.parts)]))
        return made

    def merge(self, partials: pa.Table, snapshot: Snapshot) -> pa.Table:
        hours = _summed(partials)
        hours = hours.append_column("hour", pc.hour(hours["start"]))
        found = hours.group_by("hour").aggregate([("departures", "sum"), ("start", "count")])
        departures, days = np.zeros((2, 24), np.int64)
        departures[found["hour"]], days[found["hour"]] = found["departures_sum"], found["start_count"]
        return self.table({"hour": np.arange(24), "departures": departures, "days": days})


PLOT = Buckets("hour", "departures", (), "hour of the day, UTC")


def _summed(table: pa.Table) -> pa.Table:
    found = table.group_by("start").aggregate([("departures", "sum")])
    return found.rename_columns(["start", "departures"])
