"""Numbers with their nouns and verbs: 1 entry is, 2 entries are."""

from __future__ import annotations

_IRREGULAR = {"are": "is", "have": "has", "would be": "would be"}


def counted(count: int, noun: str, verb: str | None = None) -> str:
    """Return a number with a noun: 1 entry, 2 entries; with a verb: 1 entry has, 2 entries have.

    Args:
        count: the number.
        noun: in the singular.
        verb: in the plural; None: without a verb.
    """
    text = f"{count:,} {plural(count, noun)}"
    return text if verb is None else f"{text} {agreeing(count, verb)}"


def plural(count: int, noun: str) -> str:
    """Return the noun in the form for a number."""
    if count == 1:
        return noun
    return noun.removesuffix("y") + "ies" if noun.endswith("y") and not noun.endswith("ey") else noun + "s"


def agreeing(count: int, verb: str) -> str:
    """Return the verb, which is given in the plural, in the form for a number."""
    if count != 1:
        return verb
    return _IRREGULAR.get(verb, verb + "s")
