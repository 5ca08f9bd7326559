"""TopicPattern: regular expressions with which members subscribe to topics (KIP-848), in the syntax of RE2.

The expressions come from clients, so the cost of matching must not exceed the length of the expression times that of
the name. Python's `re` backtracks, which takes exponential time for some expressions. This implementation simulates an
NFA, one character at a time (Thompson 1968, and https://swtch.com/~rsc/regexp). Topic names are ASCII, without line
breaks.
"""

from __future__ import annotations

import string
from collections.abc import Iterable
from enum import Enum, auto
from typing import NamedTuple

from pyreplog.errors import InvalidArgumentError

LENGTH_MAX = 1_000
"""Maximum number of characters of an expression."""
STATES_MAX = 2_000
"""Maximum number of NFA states of an expression: repetitions multiply them."""
_REPEAT_MAX = 1_000
_DEPTH_MAX = 100
_KNOWN_MAX = 100_000  # maximum number of cached names

CharSet = int
"""A set of ASCII characters, as 128 bits."""


def _chars(characters: Iterable[str]) -> CharSet:
    found = 0
    for character in characters:
        found |= 1 << ord(character)
    return found


_ALL = (1 << 128) - 1
_DIGITS, _SPACES = _chars(string.digits), _chars("\t\n\f\r ")
_WORDS = _chars(string.ascii_letters + string.digits + "_")
_CLASSES = {
    "d": _DIGITS, "D": _ALL & ~_DIGITS, "s": _SPACES, "S": _ALL & ~_SPACES, "w": _WORDS, "W": _ALL & ~_WORDS,
}  # fmt: skip
_POSIX = {
    "alnum": _chars(string.ascii_letters + string.digits), "alpha": _chars(string.ascii_letters), "ascii": _ALL,
    "blank": _chars("\t "), "cntrl": _chars(map(chr, [*range(32), 127])), "digit": _DIGITS,
    "graph": _chars(map(chr, range(33, 127))), "lower": _chars(string.ascii_lowercase),
    "print": _chars(map(chr, range(32, 127))), "punct": _chars(string.punctuation), "space": _SPACES | _chars("\v"),
    "upper": _chars(string.ascii_uppercase), "word": _WORDS, "xdigit": _chars(string.hexdigits),
}  # fmt: skip
_CONTROLS = {"a": "\a", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}


class _Assertion(Enum):
    """An assertion about the position between two characters."""

    BEGIN = auto()
    END = auto()
    WORD_BOUNDARY = auto()
    NO_WORD_BOUNDARY = auto()


_ASSERTIONS = {
    "A": _Assertion.BEGIN,
    "z": _Assertion.END,
    "b": _Assertion.WORD_BOUNDARY,
    "B": _Assertion.NO_WORD_BOUNDARY,
}


class _Sequence(NamedTuple):
    """Parts that match one after the other."""

    parts: list[_Node]


class _Choice(NamedTuple):
    """Branches of which one matches."""

    branches: list[_Node]


class _Repeat(NamedTuple):
    """A repetition of a part; `most` is None if unlimited."""

    part: _Node
    least: int
    most: int | None


_Node = CharSet | _Assertion | _Sequence | _Choice | _Repeat


class _State(NamedTuple):
    """A state of the NFA.

    It continues with all states in `following`: unconditionally, after a character in `accepts`, or where the assertion
    `place` holds.
    """

    following: list[int]
    accepts: CharSet = 0
    place: _Assertion | None = None


class TopicPattern:
    """A regular expression that matches whole topic names. Any thread may use it.

    Args:
        expression: regular expression in RE2's syntax, without Unicode classes.

    Raises:
        InvalidArgumentError: the expression is malformed or too long.

    Example:
        ```python
        pattern = TopicPattern("orders-(eu|us)-[0-9]+")
        pattern.matches("orders-eu-1")  # True
        ```
    """

    def __init__(self, expression: str) -> None:
        if len(expression) > LENGTH_MAX:
            raise InvalidArgumentError(f"expected at most {LENGTH_MAX} characters, found {len(expression)}")
        self.expression = expression
        self._states: list[_State] = []
        self._end = self._add(_State([]))
        self._begin = self._translate(_Parser(expression).parse(), self._end)
        self._known: dict[str, bool] = {}

    def __repr__(self) -> str:
        return f"<TopicPattern {self.expression!r}>"

    def matches(self, topic: str) -> bool:
        """Return whether the whole topic name matches. Results are cached."""
        known = self._known.get(topic)
        if known is None:
            if len(self._known) >= _KNOWN_MAX:
                self._known = {}
            known = self._known[topic] = self._run(topic)
        return known

    # ---- the NFA --------------------------------------------------------------------------------------------

    def _add(self, state: _State) -> int:
        if len(self._states) >= STATES_MAX:
            raise InvalidArgumentError(f"expected fewer repetitions: there would be more than {STATES_MAX} states")
        self._states.append(state)
        return len(self._states) - 1

    def _translate(self, node: _Node, following: int) -> int:
        """Add the states of a node before the state `following`. Returns the first of them."""
        if isinstance(node, _Assertion):
            return self._add(_State([following], place=node))
        if isinstance(node, CharSet):
            # an empty set accepts no character, so no state follows
            return self._add(_State([following] if node else [], accepts=node))
        if isinstance(node, _Sequence):
            for part in reversed(node.parts):
                following = self._translate(part, following)
            return following
        if isinstance(node, _Choice):
            return self._add(_State([self._translate(branch, following) for branch in node.branches]))
        if node.most is None:
            loop = self._add(_State([following]))
            self._states[loop].following.append(self._translate(node.part, loop))
            following = loop
        else:
            end = following
            for _ in range(node.most - node.least):
                following = self._add(_State([end, self._translate(node.part, following)]))
        for _ in range(node.least):
            following = self._translate(node.part, following)
        return following

    def _run(self, topic: str) -> bool:
        if not topic.isascii():
            return False
        now = self._reach([self._begin], topic, 0)
        for at, character in enumerate(topic):
            bit = 1 << ord(character)
            after = [next_ for state in now if state.accepts & bit for next_ in state.following]
            now = self._reach(after, topic, at + 1)
            if not now:
                return False
        return self._states[self._end] in now

    def _reach(self, numbers: list[int], topic: str, at: int) -> list[_State]:
        """Return the states that are reached without consuming a character: those that accept one, and the end."""
        reached, seen = [], {*numbers}
        while numbers:
            number = numbers.pop()
            state = self._states[number]
            if state.accepts or number == self._end:
                reached.append(state)
            elif state.place is None or _holds(state.place, topic, at):
                numbers += [each for each in state.following if each not in seen]
                seen.update(state.following)
        return reached


def _holds(place: _Assertion, topic: str, at: int) -> bool:
    if place is _Assertion.BEGIN:
        return at == 0
    if place is _Assertion.END:
        return at == len(topic)
    before, behind = (0 <= i < len(topic) and bool(_WORDS >> ord(topic[i]) & 1) for i in (at - 1, at))
    return (before != behind) == (place is _Assertion.WORD_BOUNDARY)


class _Parser:
    """Parses an expression into a tree."""

    def __init__(self, expression: str) -> None:
        self._text, self._at, self._depth = expression, 0, 0
        self._ignores_case = False

    def parse(self) -> _Node:
        """Return the tree. Raises InvalidArgumentError if the expression is malformed."""
        node = self._choice()
        if self._at < len(self._text):
            raise self._error("no group is open")
        return node

    def _error(self, why: str) -> InvalidArgumentError:
        return InvalidArgumentError(f"{self._text[:80]!r}, character {self._at}: {why}")

    def _takes(self, text: str) -> bool:
        if not self._text.startswith(text, self._at):
            return False
        self._at += len(text)
        return True

    def _next(self) -> str:
        if self._at >= len(self._text):
            raise self._error("expected more, found the end")
        self._at += 1
        return self._text[self._at - 1]

    def _choice(self) -> _Node:
        ignores_case = self._ignores_case
        branches = [self._sequence()]
        while self._takes("|"):
            branches.append(self._sequence())
        self._ignores_case = ignores_case  # flags apply until the end of their group
        return branches[0] if len(branches) == 1 else _Choice(branches)

    def _sequence(self) -> _Node:
        parts: list[_Node] = []
        while self._at < len(self._text) and self._text[self._at] not in "|)":
            if self._takes("\\Q"):
                quoted, _, _ = self._text[self._at :].partition("\\E")
                self._at = min(self._at + len(quoted) + 2, len(self._text))
                parts += [self._char(character) for character in quoted]
                if not parts:
                    continue
                parts.append(self._repeated(parts.pop()))
            else:
                parts.append(self._repeated(self._atom()))
        return _Sequence(parts)

    def _atom(self) -> _Node:
        character = self._next()
        if character == "(":
            return self._group()
        if character == "[":
            return self._set()
        if character == ".":
            return _ALL & ~_chars("\n")
        if character in "^$":
            return _Assertion.BEGIN if character == "^" else _Assertion.END
        if character in "*+?":
            raise self._error(f"expected something to repeat in front of {character}")
        if character != "\\":
            return self._char(character)
        letter = self._next()
        return _ASSERTIONS[letter] if letter in _ASSERTIONS else self._escape(letter)

    def _char(self, character: str) -> CharSet:
        if not character.isascii():
            raise self._error(f"expected ASCII, found {character!r}")
        return self._folded(_chars(character))

    def _folded(self, found: CharSet) -> CharSet:
        if not self._ignores_case:
            return found
        letters = [letter for letter in string.ascii_letters if found >> ord(letter) & 1]
        return found | _chars(letter.swapcase() for letter in letters)

    def _escape(self, letter: str) -> CharSet:
        """Return the characters of an escape sequence, given the letter after its backslash."""
        if letter in _CLASSES:
            return _CLASSES[letter]
        if letter in _CONTROLS:
            return self._char(_CONTROLS[letter])
        if letter == "x":
            digits = self._until("}") if self._takes("{") else self._next() + self._next()
            try:
                return self._char(chr(int(digits, 16)))
            except (ValueError, OverflowError):
                raise self._error(f"expected hexadecimal digits of a character, found {digits[:20]!r}") from None
        if letter.isalnum():
            raise self._error(f"\\{letter}: there is no such escape here")
        return self._char(letter)

    def _until(self, end: str) -> str:
        text, found, _ = self._text[self._at :].partition(end)
        if not found:
            raise self._error(f"expected {end}, found the end")
        self._at += len(text) + len(end)
        return text

    def _group(self) -> _Node:
        if self._depth >= _DEPTH_MAX:
            raise self._error(f"expected groups of at most {_DEPTH_MAX} levels")
        ignored_case = self._ignores_case
        if self._takes("?"):
            if self._takes("P<") or self._takes("<"):
                if not (name := self._until(">")).isidentifier():
                    raise self._error(f"expected the name of a group, found {name[:20]!r}")
            else:
                flags, end = "", self._next()
                while end not in ":)":
                    flags, end = flags + end, self._next()
                self._set_flags(flags)
                if end == ")":
                    return _Sequence([])  # the flags apply to the rest of the enclosing group
        self._depth += 1
        node = self._choice()
        self._depth -= 1
        if not self._takes(")"):
            raise self._error("expected ), found the end")
        self._ignores_case = ignored_case
        return node

    def _set_flags(self, flags: str) -> None:
        """Apply flags. Those for lines and greediness have no effect on a match of the whole name."""
        on, _, off = flags.partition("-")
        if not {*on, *off} <= {*"imsU"}:
            raise self._error(f"expected flags of i, m, s and U, found {flags[:20]!r}")
        self._ignores_case = ("i" in on or self._ignores_case) and "i" not in off

    def _set(self) -> CharSet:
        is_negated, found, is_first = self._takes("^"), 0, True
        while is_first or not self._takes("]"):
            is_first = False
            if self._takes("[:"):
                is_other, name = self._takes("^"), self._until(":]")
                if name not in _POSIX:
                    raise self._error(f"[:{name[:20]}:]: there is no such class")
                found |= _ALL & ~_POSIX[name] if is_other else _POSIX[name]
                continue
            low = self._member()
            if self._text.startswith("-", self._at) and not self._text.startswith("-]", self._at):
                self._at += 1
                high = self._member()
                if low.bit_count() != 1 or high.bit_count() != 1 or high < low:
                    raise self._error("expected a range from a character to a later one")
                low = (high << 1) - low
            found |= low
        found = self._folded(found)
        return _ALL & ~found if is_negated else found

    def _member(self) -> CharSet:
        """Return a character of a set, or a class. Case is not folded here: the whole set is folded later."""
        ignored_case, self._ignores_case = self._ignores_case, False
        character = self._next()
        found = self._escape(self._next()) if character == "\\" else self._char(character)
        self._ignores_case = ignored_case
        return found

    def _repeated(self, node: _Node) -> _Node:
        counts = self._counts()
        if counts is None:
            return node
        self._takes("?")  # non-greedy: no effect on whether the whole name matches
        if self._counts() is not None:
            raise self._error("expected one repetition, found another one behind it")
        return _Repeat(node, *counts)

    def _counts(self) -> tuple[int, int | None] | None:
        if self._takes("*"):
            return 0, None
        if self._takes("+"):
            return 1, None
        if self._takes("?"):
            return 0, 1
        text, found, _ = self._text[self._at :].partition("}")
        least, comma, most = text.removeprefix("{").partition(",")
        is_count = text.startswith("{") and found and least.isdecimal() and (not most or most.isdecimal())
        if not is_count:
            return None  # a literal brace
        low = int(least[:9])
        high = low if not comma else int(most[:9]) if most else None
        if low > _REPEAT_MAX or (high is not None and not low <= high <= _REPEAT_MAX):
            raise self._error(f"expected at most {_REPEAT_MAX} repetitions, found {text[:20]}}}")
        self._at += len(text) + 1
        return low, high
