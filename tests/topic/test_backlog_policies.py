"""Quotas, expiry and trends: decisions, their subjects, and their stability while entries arrive one by one."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pyreplog.topic.model.backlog import CursorBacklog, Eviction, Quota, QuotaDecision, is_system
from pyreplog.topic.model.config import QUOTA_POLICIES, TopicConfig
from pyreplog.topic.model.positions import ORIGIN, TopicPosition
from pyreplog.topic.model.retention import Expiry, Usage, expired, unused
from pyreplog.topic.model.trend import Sample, trend

S = 1_000_000
NOW = 1_700_000_000 * S


def cursor(name: str, size: int, *, age_s: float | None = None, durable: bool = True) -> CursorBacklog:
    """Return a cursor whose mark is `size` bytes into the topic."""
    return CursorBacklog(
        name, durable, TopicPosition(size, size, size), None if age_s is None else NOW - round(age_s * S)
    )


def decide(config: TopicConfig, end: int, *cursors: CursorBacklog, quota: Quota | None = None) -> QuotaDecision:
    return (quota or Quota()).decide(config, TopicPosition(end, end, end), cursors, NOW)


# ---- quotas ----------------------------------------------------------------------------------------------------


def test_no_quota_decides_nothing() -> None:
    assert decide(TopicConfig(), 1 << 40, cursor("slow", 0, age_s=1e9)) == QuotaDecision()


def test_publishers_wait_or_are_refused_beyond_the_quota() -> None:
    for policy, publishing in (("hold", "held"), ("error", "refused")):
        config = TopicConfig(quota_bytes=1000, quota_policy=policy)
        assert decide(config, 1000, cursor("slow", 0)) == QuotaDecision()
        decision = decide(config, 1001, cursor("fast", 900), cursor("slow", 0))
        assert (decision.publishing, decision.exceeded, decision.evictions, decision.catch_up) == (
            publishing,
            ("bytes",),
            (),
            (),
        )
        assert "slow" in decision.reason and "1001 bytes" in decision.reason and "1000 bytes" in decision.reason


def test_the_quota_is_of_durable_cursors() -> None:
    for policy in QUOTA_POLICIES:
        config = TopicConfig(quota_bytes=1000, quota_ms=1000, quota_policy=policy)
        assert decide(config, 5000, cursor("reader", 0, age_s=99, durable=False)) == QuotaDecision()
        assert decide(config, 5000) == QuotaDecision()


def test_publishers_go_on_at_nine_tenths() -> None:
    """Between the two bounds the state stays, whichever it is."""
    config, quota = TopicConfig(quota_bytes=1000), Quota()
    states = [decide(config, 2000, cursor("a", 2000 - level), quota=quota).publishing
            for level in (950, 1000, 1001, 1000, 950, 901, 900, 950, 1000)]  # fmt: skip
    assert states == ["open", "open", "held", "held", "held", "held", "open", "open", "open"]
    assert decide(config, 2000, cursor("a", 0), quota=quota).publishing == "held"
    stays = decide(config, 2000, cursor("a", 1050), quota=quota)
    assert (stays.publishing, stays.exceeded) == ("held", ("bytes",)) and "950 bytes" in stays.reason
    assert decide(TopicConfig(), 2000, cursor("a", 1050), quota=quota) == QuotaDecision()
    assert decide(config, 2000, cursor("a", 1050), quota=quota).publishing == "open", "the quota was gone meanwhile"


def test_ages_count_by_the_oldest_message() -> None:
    config, quota = TopicConfig(quota_ms=60_000), Quota()
    ages = [("open", 60), ("held", 60.1), ("held", 54.1), ("open", 54), ("open", 59), ("open", None)]
    assert [decide(config, 10, cursor("a", 0, age_s=age), quota=quota).publishing for _, age in ages] == [
        state for state, _ in ages
    ]
    both = TopicConfig(quota_ms=1000, quota_bytes=10, quota_policy="error")
    decision = decide(both, 100, cursor("large", 0, age_s=0.5), cursor("old", 95, age_s=7))
    assert (
        decision.exceeded == ("bytes", "age")
        and "large has 100 bytes" in decision.reason
        and "old has 7.0 s" in decision.reason
    )


def test_eviction_reduces_exceeded_backlogs_to_90_percent_of_the_quota() -> None:
    config = TopicConfig(quota_bytes=1000, quota_ms=10_000, quota_policy="evict")
    decision = decide(
        config, 5000, cursor("both", 3000, age_s=11), cursor("large", 3999, age_s=9.9), cursor("near", 4000, age_s=10),
        cursor("old", 4990, age_s=30), cursor("reader", 0, age_s=99, durable=False),
    )  # fmt: skip
    assert decision.evictions == (
        Eviction("both", 4100, NOW - 9 * S),
        Eviction("large", 4100, None),
        Eviction("old", None, NOW - 9 * S),
    )
    assert (decision.publishing, decision.exceeded) == ("open", ("bytes", "age"))
    assert decide(config, 5000, cursor("both", 4100, age_s=9)) == QuotaDecision()


def test_system_cursors_are_asked_to_catch_up_and_never_evicted() -> None:
    config = TopicConfig(quota_bytes=1000, quota_policy="evict")
    early = decide(config, 5000, cursor("pyreplog.dedup", 4090), cursor("mine", 4090))
    assert early == QuotaDecision(catch_up=("pyreplog.dedup",))
    late = decide(config, 5000, cursor("pyreplog.dedup", 0), cursor("mine", 0))
    assert late.evictions == (Eviction("mine", 4100, None),)
    assert (late.catch_up, late.publishing) == (("pyreplog.dedup",), "held") and "pyreplog.dedup" in late.reason
    assert decide(TopicConfig(quota_bytes=1000), 5000, cursor("pyreplog.geo", 0)).publishing == "held"
    by_age = TopicConfig(quota_ms=1000, quota_policy="evict")
    old = decide(by_age, 5000, cursor("pyreplog.geo", 0, age_s=99))
    assert (old.publishing, old.evictions, old.catch_up) == ("open", (), ("pyreplog.geo",))


names = st.sampled_from(["a", "b", "pyreplog.dedup", "pyreplog.geo.x"])
policies = st.sampled_from(QUOTA_POLICIES)
cursors = st.dictionaries(names, st.tuples(st.integers(0, 3000), st.none() | st.integers(0, 100), st.booleans()))


@given(
    st.lists(cursors, min_size=1, max_size=8),
    policies,
    st.none() | st.integers(1, 4000),
    st.none() | st.integers(0, 99_000),
)
def test_quota_decisions_have_a_reason_and_evict_only_durable_cursors_over_the_quota(rounds, policy, size, age) -> None:
    config, quota = TopicConfig(quota_bytes=size, quota_ms=age, quota_policy=policy), Quota()
    for round_ in rounds:
        cursors = [cursor(name, *where[:1], age_s=where[1], durable=where[2]) for name, where in round_.items()]
        decision = decide(config, 3000, *cursors, quota=quota)
        assert (decision.publishing == "open") == (not decision.reason)
        assert decision.publishing in ("open", "refused" if policy == "error" else "held")
        assert all(is_system(name) for name in decision.catch_up)
        marks = {item.name: item for item in cursors}
        for eviction in decision.evictions:
            mark = marks[eviction.cursor]
            assert policy == "evict" and mark.durable and not is_system(mark.name)
            assert eviction.to_size is None or (
                3000 - eviction.to_size == size * 9 // 10 and eviction.to_size > mark.mark.size
            )
            assert eviction.before_us is None or (mark.oldest_us is not None and mark.oldest_us < eviction.before_us)
            assert (eviction.to_size, eviction.before_us) != (None, None)
        over = any(item.durable and size is not None and 3000 - item.mark.size > size for item in cursors)
        if over and policy != "evict":
            assert decision.publishing != "open"
        evicted = [
            cursor(item.name, next((e.to_size for e in decision.evictions if e.cursor == item.name and e.to_size), item.mark.size),
                   durable=item.durable)
            for item in cursors
        ]  # fmt: skip
        again = decide(TopicConfig(quota_bytes=size, quota_policy=policy), 3000, *evicted)
        assert not again.evictions, "eviction frees enough"


# ---- expiry ----------------------------------------------------------------------------------------------------


def test_old_messages_expire_for_all_but_system_cursors() -> None:
    cursors = [
        cursor("old", 0, age_s=61), cursor("young", 0, age_s=60), cursor("none", 0), cursor("pyreplog.geo", 0, age_s=99),
        cursor("reader", 0, age_s=99, durable=False),
    ]  # fmt: skip
    assert expired(cursors, 60_000, NOW) == [Expiry("old", NOW - 60 * S), Expiry("reader", NOW - 60 * S)]
    assert expired(cursors, None, NOW) == []


def test_expired_subscriptions_are_deleted() -> None:
    since = NOW - 100 * S
    usages = [
        Usage("idle", True, 0, NOW - 61 * S), Usage("used", True, 1, NOW - 999 * S), Usage("recent", True, 0, NOW - 60 * S),
        Usage("reader", False, 0, NOW - 999 * S), Usage("pyreplog.geo", True, 0, NOW - 999 * S),
    ]  # fmt: skip
    assert unused(usages, 60_000, since, NOW) == ["idle"]
    assert unused(usages, None, since, NOW) == []
    assert unused(usages, 60_000, NOW - 60 * S, NOW) == [], "nobody could connect before"
    assert unused(usages, 60_000, NOW - 61 * S, NOW) == ["idle"]


# ---- trends ----------------------------------------------------------------------------------------------------


def test_a_trend_estimates_when_a_backlog_is_drained() -> None:
    falls = [Sample(NOW + t * S, 1000 + 10 * t, 500 + 15 * t, 500 - 5 * t) for t in range(0, 61, 10)]
    actual_trend = trend(falls)
    assert (
        actual_trend.rate_in,
        actual_trend.rate_out,
        actual_trend.drain_s,
        actual_trend.stalled_s,
        actual_trend.stalled,
    ) == (10, 15, 40, 0, False)
    grows = [Sample(NOW + t * S, 1000 + 10 * t, 5 * t, 1000 + 5 * t) for t in range(0, 61, 10)]
    assert trend(grows)[:3] == (10, 5, None)
    assert trend(falls[:1]) == (None, None, None, 0, False)
    assert trend([Sample(NOW, 9, 9, 0)]).drain_s == 0


def test_a_mark_that_stands_still() -> None:
    stands = [Sample(NOW + t * S, 100 + t, 50, 50 + t // 2) for t in range(0, 61, 10)]
    assert trend(stands, stalled_s=60)[3:] == (60, True) and trend(stands, stalled_s=61)[3:] == (60, False)
    assert trend(stands).rate_out > 0, "others are acknowledged behind the one that holds it up"
    moved = [*stands, Sample(NOW + 70 * S, 170, 51, 80)]
    assert trend(moved)[3:] == (0, False)
    idle = [Sample(NOW + t * S, 50, 50, 0) for t in range(0, 301, 10)]
    assert trend(idle)[2:] == (0, 0, False)
    assert trend([*idle, Sample(NOW + 310 * S, 60, 50, 10)]).stalled is False, "it waits since a moment only"


def test_rates_of_a_trend_are_recent() -> None:
    """They do not include messages from before a seek back, nor those of long ago."""
    before = [Sample(NOW + t * S, 1000, 100 * t, 1000 - 100 * t) for t in range(0, 11, 5)]
    after = [Sample(NOW + t * S, 1000, t, 1000 - t) for t in range(20, 41, 10)]
    assert trend([*before, *after]).rate_out == 1
    long_ago = [Sample(NOW - 3600 * S, 0, 0, 0), *after]
    assert trend(long_ago).rate_in == 0
    assert trend([Sample(NOW + 99 * S, 0, 0, 0), *after]).rate_out == 1, "the clock went back"


def test_an_empty_topic_exceeds_no_quota() -> None:
    assert decide(TopicConfig(quota_bytes=1, quota_ms=0), 0, CursorBacklog("a", True, ORIGIN)) == QuotaDecision()
