"""Regular expressions of subscriptions: they match what Python's match, in a time that no expression makes long."""

from __future__ import annotations

import re
import time
from random import Random

import pytest

from pyreplog.errors import InvalidArgumentError
from pyreplog.kafka.groups.topic_pattern import STATES_MAX, TopicPattern

CHARACTERS = "abAB_-.1"
ATOMS = [
    *"abAB_-1", r"\.", ".", "[ab]", "[^a]", "[a-b1]", r"\d", r"\w", r"[^\w]", r"\W", "[A-B_-]", r"\S", r"\b", r"\B", "^", "$",
    r"\A", r"\x61", r"[\d.]", "[]a]",
]  # fmt: skip
REPEATS = ["*", "+", "?", "{2}", "{1,3}", "{0,2}", "{2,}", "*?", "??", "{0}"]


def drawn(rng: Random, depth: int) -> str:
    """An expression that means the same in Python."""
    if depth == 0 or rng.random() < 0.3:
        return rng.choice(ATOMS)
    parts = [drawn(rng, depth - 1) for _ in range(rng.randint(1, 3))]
    kind = rng.randrange(5)
    if kind == 0:
        return "".join(parts)
    if kind == 1:
        return f"({'|'.join(parts)})"
    if kind == 2:
        return f"(?i:{'|'.join(parts)})"
    if kind == 3:
        return f"(?P<n{rng.randrange(10**9)}>{''.join(parts)})"
    return f"(?:{''.join(parts)}){rng.choice(REPEATS)}"


def test_names_match_as_in_python(seed: int) -> None:
    rng = Random(seed)
    matched = 0
    for _ in range(1_000):
        expression = drawn(rng, 3)
        try:
            known, pattern = re.compile(expression, re.ASCII), TopicPattern(expression)
        except InvalidArgumentError as error:
            assert f"more than {STATES_MAX} states" in str(error), expression
            continue
        for _ in range(8):
            name = "".join(rng.choice(CHARACTERS) for _ in range(rng.randrange(6)))
            if not name and r"\B" in expression:  # where Python before 3.14 matches nothing
                continue
            assert pattern.matches(name) == bool(known.fullmatch(name)), (expression, name)
            matched += pattern.matches(name)
    assert matched > 100


@pytest.mark.parametrize(
    ("expression", "matched", "others"),
    [
        ("orders-(eu|us)-[0-9]+", ["orders-eu-1"], ["orders-eu-", "my-orders-eu-1", "orders-eu-1-"]),
        ("(?:.*)(?:orders)(?:.*)", ["orders", "my-orders-2"], ["order"]),
        (r"^orders\.", ["orders."], ["orders", "orders.x"]),
        (r"\Qa.b\E+", ["a.b", "a.bb"], ["axb"]),
        (r"\Qa.b", ["a.b"], ["axb"]),
        (r"x\Q\E*", ["", "xx"], ["y"]),
        ("(?i)Orders|BILLS", ["orders", "Bills"], ["order"]),
        ("(?i)a(?-i:b)", ["Ab"], ["aB"]),
        ("(?ims)[a-c]", ["B"], ["d"]),
        ("a{,2}", ["a{,2}"], ["aa"]),
        ("[[:alpha:]_]+[[:^digit:]]", ["a_b"], ["a1", "1"]),
        (r"\x{6f}rders", ["orders"], []),
        ("", [""], ["a"]),
        ("a||b", ["", "a", "b"], ["ab"]),
        ("()*", [""], ["a"]),
        ("[^[:ascii:]]*", [""], ["a", "é"]),
        ("topic", ["topic"], ["tópic"]),
    ],
)
def test_topic_patterns_match_as_regular_expressions(expression: str, matched: list[str], others: list[str]) -> None:
    pattern = TopicPattern(expression)
    for _ in range(2):  # the second time it is known
        assert [pattern.matches(name) for name in (*matched, *others)] == [True] * len(matched) + [False] * len(others)


@pytest.mark.parametrize(
    ("expression", "why"),
    [
        ("(", "expected )"), (")", "no group is open"), ("[a", "found the end"), ("[b-a]", "a range"), (r"[\d-z]", "a range"),
        ("a**", "found another one"), ("a*+", "found another one"), ("a{2}{3}", "found another one"), ("*a", "to repeat"),
        ("a|+", "to repeat"), (r"(a)\1", "no such escape"), (r"\pL", "no such escape"), ("\\", "found the end"),
        ("(?=a)", "flags"), ("(?<=a)b", "expected >"), ("(?<!a>b)c", "name of a group"), ("(?", "found the end"),
        ("a{1001}", "1000 repetitions"), ("a{3,2}", "repetitions"), ("a{99999999999}", "repetitions"),
        ("((a{100}){100}){100}", f"{STATES_MAX} states"), ("(" * 200 + ")" * 200, "levels"), ("a" * 1001, "1000 characters"),
        ("[[:letters:]]", "no such class"), ("é", "ASCII"), (r"\x{zz}", "hexadecimal"), (r"\x{110000}", "hexadecimal"),
    ],
)  # fmt: skip
def test_invalid_regular_expression_is_refused(expression: str, why: str) -> None:
    with pytest.raises(InvalidArgumentError, match=re.escape(why)):
        TopicPattern(expression)


@pytest.mark.parametrize("expression", ["(a+)+b", "(a|aa)+b", "(a*)*b", "(a|a?){300}b", "(.*a){200}c"])
def test_no_regular_expression_takes_exponential_time(expression: str) -> None:
    """Python needs exponential time for the first three."""
    pattern, began_s = TopicPattern(expression), time.monotonic()
    assert not pattern.matches("a" * 249)
    assert time.monotonic() - began_s < 60
