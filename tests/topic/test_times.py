"""Times as arguments: datetimes with a time zone, or microseconds since 1970; other values are refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import numpy as np
import pytest

from pyreplog.errors import InvalidArgumentError, WrongTypeError
from pyreplog.topic.model.times import (
    PLAIN_MAX_US,
    PLAIN_MIN_US,
    YEAR_2001_US,
    YEAR_2100_US,
    KnownTimes,
    as_time_us,
    as_times_us,
    known_time,
)
from tests.topic.remoting import PATIENCE_S, PLAIN, ServedCluster

MOMENT = datetime(2033, 5, 18, 3, 33, 20, 7, tzinfo=UTC)
MOMENT_US = 2_000_000_000_000_007
CLOCK_UNSET = datetime(1970, 1, 1, 0, 20, tzinfo=UTC)
"""As a number of microseconds it might be meant as seconds; as a datetime it is unambiguous."""

WHERE = ("local", "remote", "local partitioned", "remote partitioned")
Topics = dict[str, Any]


@pytest.fixture(scope="module")
def topics(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Topics]:
    with ExitStack() as stack:
        served = ServedCluster(tmp_path_factory.mktemp("cluster"), stack)
        client = served.client()
        for name, partitions in (("news", {}), ("parts", {"partitions": 2})):
            served.cluster.topic(name, **PLAIN, **partitions)
        cluster = served.cluster
        yield {
            "local": cluster.topic("news"), "remote": client.topic("news"),
            "local partitioned": cluster.topic("parts"), "remote partitioned": client.topic("parts"),
        }  # fmt: skip


def event_times(topic: Any) -> list[int]:
    """Return all event times of a topic, in ascending order."""
    places = range(topic.partitions) if hasattr(topic, "partitions") else [None]
    batches = [batch for at in places for batch in (topic.read() if at is None else topic.read(at))]
    return sorted(message.event_time for batch in batches for message in batch if message.event_time is not None)


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize(
    ("time", "stored"),
    [
        (MOMENT, MOMENT_US),
        (MOMENT.astimezone(timezone(timedelta(hours=-7))), MOMENT_US),
        (np.int64(MOMENT_US), MOMENT_US),
        (CLOCK_UNSET, 1_200_000_000),
        (datetime(1932, 1, 1, tzinfo=UTC), -1_199_232_000_000_000),
        (0, 0),
    ],
)
def test_an_event_time_is_an_aware_datetime_or_microseconds(topics: Topics, where: str, time: Any, stored: int) -> None:
    topic = topics[where]
    before = event_times(topic)
    for to in (topic, topic.producer("p")):
        to.publish(b"v", b"k", event_time=time)
        to.submit(b"v", b"k", event_time=time).result(PATIENCE_S)
        to.publish_batch([b"v", b"w"], [b"k", b"l"], event_times=[time, None])
        to.submit_batch(iter([b"v"]), event_times=iter([time])).result(PATIENCE_S)
    assert event_times(topic) == sorted([*before, *[stored] * 8])


REFUSED: dict[str, tuple[Any, str]] = {
    "naive": (datetime(2033, 5, 18), "expected a datetime with a time zone, found"),
    "seconds": (1_800_000_000, "look like seconds: multiply by 1,000,000, or give an aware datetime"),
    "milliseconds": (1_800_000_000_000, "look like milliseconds: multiply by 1,000, or give an aware datetime"),
    "nanoseconds": (1_800_000_000_000_000_000, "look like nanoseconds: divide by 1,000, or give an aware datetime"),
}


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("name", REFUSED)
def test_a_time_of_another_unit_is_refused_and_nothing_published(topics: Topics, where: str, name: str) -> None:
    wrong, message = REFUSED[name]
    topic = topics[where]
    before = event_times(topic)
    forms: list[Callable[[list[Any]], Any]] = [list, tuple, iter, *([] if name == "naive" else [np.array])]
    for to in (topic, topic.producer("p")):
        for call in (to.publish, to.submit):
            with pytest.raises(InvalidArgumentError, match=f"event_time: .*{message}"):
                call(b"v", event_time=wrong)
        for call in (to.publish_batch, to.submit_batch):
            for form in forms:
                with pytest.raises(InvalidArgumentError, match=f"event_times: .*{message}"):
                    call([b"v", b"w"], [b"a", b"b"], event_times=form([MOMENT_US, wrong]))
    assert event_times(topic) == before


@pytest.mark.parametrize("unit", [1, 1_000])
def test_the_bounds_of_what_is_refused(unit: int) -> None:
    """Refused are numbers that are seconds or milliseconds of moments from 2001 to 2100; other integers are accepted."""
    first, end = (moment // 1_000_000 * unit for moment in (YEAR_2001_US, YEAR_2100_US))
    for time in (first, end - 1):
        for call in (lambda time: as_time_us("t", time), lambda time: as_times_us("t", [time])):
            with pytest.raises(InvalidArgumentError):
                call(time)
        with pytest.raises(InvalidArgumentError):
            as_times_us("t", np.array([time]))
    for time in (first - 1, end, -first):
        assert as_time_us("t", time) == time
        assert as_times_us("t", [time]) == [time]
        assert as_times_us("t", np.array([time])).tolist() == [time]


def test_nanoseconds_begin_behind_all_years() -> None:
    assert as_time_us("t", PLAIN_MAX_US - 1) == PLAIN_MAX_US - 1 and as_time_us("t", PLAIN_MIN_US) == PLAIN_MIN_US
    with pytest.raises(InvalidArgumentError, match="nanoseconds"):
        as_time_us("t", PLAIN_MAX_US)
    with pytest.raises(InvalidArgumentError, match="nanoseconds"):
        as_times_us("t", np.array([0, PLAIN_MAX_US]))


def test_the_row_of_a_wrong_time_is_named() -> None:
    for form in (list, np.array):
        with pytest.raises(InvalidArgumentError, match="found 1800000000 for message 2: these look like seconds"):
            as_times_us("event_times", form([0, MOMENT_US, 1_800_000_000]))


def test_stored_times_that_look_like_seconds_are_accepted() -> None:
    """Dead letters and rows of typed columns are published with the times that they have."""
    stored = [known_time(1_800_000_000), known_time(None), known_time(PLAIN_MAX_US)]
    assert as_times_us("t", as_times_us("t", stored)) == [1_800_000_000, None, PLAIN_MAX_US]
    assert type(as_time_us("t", stored[0])) is int
    column = np.array([1_800_000_000]).view(KnownTimes)
    assert as_times_us("t", column[[0]]) is not None
    assert as_times_us("t", as_times_us("t", [CLOCK_UNSET])) == [1_200_000_000], "partitions check their parts again"


def test_value_that_is_no_time_raises_wrong_type_error() -> None:
    for wrong in (True, 1.5, "now", b"", timedelta(1)):
        with pytest.raises(WrongTypeError, match="event_time: expected an int, of microseconds, or an aware datetime"):
            as_time_us("event_time", wrong)  # type: ignore[arg-type]
