"""What clients may use, and what they have used: the machine alone, and the quotas in a metadata store."""

from __future__ import annotations

import random
from itertools import product
from pathlib import Path

import pytest

from pyreplog.errors import InvalidArgumentError, InvalidMetadataError
from pyreplog.kafka.quotas import quota_manager
from pyreplog.kafka.quotas.client_quotas import (
    CLIENT_QUOTAS,
    CONSUMER_BYTE_RATE,
    DEFAULT,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
    ClientQuota,
    QuotaEntity,
    QuotaTable,
    alter_client_quota,
    quota_key,
)
from pyreplog.kafka.quotas.quota_manager import BURST_S, LeakyBucket, QuotaManager
from pyreplog.metadata.sqlite import SQLiteStore

PRODUCE = PRODUCER_BYTE_RATE


def manager_of(*quotas: tuple[QuotaEntity, float], kind: str = PRODUCE) -> QuotaManager:
    manager = QuotaManager()
    manager.replace(QuotaTable(ClientQuota(**entity._asdict(), quotas={kind: value}) for entity, value in quotas))
    return manager


def test_a_client_may_use_at_once_what_it_may_use_in_ten_seconds() -> None:
    manager = manager_of((QuotaEntity(client_id="c"), 1_000))
    assert manager.record(PRODUCE, "u", "c", 10_000, 5_000_000) == 0
    assert manager.record(PRODUCE, "u", "c", 500, 5_000_000) == 500
    assert manager.record(PRODUCE, "u", "c", 0, 5_400_000) == 100
    assert manager.record(PRODUCE, "u", "c", 0, 5_500_000) == 0
    assert manager.throttles[PRODUCE] == (2, 600)
    assert manager.record(PRODUCE, "u", "other", 1 << 40, 5_000_000) == 0
    assert manager.record(CONSUMER_BYTE_RATE, "u", "c", 1 << 40, 5_000_000) == 0
    assert manager.throttles[CONSUMER_BYTE_RATE] == (0, 0)


def test_the_rate_of_a_client_that_obeys_is_its_quota(seed: int) -> None:
    """What it uses is above the burst and the quota of the time by one request at most; it waits no longer than that."""
    rng = random.Random(seed)
    limit = rng.choice((1, 1_000, 1 << 20))
    bucket, used, waited_us, idle_us = LeakyBucket(), 0, 0, 0
    began_us = now_us = rng.randrange(1 << 40)
    for _ in range(300):
        pause_us = rng.choice((0, rng.randrange(3_000_000)))
        idle_us, now_us = idle_us + pause_us, now_us + pause_us
        value = rng.randrange(1, 3 * limit + 2)
        used += value
        throttle_us = bucket.record(value, limit, now_us)
        allowed = limit * (BURST_S + (now_us + throttle_us - began_us) / 1_000_000)
        assert used <= allowed + limit / 1_000 + 1, "it was not throttled enough"
        if throttle_us:
            assert bucket.record(0, limit, now_us + throttle_us + 2) == 0, "it was not told the whole time"
            waited_us += throttle_us
        now_us += throttle_us + 2
    assert waited_us <= used / limit * 1_000_000, "it waited for more than it used"


def test_a_client_that_was_silent_for_long_begins_anew() -> None:
    bucket = LeakyBucket()
    assert bucket.record(1_000_000, 1_000, 5_000_000) == 990_000_000
    assert bucket.record(0, 1_000, 6_000_000) == 989_000_000
    assert bucket.record(0, 1_000, 5_500_000) == 989_000_000, "a thread that was slow knows an earlier time"
    assert bucket.record(10_000, 1_000, 1_100_000_000) == 0


NAMES = {"user": ("u", DEFAULT, None), "client": ("c", DEFAULT, None)}
PRECEDENCE = [QuotaEntity(user, client) for user, client in product(*NAMES.values()) if (user, client) != (None, None)]
"""The most special entity first (KIP-55)."""


def test_the_most_special_quota_counts() -> None:
    for first in range(len(PRECEDENCE)):
        entities = PRECEDENCE[first:]
        quotas = {entity: float(100 + number) for number, entity in enumerate(entities)}
        table = QuotaTable(ClientQuota(**entity._asdict(), quotas={PRODUCE: value}) for entity, value in quotas.items())
        found = table.limit(PRODUCE, "u", "c")
        assert found is not None and found[0] == 100, entities[0]
    assert QuotaTable().limit(PRODUCE, "u", "c") is None


def test_each_kind_of_quota_has_its_own_precedence() -> None:
    table = QuotaTable(
        [
            ClientQuota(user="u", client_id="c", quotas={PRODUCE: 1.0}),
            ClientQuota(client_id=DEFAULT, quotas={PRODUCE: 2.0, CONSUMER_BYTE_RATE: 3.0}),
        ]
    )
    assert table.limit(PRODUCE, "u", "c") == (1.0, QuotaEntity("u", "c"))
    assert table.limit(CONSUMER_BYTE_RATE, "u", "c") == (3.0, QuotaEntity(None, "c"))


def test_quota_entities_share_quotas_by_user_and_client() -> None:
    def throttled(entity: QuotaEntity, *clients: tuple[str, str]) -> list[bool]:
        manager = manager_of((entity, 1_000))
        return [manager.record(PRODUCE, user, client, 6_000, 0) > 0 for user, client in clients]

    same_user, same_client = (("u", "c"), ("u", "d")), (("u", "c"), ("v", "c"))
    assert throttled(QuotaEntity("u"), *same_user) == [False, True], "the clients of a user share its quota"
    assert throttled(QuotaEntity(DEFAULT), *same_user) == [False, True]
    assert throttled(QuotaEntity(DEFAULT), *same_client) == [False, False], "each user has the quota by default"
    assert throttled(QuotaEntity(None, "c"), *same_client) == [False, True]
    assert throttled(QuotaEntity(None, DEFAULT), *same_user) == [False, False]
    assert throttled(QuotaEntity("u", DEFAULT), *same_user) == [False, False]
    assert throttled(QuotaEntity(DEFAULT, DEFAULT), *same_client) == [False, False]


def test_the_time_of_a_request_throttles_for_a_second_at_most() -> None:
    manager = manager_of((QuotaEntity(client_id=DEFAULT), 1.0), kind=REQUEST_PERCENTAGE)
    assert manager.record(REQUEST_PERCENTAGE, "u", "c", 10.0, 0) == 0, "a tenth of a second, in ten seconds"
    assert manager.record(REQUEST_PERCENTAGE, "u", "c", 0.1, 0) == 100
    assert manager.record(REQUEST_PERCENTAGE, "u", "c", 500.0, 0) == 1_000


def test_recorded_use_counts_after_a_quota_changed() -> None:
    manager = manager_of((QuotaEntity(client_id="c"), 1_000))
    assert manager.record(PRODUCE, "u", "c", 10_000, 0) == 0
    manager.replace(QuotaTable([ClientQuota(client_id="c", quotas={PRODUCE: 500.0})]))
    assert manager.record(PRODUCE, "u", "c", 0, 0) == 10_000
    manager.replace(QuotaTable())
    assert manager.record(PRODUCE, "u", "c", 1 << 40, 0) == 0


def test_a_fetch_takes_no_more_than_is_free_in_the_end() -> None:
    manager = manager_of((QuotaEntity("u"), 1_000), kind=CONSUMER_BYTE_RATE)
    assert manager.fetch_bytes_max("u", "c") == 10_000 and manager.fetch_bytes_max("v", "c") is None


def test_only_so_many_clients_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client may have another id in each request."""
    monkeypatch.setattr(quota_manager, "BUCKETS_MAX", 3)
    manager = manager_of((QuotaEntity(client_id=DEFAULT), 1_000))
    for client in ("a", "b", "c", "a", "d"):
        manager.record(PRODUCE, "u", client, 9_000, 0)
    throttles = [manager.record(PRODUCE, "u", client, 2_000, 0) for client in ("a", "c", "d", "b")]
    assert throttles == [10_000, 1_000, 1_000, 0], "the one that was seen first is forgotten"


# ---- the metadata store ---------------------------------------------------------------------------------------


def test_quotas_are_stored_until_none_is_left(tmp_path: Path) -> None:
    with SQLiteStore(tmp_path / "metadata") as store:
        for entity in (*PRECEDENCE, QuotaEntity("a/b \u00fc", "=,<default>")):
            assert alter_client_quota(store, entity, {PRODUCE: 10, REQUEST_PERCENTAGE: 0.5}) == {
                PRODUCE: 10.0,
                REQUEST_PERCENTAGE: 0.5,
            }
            assert alter_client_quota(store, entity, {PRODUCE: None}) == {REQUEST_PERCENTAGE: 0.5}
            stored = store.get(quota_key(entity))
            assert stored is not None and ClientQuota.decode(stored.value).entity == entity
        assert len(store.list(CLIENT_QUOTAS)) == len(PRECEDENCE) + 1
        for entity in PRECEDENCE:
            assert not alter_client_quota(store, entity, {REQUEST_PERCENTAGE: None, CONSUMER_BYTE_RATE: None})
        assert len(store.list(CLIENT_QUOTAS)) == 1


@pytest.mark.parametrize(
    ("kind", "value"),
    [(PRODUCE, 0), (PRODUCE, -1), (PRODUCE, 1.5), (PRODUCE, 1e19), (REQUEST_PERCENTAGE, float("inf")), ("none", 1),
     ("none", None), (REQUEST_PERCENTAGE, float("nan")), ("controller_mutation_rate", 1)],
)  # fmt: skip
def test_invalid_quota_is_refused(tmp_path: Path, kind: str, value: float | None) -> None:
    with SQLiteStore(tmp_path / "metadata") as store:
        with pytest.raises(InvalidArgumentError, match=kind):
            alter_client_quota(store, QuotaEntity("u"), {kind: value})
        with pytest.raises(InvalidArgumentError, match="neither"):
            alter_client_quota(store, QuotaEntity(), {PRODUCE: 1})
        assert store.get(quota_key(QuotaEntity("u"))) is None


@pytest.mark.parametrize(
    "fields",
    [b'"user":null,"client_id":null,"quotas":{}', b'"user":1,"quotas":{}', b'"user":"u","quotas":[]',
     b'"user":"u","quotas":{"producer_byte_rate":0}', b'"user":"u","quotas":{"producer_byte_rate":"x"}'],
)  # fmt: skip
def test_damaged_quota_raises_invalid_metadata_error(fields: bytes) -> None:
    with pytest.raises(InvalidMetadataError, match="client quota"):
        ClientQuota.decode(b'{"version":1,"min_reader":1,' + fields + b"}")
