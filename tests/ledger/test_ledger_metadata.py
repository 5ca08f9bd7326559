"""Metadata of ledgers: which values are valid, and how fragments follow from changes of the ensemble."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyreplog._native.quorum.quorum import write_set
from pyreplog.errors import InvalidMetadataError
from pyreplog.ledger.ledger_metadata import (
    Fragment,
    LedgerMetadata,
    State,
    key_proof,
    ledger_key,
    metadata_key,
)

KEY = ledger_key(b"secret")


def metadata_of(*fragments: tuple[int, str], size: int = 3, **more: Any) -> LedgerMetadata:
    return LedgerMetadata(
        ledger=7,
        ensemble_size=size,
        write_quorum=2,
        ack_quorum=2,
        fragments=tuple(Fragment(first, tuple(bookies)) for first, bookies in fragments or [(0, "abc")]),
        proof=key_proof(KEY),
        **more,
    )


def fragments(metadata: LedgerMetadata) -> dict[int, str]:
    return {first: "".join(ensemble) for first, ensemble in metadata.fragments}


# ---- bytes -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "metadata",
    [
        metadata_of(),
        metadata_of((0, "abc"), (5, "abd"), custom={"owner": "me"}, token="t", created_us=3, durability="appended"),
        metadata_of().in_recovery(),
        metadata_of((0, "abc"), (5, "abd")).closed(9, 100, 10),
        metadata_of().closed(-1, 0, 0),
    ],
)
def test_decoding_gives_what_was_encoded(metadata: LedgerMetadata) -> None:
    assert LedgerMetadata.decode(metadata.encode()) == metadata


@pytest.mark.parametrize(
    "lie",
    [
        {"version": 0},
        {"version": True},
        {"version": 9, "min_reader": "1"},
        {"state": "half-open"},
        {"fragments": []},
        {"fragments": [[1, ["a", "b", "c"]]]},
        {"fragments": [[0, ["a", "b", "c"]], [0, ["a", "b", "d"]]]},
        {"fragments": [[0, ["a", "b", "c"]], [9, ["a", "b", "d"]], [5, ["a", "b", "e"]]]},
        {"fragments": [[0, ["a", "b"]]]},
        {"fragments": [[0, ["a", "b", "b"]]]},
        {"fragments": [[0, None]]},
        {"fragments": 3},
        {"ensemble_size": "3"},
        {"ack_quorum": 3},
        {"write_quorum": 4},
        {"ack_quorum": 0},
        {"last_entry": 5},
        {"length": 1},
        {"state": "closed", "last_entry": -2},
        {"state": "closed", "last_entry": 1, "length": -1},
        {"durability": "hopeful"},
        {"fragments": [["0", ["a", "b", "c"]]]},
        {"fragments": [[0, ["a", "b", 3]]]},
        {"fragments": [[0.0, ["a", "b", "c"]]]},
        {"fragments": [[0, "abc"]]},
        {"fragments": [[0, ["a", "b", "c"], 1]]},
        {"fragments": [[0, [["a"], "b", "c"]]]},
        {"fragments": [[0, ["a", "b", "c", "a"]]]},
        {"proof": 3},
        {"proof": None},
        {"custom": {"a": 1}},
        {"custom": [1]},
        {"created_us": "now"},
        {"ledger": True},
        {"messages": None},
        {"token": 1.5},
        {"token": "\ud800"},
        {"custom": {"\udfff": ""}},
        {"proof": "0é"},
        {"fragments": [[0, ["a", "b", "c"]], [1 << 62, ["a", "b", "d"]]]},
        {"state": "closed", "last_entry": 1 << 70},
        {"state": "closed", "last_entry": 1, "length": 2, "messages": -1},
        {"state": "closed", "last_entry": 4, "fragments": [[0, ["a", "b", "c"]], [5, ["a", "b", "d"]]]},
    ],
    ids=str,
)
def test_metadata_that_lie_are_refused(lie: dict[str, Any]) -> None:
    body = {**json.loads(metadata_of().encode()), **lie}
    with pytest.raises(InvalidMetadataError):
        LedgerMetadata.decode(json.dumps(body).encode())


def test_a_missing_field_is_refused() -> None:
    body = json.loads(metadata_of().encode())
    del body["proof"]
    with pytest.raises(InvalidMetadataError):
        LedgerMetadata.decode(json.dumps(body).encode())


def test_metadata_without_an_end_are_refused() -> None:
    with pytest.raises(InvalidMetadataError, match="nested"):
        LedgerMetadata.decode(b"[" * 100_000)


@given(st.binary(max_size=200))
def test_any_bytes_are_metadata_or_an_error(data: bytes) -> None:
    with pytest.raises(InvalidMetadataError):
        LedgerMetadata.decode(data)


@pytest.mark.parametrize("data", [b"", b"{}", b"[]", b"3", b"null", b'"x"', b"\xff"])
def test_malformed_metadata_are_refused(data: bytes) -> None:
    with pytest.raises(InvalidMetadataError):
        LedgerMetadata.decode(data)


def test_only_the_key_itself_is_admitted() -> None:
    assert metadata_of().admits(KEY)
    assert not metadata_of().admits(ledger_key(b"other"))


def test_only_the_proof_itself_admits_copies() -> None:
    proof = metadata_of().proof_bytes
    assert proof == bytes.fromhex(key_proof(KEY)) and metadata_of().admits_copy(proof)
    assert (
        not metadata_of().admits_copy(KEY)
        and not metadata_of().admits_copy(bytes(16))
        and not metadata_of().admits_copy(b"")
    )
    assert not metadata_of().admits(proof)


@pytest.mark.parametrize("proof", ["", "00", "zz" * 16, "00" * 17])
def test_a_malformed_proof_admits_no_copies(proof: str) -> None:
    metadata = dataclasses.replace(metadata_of(), proof=proof)
    with pytest.raises(InvalidMetadataError, match="proof"):
        _ = metadata.proof_bytes
    assert not metadata.admits_copy(bytes(16))


def test_keys_sort_by_ledger() -> None:
    assert metadata_key(9) < metadata_key(10) < metadata_key(1 << 62)


# ---- fragments -------------------------------------------------------------------------------------------------


def test_the_fragment_of_an_entry() -> None:
    metadata = metadata_of((0, "abc"), (5, "abd"), (9, "aed"))
    assert [metadata.fragment_of(entry).first for entry in (0, 4, 5, 8, 9, 99)] == [0, 0, 5, 5, 9, 9]
    assert [metadata.fragment_end(fragment) for fragment in metadata.fragments] == [5, 9, None]


def test_bookies_from_an_entry_on() -> None:
    metadata = metadata_of((0, "abc"), (5, "abd"), (9, "aed"))
    assert metadata.bookies() == set("abcde")
    assert metadata.bookies(5) == set("abde")
    assert metadata.bookies(8) == set("abde")
    assert metadata.bookies(9) == set("aed")


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({0: ("x", 0)}, {0: "xbc", 5: "xbd"}),
        ({0: ("x", 7)}, {0: "abc", 5: "abd", 7: "xbd"}),
        ({0: ("x", 5)}, {0: "abc", 5: "xbd"}),
        ({0: ("x", 3)}, {0: "abc", 3: "xbc", 5: "xbd"}),
        ({0: ("x", 3), 2: ("y", 8)}, {0: "abc", 3: "xbc", 5: "xbd", 8: "xby"}),
        ({0: ("x", 3), 1: ("y", 3)}, {0: "abc", 3: "xyc", 5: "xyd"}),
    ],
)
def test_replacements_take_places_from_an_entry_on(change: Any, expected: dict[int, str]) -> None:
    assert fragments(metadata_of((0, "abc"), (5, "abd")).replace_bookies(change)) == expected


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 12)), max_size=8))
def test_fragments_follow_from_any_sequence_of_ensemble_changes(steps: list[tuple[int, int]]) -> None:
    """Compare with a table that has, for each entry, the bookies that hold it."""
    metadata = metadata_of()
    table = [list("abc") for _ in range(15)]
    for number, (index, since) in enumerate(steps):
        bookie = f"new{number}"
        metadata = metadata.replace_bookies({index: (bookie, since)})
        for row in table[since:]:
            row[index] = bookie
    assert [list(metadata.fragment_of(entry).ensemble) for entry in range(15)] == table
    assert all(len(write_set(entry, 3, 2)) == 2 for entry in range(15))


def test_closing_drops_fragments_behind_the_end() -> None:
    """BookKeeper #4551: the last fragment of a closed ledger began after its last entry."""
    metadata = metadata_of((0, "abc"), (5, "abd"))
    assert fragments(metadata.closed(4, 40, 5)) == {0: "abc"}
    assert fragments(metadata.closed(5, 50, 6)) == {0: "abc", 5: "abd"}
    assert fragments(metadata.closed(-1, 0, 0)) == {0: "abc"}


def test_ledger_metadata_are_immutable() -> None:
    metadata = metadata_of()
    assert metadata.in_recovery().state is State.IN_RECOVERY
    assert metadata.state is State.OPEN
    with pytest.raises(dataclasses.FrozenInstanceError):
        metadata.state = State.CLOSED


@pytest.mark.parametrize(("size", "copies"), [(1, 1), (3, 3), (3, 2), (5, 3), (4, 1)])
def test_holdings_are_the_write_sets(size: int, copies: int) -> None:
    first, second = tuple("abcdefgh"[:size]), tuple("hgfedcba"[:size])
    fragments = (Fragment(0, first), Fragment(7, second))
    meta = LedgerMetadata(
        ledger=1, ensemble_size=size, write_quorum=copies, ack_quorum=1, fragments=fragments, proof="",
        state=State.CLOSED, last_entry=16, length=1,
    )  # fmt: skip
    for bookie in "abcdefgh":
        expected = [
            entry
            for entry in range(17)
            if bookie in (meta.fragment_of(entry).ensemble[i] for i in write_set(entry, size, copies))
        ]
        assert sorted(entry for stripe in meta.holdings(bookie) for entry in stripe) == expected


def test_has_for_certain_is_true_below_the_last_fragment_or_the_closed_end() -> None:
    meta = LedgerMetadata(
        ledger=1, ensemble_size=1, write_quorum=1, ack_quorum=1, proof="",
        fragments=(Fragment(0, ("a",)), Fragment(7, ("b",))),
    )  # fmt: skip
    assert [meta.has_for_certain(entry) for entry in (0, 6, 7)] == [True, True, False]
    closed = meta.closed(8, 1, 1)
    assert [closed.has_for_certain(entry) for entry in (0, 8, 9)] == [True, True, False]
