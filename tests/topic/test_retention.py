"""Which ledgers are trimmed: none that a durable cursor may need again, and of the others those that are too old or too
many."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyreplog.config import LogConfig
from pyreplog.errors import ConfigError
from pyreplog.topic.model.chain import LedgerChain
from pyreplog.topic.model.config import TopicConfig
from pyreplog.topic.model.positions import TopicPosition
from pyreplog.topic.model.retention import ClosedLedger, trimmable

S = 1_000_000
NOW = 1_700_000_000 * S
MB = 1 << 20


def chain(*sizes: int, closed_s: float = 3600.0) -> list[ClosedLedger]:
    """Return ledgers of one message per byte that were all closed so many seconds ago."""
    ends = [sum(sizes[: n + 1]) for n in range(len(sizes))]
    return [
        ClosedLedger(TopicPosition(end, end, end), NOW - round(closed_s * S), size)
        for end, size in zip(ends, sizes, strict=True)
    ]


def count(
    ledgers: list[ClosedLedger], slowest: int | None, *, open_size: int = 0, bytes_: int | None = 0, ms: int | None = 0
) -> int:
    mark = None if slowest is None else TopicPosition(slowest, slowest, slowest)
    kept = sum(ledger.size for ledger in ledgers) + open_size
    return trimmable(ledgers, mark, kept_bytes=kept, retention_bytes=bytes_, retention_ms=ms, now_us=NOW)


@pytest.mark.parametrize(
    "slowest, goes", [(0, 0), (9, 0), (10, 1), (19, 1), (20, 2), (25, 2), (30, 3), (31, 3), (None, 3)]
)
def test_trim_keeps_ledgers_that_the_slowest_durable_cursor_needs(slowest: int | None, goes: int) -> None:
    assert count(chain(10, 10, 10), slowest, open_size=5) == goes


def test_retention_by_size_trims_whole_ledgers() -> None:
    """Of ten closed megabytes five are kept: five ledgers go, and with the open one six are left."""
    assert count(chain(*[MB] * 10), None, bytes_=5 * MB, ms=None) == 5
    assert count(chain(*[MB] * 10), None, bytes_=5 * MB + 1, ms=None) == 4, "what is kept is not less than that"
    assert count(chain(*[MB] * 10), None, open_size=3 * MB, bytes_=5 * MB, ms=None) == 8, "the open one counts"
    assert count(chain(*[MB] * 10), 3 * MB, bytes_=5 * MB, ms=None) == 3
    assert count(chain(MB, MB), None, bytes_=5 * MB, ms=None) == 0
    assert count(chain(*[MB] * 10), None, bytes_=0, ms=None) == 10, "0 keeps nothing"


def test_retention_by_age_trims_closed_ledgers() -> None:
    ages = [chain(5, closed_s=age)[0] for age in (90, 61, 60, 10)]
    assert count(ages, None, bytes_=None, ms=60_000) == 2
    assert count(ages, 0, bytes_=None, ms=60_000) == 0
    assert count(list(reversed(ages)), None, bytes_=None, ms=60_000) == 0, "it stops at the first that stays"
    assert count(ages, None, bytes_=None, ms=0) == 4, "0 keeps nothing"
    assert count(chain(5, closed_s=-99), None, bytes_=None, ms=0) == 1, "0 keeps nothing, whatever clocks say"


def test_the_first_bound_that_is_reached_counts() -> None:
    ledgers = chain(10, 10, 10, closed_s=30)
    assert count(ledgers, None, bytes_=10, ms=60_000) == 2
    assert count(ledgers, None, bytes_=1000, ms=20_000) == 3


def test_unlimited_retention_trims_no_ledger() -> None:
    assert count(chain(10, 10, closed_s=1e9), None, bytes_=None, ms=None) == 0


def test_empty_ledgers_go_with_their_neighbours() -> None:
    assert count(chain(0, 10, 0, 0, 10), 10) == 4
    assert count(chain(0, 0), 0) == 2


ledgers_of = st.lists(st.tuples(st.integers(0, 50), st.integers(-10, 200)), max_size=8)
limits = st.none() | st.integers(0, 300)


@given(ledgers_of, st.none() | st.integers(0, 300), st.integers(0, 50), limits, limits)
def test_retention_follows_the_documented_rule(drawn, slowest, open_size, bytes_, seconds) -> None:
    ledgers = [
        ledger._replace(closed_us=NOW - age * S)
        for ledger, (_, age) in zip(chain(*[size for size, _ in drawn]), drawn, strict=True)
    ]
    goes = count(ledgers, slowest, open_size=open_size, bytes_=bytes_, ms=None if seconds is None else seconds * 1000)
    total = sum(ledger.size for ledger in ledgers) + open_size

    def may(at: int) -> bool:
        ledger, left = ledgers[at], total - sum(each_ledger.size for each_ledger in ledgers[: at + 1])
        passed = slowest is None or ledger.end.offset <= slowest
        kept_for_age = seconds is None or (seconds > 0 and NOW - ledger.closed_us <= seconds * S)
        kept_for_bytes = bytes_ is None or left < bytes_
        return passed and not (kept_for_age and kept_for_bytes)

    assert all(may(at) for at in range(goes)) and (goes == len(ledgers) or not may(goes))


# ---- settings ----------------------------------------------------------------------------------------------------


def limits_of(config: TopicConfig) -> tuple[int | None, int | None]:
    return config.retention_bytes, config.retention_ms


@pytest.mark.parametrize(
    "settings, wanted",
    [
        ({}, (0, 0)),
        ({"retention_ms": 5}, (None, 5)),
        ({"retention_bytes": 5}, (5, None)),
        ({"retention_ms": None}, (None, None)),
        ({"retention_bytes": None}, (None, None)),
        ({"retention_bytes": 5, "retention_ms": 6}, (5, 6)),
        ({"retention_ms": 0}, (0, 0)),
        ({"retention_bytes": 0, "retention_ms": None}, (0, 0)),
        ({"retention_bytes": None, "retention_ms": 0}, (0, 0)),
    ],
)
def test_a_limit_that_is_set_alone_counts(
    settings: dict[str, int | None], wanted: tuple[int | None, int | None]
) -> None:
    assert limits_of(TopicConfig.of(settings)) == limits_of(TopicConfig().changed(settings)) == wanted


@pytest.mark.parametrize(
    "settings", [{"retention_ms": 5, "retention_bytes": 0}, {"retention_ms": 0, "retention_bytes": 5}]
)
def test_a_limit_beside_a_zero_is_refused_by_topics_and_logs(settings: dict[str, int]) -> None:
    for config in (TopicConfig, LogConfig):
        with pytest.raises(ConfigError, match=r"5 has no effect beside retention_\w+=0, .* give retention_\w+=None"):
            config.of(settings)


def test_a_change_keeps_the_other_limit() -> None:
    both = TopicConfig(retention_bytes=5, retention_ms=6)
    assert limits_of(both.changed({"retention_ms": 7})) == (5, 7)
    assert limits_of(both.changed({"retention_ms": None})) == (5, None)
    assert limits_of(both.changed({"ttl_ms": 1})) == (5, 6)
    assert limits_of(both.changed({"retention_bytes": 0, "retention_ms": 0})) == (0, 0)
    with pytest.raises(ConfigError, match="retention_ms: 6 has no effect beside retention_bytes=0"):
        both.changed({"retention_bytes": 0})


@pytest.mark.parametrize(
    "kept, wanted",
    [
        ((0, 0), (0, 0)),
        ((0, 5), (None, 5)),
        ((5, 0), (5, None)),
        ((None, 0), (None, None)),
        ((0, None), (None, None)),
        ((None, 5), (None, 5)),
        ((5, None), (5, None)),
        ((5, 6), (5, 6)),
        ((None, None), (None, None)),
    ],
)
def test_stored_settings_keep_their_meaning(
    kept: tuple[int | None, int | None], wanted: tuple[int | None, int | None]
) -> None:
    """In metadata, a 0 beside another limit leaves the decision to that limit. Such a pair is not written any more."""
    chain = LedgerChain(topic="t", token="a", epoch=1, owner="me", nonce="b", created_us=1, config=TopicConfig())
    body = json.loads(chain.encode())
    assert (body["config"]["retention_bytes"], body["config"]["retention_ms"]) == (0, 0)
    body["config"].update(retention_bytes=kept[0], retention_ms=kept[1])
    ledger_chain = LedgerChain.decode(json.dumps(body).encode())
    assert limits_of(ledger_chain.config) == wanted
    assert LedgerChain.decode(ledger_chain.encode()) == ledger_chain
