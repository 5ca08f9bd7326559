"""The metadata of a subscription: encoding, and changes of which only the owner may make any."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyreplog.cursors.cursor_pages import PAGE_BYTES, Chains, Pages, parse_page
from pyreplog.cursors.subscription_config import SubscriptionConfig
from pyreplog.cursors.subscription_metadata import (
    HOME_PROPERTY,
    SETTINGS_PROPERTY,
    SNAPSHOT_BYTES_MAX,
    SubscriptionMetadata,
    TopicEpoch,
    change_subscription,
    create_subscription,
    delete_subscription,
    list_subscriptions,
    load_subscription,
    owner_token,
    subscription_key,
    take_over,
)
from pyreplog.errors import (
    InvalidArgumentError,
    InvalidEntryError,
    InvalidMetadataError,
    KeyExistsError,
    MetadataUnavailableError,
    NoSuchSubscriptionError,
    OutcomeUnknownError,
    TopicFencedError,
)
from pyreplog.metadata.memory import MemoryStore
from tests.ledger.fault_injection import FailingStore

MADE = SubscriptionMetadata(
    token="t", created_us=5, type="shared", properties={"a": "b"}, owner="o/1", snapshot=b"\0\xff", cursor_ledger=7,
    cursor_from=3,
)  # fmt: skip


@pytest.fixture
def memory() -> Iterator[MemoryStore]:
    with MemoryStore() as store:
        yield store


@pytest.fixture
def store(memory: MemoryStore) -> FailingStore:
    create_subscription(memory, "t", "s", MADE)
    return FailingStore(memory)


def cleared(subscription_metadata: SubscriptionMetadata) -> SubscriptionMetadata:
    return dataclasses.replace(subscription_metadata, cursor_ledger=-1, cursor_from=0)


@given(
    st.binary(max_size=300), st.integers(-1, 1 << 60), st.integers(0, 1 << 60),
    st.dictionaries(st.text(max_size=5), st.text(max_size=5)),
)  # fmt: skip
def test_subscription_metadata_are_decoded_as_encoded(
    snapshot: bytes, ledger: int, first: int, properties: dict[str, str]
) -> None:
    new_dataclasses = dataclasses.replace(
        MADE, snapshot=snapshot, cursor_ledger=ledger, cursor_from=first, properties=properties
    )
    assert SubscriptionMetadata.decode(new_dataclasses.encode()) == new_dataclasses


@pytest.mark.parametrize(
    "wrong",
    [
        {"version": 0}, {"type": "other"}, {"token": 1}, {"created_us": True}, {"cursor_ledger": -2},
        {"cursor_from": -1}, {"durable": 1}, {"snapshot": "?"}, {"properties": {"a": 1}}, {"properties": []},
        {"snapshot": "A" * (SNAPSHOT_BYTES_MAX * 2)}, {"properties": {SETTINGS_PROPERTY: "[]"}},
        {"properties": {SETTINGS_PROPERTY: "{"}}, {"properties": {SETTINGS_PROPERTY: '{"max_unacked":0}'}},
    ],
)  # fmt: skip
def test_decode_of_invalid_subscription_metadata_raises(wrong: dict[str, object]) -> None:
    with pytest.raises(InvalidMetadataError):
        SubscriptionMetadata.decode(json.dumps({**json.loads(MADE.encode()), **wrong}).encode())


OLDER_FIELDS = {
    "version", "min_reader", "token", "created_us", "type", "durable", "properties", "owner", "snapshot", "cursor_ledger",
    "cursor_from", "moved_us",
}  # fmt: skip


def test_settings_are_a_property_that_older_readers_keep() -> None:
    """Readers of version 1 refused a field that they did not know."""
    config = SubscriptionConfig(type="key_shared", max_redeliveries=3, dead_letter="ä")
    stored = MADE.with_config(config)
    body = json.loads(stored.encode())
    assert body.keys() == OLDER_FIELDS
    assert body["type"] == "key_shared"
    assert json.loads(body["properties"].pop(SETTINGS_PROPERTY)) == {"max_redeliveries": 3, "dead_letter": "ä"}
    assert body["properties"] == MADE.properties
    assert SubscriptionMetadata.decode(stored.encode()) == stored
    assert (stored.config, MADE.config) == (config, SubscriptionConfig(type="shared"))
    assert stored.with_config(SubscriptionConfig(type="shared")) == MADE
    assert SETTINGS_PROPERTY not in json.loads(MADE.encode())["properties"]


def test_home_is_a_property_that_older_readers_keep() -> None:
    stored = dataclasses.replace(MADE, home="1/ab")
    body = json.loads(stored.encode())
    assert body.keys() == OLDER_FIELDS
    assert body["properties"] == {**MADE.properties, HOME_PROPERTY: "1/ab"}
    assert SubscriptionMetadata.decode(stored.encode()) == stored
    assert HOME_PROPERTY not in json.loads(MADE.encode())["properties"]
    body["properties"][HOME_PROPERTY] = ["1/ab"]
    with pytest.raises(InvalidMetadataError, match="home"):
        SubscriptionMetadata.decode(json.dumps(body).encode())


def test_settings_that_a_newer_build_stored_are_kept() -> None:
    body = json.loads(MADE.encode())
    body["properties"][SETTINGS_PROPERTY] = json.dumps({"of_tomorrow": [1], "nack_min_ms": 7})
    subscription_metadata = SubscriptionMetadata.decode(json.dumps(body).encode())
    assert subscription_metadata.config == SubscriptionConfig(type="shared", nack_min_ms=7)
    changed = subscription_metadata.with_config(SubscriptionConfig(max_unacked=9))
    assert json.loads(json.loads(changed.encode())["properties"][SETTINGS_PROPERTY]) == {
        "of_tomorrow": [1],
        "max_unacked": 9,
    }


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b"\xff", b"[" * 100_000])
def test_malformed_subscription_metadata_are_refused(data: bytes) -> None:
    with pytest.raises(InvalidMetadataError):
        SubscriptionMetadata.decode(data)


def test_names_are_listed_as_they_were_given(memory: MemoryStore) -> None:
    names = sorted(["a/b", "..", "ä b", "%2F"])
    for name in names:
        create_subscription(memory, "x/y", name, MADE)
    assert list_subscriptions(memory, "x/y") == names
    assert list_subscriptions(memory, "x") == []
    with pytest.raises(InvalidArgumentError):
        subscription_key("t", "a\nb")


def test_subscription_is_created_once_in_spite_of_lost_replies(memory: MemoryStore) -> None:
    store = FailingStore(memory)
    store.fail("create", OutcomeUnknownError("lost"), done=True)
    create_subscription(store, "t", "s", MADE)  # type: ignore[arg-type]
    with pytest.raises(KeyExistsError):
        create_subscription(memory, "t", "s", dataclasses.replace(MADE, token="another"))
    store.fail("create", OutcomeUnknownError("lost"))
    with pytest.raises(OutcomeUnknownError):
        create_subscription(store, "t", "u", MADE)  # type: ignore[arg-type]


def test_only_the_owner_changes_subscription_metadata(memory: MemoryStore, store: FailingStore) -> None:
    assert change_subscription(memory, "t", "s", "o/1", cleared) == cleared(MADE)
    assert take_over(memory, "t", "s", "o/2").owner == "o/2"
    with pytest.raises(TopicFencedError, match="o/2"):
        change_subscription(memory, "t", "s", "o/1", lambda report: report)
    delete_subscription(memory, "t", "s")
    for call in (
        lambda: change_subscription(memory, "t", "s", "o/2", cleared),
        lambda: take_over(memory, "t", "s", "o/3"),
        lambda: load_subscription(memory, "t", "s"),
        lambda: delete_subscription(memory, "t", "s"),
    ):
        with pytest.raises(NoSuchSubscriptionError):
            call()


def test_a_change_that_meets_another_is_made_of_what_is_there(memory: MemoryStore, store: FailingStore) -> None:
    seen = []

    def change(subscription_metadata: SubscriptionMetadata) -> SubscriptionMetadata:
        if not seen:
            change_subscription(memory, "t", "s", "o/1", lambda it: dataclasses.replace(it, properties={"new": "1"}))
        seen.append(subscription_metadata)
        return cleared(subscription_metadata)

    new_change = change_subscription(memory, "t", "s", "o/1", change)
    assert (new_change.properties, new_change.cursor_ledger, len(seen)) == ({"new": "1"}, -1, 2)
    assert load_subscription(memory, "t", "s") == new_change


@pytest.mark.parametrize("done", [True, False])
def test_a_lost_answer_is_asked_for_again(memory: MemoryStore, store: FailingStore, done: bool) -> None:
    store.fail("put", OutcomeUnknownError("lost"), done=done)
    with pytest.raises(OutcomeUnknownError):
        change_subscription(store, "t", "s", "o/1", cleared)  # type: ignore[arg-type]
    assert change_subscription(store, "t", "s", "o/1", cleared) == cleared(MADE)  # type: ignore[arg-type]
    assert store.calls.count("put") == (1 if done else 2)
    store.fail("put", OutcomeUnknownError("lost"), done=done)
    assert take_over(store, "t", "s", "o/2").owner == "o/2"  # type: ignore[arg-type]
    store.fail("get", MetadataUnavailableError("away"))
    with pytest.raises(MetadataUnavailableError):
        take_over(store, "t", "s", "o/3")  # type: ignore[arg-type]


# ---- entries of cursor ledgers ---------------------------------------------------------------------------------

RECORDS = st.lists(st.tuples(st.sampled_from(["a", "ä", "c" * 200]), st.integers(0, 3 * PAGE_BYTES), st.booleans()))


@given(RECORDS)
def test_pages_of_cursors_are_decoded_as_encoded(records: list[tuple[str, int, bool]]) -> None:
    pages, chains = Pages(), Chains()
    begun: dict[str, list[tuple[int, bytes]]] = {}
    for number, (name, size, whole) in enumerate(records):
        data = (b"%d " % number).ljust(size, b".")
        entry = pages.add(("t", name), data, whole=whole)
        kept = [] if whole else begun.get(name, [])
        begun[name] = [*kept, (entry, data)]
    entries = pages.finish()
    for entry, page in enumerate(entries):
        assert len(page) <= PAGE_BYTES
        chains.add(page, 9, entry)
    for name in ("a", "ä", "c" * 200):
        for since in range(len(entries) + 1):
            expected = [data for entry, data in begun.get(name, []) if entry >= since]
            assert chains.records(("t", name), since) == expected
    assert chains.nbytes == sum(len(data) for kept in begun.values() for _, data in kept)


def test_small_records_share_a_page_and_a_record_larger_than_a_page_begins_one() -> None:
    pages = Pages()
    assert [pages.add(("t", f"s{at}"), b"x" * 100, whole=True) for at in range(1000)] == [0] * 1000
    assert pages.add(("t", "large"), b"x" * (PAGE_BYTES + 1), whole=True) == 1
    assert len(pages.finish()) == 3
    alone = Pages()
    assert alone.add(("t", "large"), b"x" * (PAGE_BYTES + 1), whole=True) == 0
    assert len(alone.finish()) == 2


def test_a_record_whose_end_is_missing_is_none() -> None:
    pages, chains = Pages(), Chains()
    pages.add(("t", "s"), b"1", whole=True)
    pages.add(("t", "s"), b"x" * PAGE_BYTES, whole=True)
    first, second, *rest = pages.finish()
    chains.add(first, 1, 0)
    chains.add(second, 1, 1)
    assert chains.records(("t", "s"), 0) == [b"1"], "nor does it replace what was there"
    assert rest
    behind = Chains()
    behind.add(rest[-1], 1, 2)
    assert behind.records(("t", "s"), 0) == []


def test_records_behind_the_end_of_one_whose_beginning_was_not_read_are_read() -> None:
    pages, chains = Pages(), Chains()
    pages.add(("t", "large"), b"x" * PAGE_BYTES, whole=True)
    pages.add(("t", "s"), b"1", whole=True)
    _, last = pages.finish()
    chains.add(last, 1, 1)
    assert chains.records(("t", "large"), 0) == [] and chains.records(("t", "s"), 0) == [b"1"]


def test_damaged_page_raises_invalid_entry_error_with_its_position() -> None:
    pages = Pages()
    pages.add(("t", "s"), b"record", whole=True)
    (page,) = pages.finish()
    for cut in range(len(page)):
        with pytest.raises(InvalidEntryError, match="ledger 1, entry 2, byte"):
            list(parse_page(page[:cut], 1, 2))
    for wrong, message in {
        b"XXXX" + page[4:]: "byte 0: expected b'RPCU', found b'XXXX'",
        page + b"\0": "byte 32: expected the end of the entry, found 1 bytes more",
        page[:6] + b"\2" + page[7:]: r"byte 4: expected a version that 1 can read, found \(1, 2\)",
        page[:23]: "byte 12: expected a record's 12 bytes, found 11",
        page[:24]: "byte 12: expected 8 bytes of names and record, found 0",
        page[:24] + b"\xff" + page[25:]: "byte 24: expected names in UTF-8",
    }.items():
        with pytest.raises(InvalidEntryError, match=f"ledger 1, entry 2, {message}"):
            list(parse_page(wrong, 1, 2))


@pytest.mark.parametrize("process", ["a", "b"])
def test_a_former_owner_does_not_take_a_subscription_back(memory: MemoryStore, process: str) -> None:
    create_subscription(memory, "t", "s", MADE)
    latest = owner_token("a", 1, TopicEpoch("t1", 10))
    assert take_over(memory, "t", "s", latest).owner == latest
    for epoch in (1, 9):
        with pytest.raises(TopicFencedError, match=f"later owner, {latest}"):
            take_over(memory, "t", "s", owner_token(process, 2, TopicEpoch("t1", epoch)))
    assert load_subscription(memory, "t", "s").owner == latest


@pytest.mark.parametrize(
    "owner",
    [
        owner_token("b", 1, TopicEpoch("t1", 11)), owner_token("a", 2, TopicEpoch("t1", 10)),
        owner_token("b", 1, TopicEpoch("created again", 1)), owner_token("b", 1, None), "b/1/x/t1", "b/1/" + "0" * 9999 + "/t1",
    ],
)  # fmt: skip
def test_later_owners_take_a_subscription_over(memory: MemoryStore, owner: str) -> None:
    """These are a later owner, the same one, an owner of a topic that was created again, and owners with an unknown
    epoch."""
    create_subscription(memory, "t", "s", MADE)
    take_over(memory, "t", "s", owner_token("a", 1, TopicEpoch("t1", 10)))
    assert take_over(memory, "t", "s", owner).owner == owner
    assert take_over(memory, "t", "s", owner_token("c", 1, TopicEpoch("t1", 12))).owner.startswith("c/1/12")
