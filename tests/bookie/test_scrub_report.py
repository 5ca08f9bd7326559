"""What a bookie tells of its scrub, as bytes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pyreplog.bookie.scrub_report import LastScrub, ScrubReport
from pyreplog.errors import InvalidMessageError

REPORTS = [ScrubReport(True, 1, 2, 3, 4, 5), ScrubReport(False, 6, 7, 8, 9, 10, LastScrub(11, 12, 13, 14))]


@pytest.mark.parametrize("report", REPORTS)
def test_a_scrub_report_is_decoded_as_encoded(report: ScrubReport) -> None:
    assert ScrubReport.decode(report.encode()) == ScrubReport.decode(memoryview(report.encode())) == report


def test_fields_of_a_later_version_are_skipped() -> None:
    body = json.loads(REPORTS[1].encode())
    body["later"] = body["last"]["later"] = 1
    assert ScrubReport.decode(json.dumps(body).encode()) == REPORTS[1]


def spoiled() -> list[Any]:
    body = json.loads(REPORTS[1].encode())
    without = [{key: value for key, value in body.items() if key != name} for name in body if name != "last"]
    last = body["last"]
    without_last = [{**body, "last": {key: value for key, value in last.items() if key != name}} for name in last]
    others = [{**body, name: "1"} for name in body] + [{**body, "last": {**last, name: None}} for name in last]
    return [*without, *without_last, *others, {**body, "is_asked": 1}, {**body, "last": [1]}, [], 1, None]


@pytest.mark.parametrize("body", spoiled())
def test_decode_of_an_invalid_scrub_report_raises(body: Any) -> None:
    with pytest.raises(InvalidMessageError, match="report of a scrub"):
        ScrubReport.decode(json.dumps(body).encode())


@pytest.mark.parametrize("data", [b"", b"{", REPORTS[0].encode()[:-1], b"\xff" * 200])
def test_bytes_that_are_no_object(data: bytes) -> None:
    with pytest.raises(InvalidMessageError, match="report of a scrub"):
        ScrubReport.decode(data)
