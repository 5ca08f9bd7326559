"""Numbers with nouns and verbs."""

from __future__ import annotations

import pytest

from pyreplog.plurals import agreeing, counted, plural


@pytest.mark.parametrize(
    ("count", "noun", "verb", "text"),
    [
        (0, "entry", None, "0 entries"),
        (1, "entry", None, "1 entry"),
        (1000, "key", None, "1,000 keys"),
        (1, "ledger", "have", "1 ledger has"),
        (2, "ledger", "have", "2 ledgers have"),
        (1, "copy", "are", "1 copy is"),
        (0, "copy", "are", "0 copies are"),
        (1, "ledger", "name", "1 ledger names"),
        (2, "ledger", "name", "2 ledgers name"),
    ],
)
def test_nouns_and_verbs_agree_with_the_number(count: int, noun: str, verb: str | None, text: str) -> None:
    assert counted(count, noun, verb) == text


def test_nouns_and_verbs_agree_with_numbers() -> None:
    assert [plural(count, "boundary") for count in (1, 2)] == ["boundary", "boundaries"]
    assert [agreeing(count, "would be") for count in (1, 2)] == ["would be", "would be"]
