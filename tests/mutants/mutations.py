"""Mutations of Python and Cython sources, by their tokens: both languages have the same ones.

A mutation changes one place: a comparison, an integer or a truth value, `and` and `or`, `not`, plus and minus, `break`
and `continue`; it leaves out a call whose result nobody uses, or exchanges two statements of which both have an effect
beyond their function. Imports, declarations, signatures, decorators, settings of a module, messages of errors, logging
and docstrings are left alone.
"""

from __future__ import annotations

import hashlib
import io
import keyword
import re
import tokenize
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

COMPARISONS = {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "=="}
ARITHMETIC = {"+": "-", "-": "+", "+=": "-=", "-=": "+="}
WORDS = {"and": "or", "or": "and", "True": "False", "False": "True", "break": "continue", "continue": "break"}
LEFT_ALONE = {
    "import", "from", "cimport", "include", "@", "class", "def", "async", "cpdef", "ctypedef", "raise", "assert",
    "global", "nonlocal", "del", "extern", "type",
}  # fmt: skip
ENDS_BLOCK = ("return", "raise", "break", "continue", "yield")
LOGGING = re.compile(r"^(self\.)?_?(log|logger|logging|warnings)\.", re.IGNORECASE)
CALL = re.compile(r"^(await )?[A-Za-z_][\w.\[\]]*\(")
NUMBER = re.compile(r"[0-9][0-9_]*|0x[0-9a-fA-F]+")
SETTING = re.compile(r"_?[A-Z][A-Z0-9_]*(: [^=]+)? = ")
EFFECT = re.compile(r"^(await )?[A-Za-z_][\w.]*(\.\w+|\[[^=]*\]) [-+|&]?= ")
CYTHON_DECLARATION = re.compile(r"^cdef\b[^=]*$|^cdef .*[:(]\s*$|^(public|readonly)\b")
CYTHON_CAST = re.compile(r"<\s*(const\s+|unsigned\s+|struct\s+)*[\w.]+\s*\**\s*&?>")

Tokens = list[tokenize.TokenInfo]
Span = tuple[tuple[int, int], tuple[int, int]]


@dataclass(frozen=True)
class Mutation:
    """A change of a source file. span: lines from 1 and columns from 0, of what is replaced."""

    path: str
    operator: str
    span: Span
    before: str
    after: str
    line: str
    occurrence: int

    @property
    def identity(self) -> str:
        """A name that stays the same when lines elsewhere in the file change."""
        text = "\0".join((self.path, self.operator, self.line, self.before, self.after, str(self.occurrence)))
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()

    def applied(self, source: str) -> str:
        """Return the source with this change."""
        lines = source.splitlines(keepends=True)
        (first, start), (last, end) = self.span
        changed = lines[first - 1][:start] + self.after + lines[last - 1][end:]
        return "".join([*lines[: first - 1], changed, *lines[last:]])


def mutations(path: Path, name: str) -> list[Mutation]:
    """Return all mutations of a source file. name: what its mutations call the path."""
    source = path.read_text()
    lines = source.splitlines()
    seen = Counter[tuple[str, str, str, str]]()
    mutations = []
    for operator, span, after in _changes(source, is_cython=path.suffix == ".pyx"):
        before = _text(lines, span)
        line = lines[span[0][0] - 1].strip()
        key = operator, line, before, after
        mutations.append(Mutation(name, operator, span, before, after, line, seen[key]))
        seen[key] += 1
    return mutations


def _text(lines: list[str], span: Span) -> str:
    (first, start), (last, end) = span
    if first == last:
        return lines[first - 1][start:end]
    return "\n".join([lines[first - 1][start:], *lines[first : last - 1], lines[last - 1][:end]])


def _changes(source: str, *, is_cython: bool) -> Iterator[tuple[str, Span, str]]:
    lines = source.splitlines()
    statements = list(_statements(source))
    for at, statement in enumerate(statements):
        text = _text(lines, (statement[0].start, statement[-1].end))
        if statement[0].string in LEFT_ALONE or statement[0].type == tokenize.STRING or LOGGING.match(text):
            continue
        if SETTING.match(text) and statement[0].start[1] == 0:
            continue
        if is_cython and CYTHON_DECLARATION.match(text):
            continue
        yield from _changes_within(statement, is_cython=is_cython)
        span = statement[0].start, statement[-1].end
        is_call = _is_call(statement, text)
        if is_call:
            yield "dropped call", span, "pass"
        following = statements[at + 1] if at + 1 < len(statements) else None
        if following is not None and _may_swap(statement, following):
            next_text = _text(lines, (following[0].start, following[-1].end))
            is_next_call = _is_call(following, next_text)
            has_effects = (is_call or EFFECT.match(text)) and (is_next_call or EFFECT.match(next_text))
            if has_effects and (is_call or is_next_call):
                between = _text(lines, (statement[-1].end, following[0].start))
                yield "statement order", (statement[0].start, following[-1].end), next_text + between + text


def _statements(source: str) -> Iterator[Tokens]:
    """Yield the tokens of each logical line; the line of a compound statement ends with its colon."""
    tokens: Tokens = []
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.NEWLINE:
            if tokens:
                yield tokens
            tokens = []
        elif token.type not in (tokenize.COMMENT, tokenize.NL, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER):
            tokens.append(token)


def _changes_within(statement: Tokens, *, is_cython: bool) -> Iterator[tuple[str, Span, str]]:
    casts = _casts(statement) if is_cython else set[tuple[int, int]]()
    head = statement[0].string
    for at, token in enumerate(statement):
        span, text = (token.start, token.end), token.string
        before = statement[at - 1] if at else None
        after = statement[at + 1] if at + 1 < len(statement) else None
        if text in COMPARISONS and token.start not in casts:
            yield "comparison", span, COMPARISONS[text]
        elif text in ARITHMETIC and (text.endswith("=") or _is_operand(before)):
            yield "arithmetic", span, ARITHMETIC[text]
        elif text == "in" and head not in ("for", "async") and not _is_within_comprehension(statement, at):
            if before is None or before.string != "not":
                yield "comparison", span, "not in"
        elif text == "is":
            yield _changed_identity(token, after)
        elif text == "not" and (after is None or after.string != "in") and (before is None or before.string != "is"):
            assert after is not None
            yield "negation", (token.start, after.start), ""
        elif text in WORDS:
            yield ("logic" if text in ("and", "or") else "constant" if text[0].isupper() else "flow"), span, WORDS[text]
        elif token.type == tokenize.NUMBER and NUMBER.fullmatch(text) and head not in ("cdef",):
            yield "constant", span, str(int(text, 0) + 1) if text.startswith("0x") else str(int(text) + 1)


def _changed_identity(token: tokenize.TokenInfo, after: tokenize.TokenInfo | None) -> tuple[str, Span, str]:
    if after is not None and after.string == "not":
        return "comparison", (token.start, after.end), "is"
    return "comparison", (token.start, token.end), "is not"


def _casts(statement: Tokens) -> set[tuple[int, int]]:
    """Return where the angle brackets of Cython's casts are."""
    brackets = set()
    for token in statement:
        for match in CYTHON_CAST.finditer(token.line):
            brackets |= {(token.start[0], match.start()), (token.start[0], match.end() - 1)}
    return brackets


def _is_operand(token: tokenize.TokenInfo | None) -> bool:
    if token is None:
        return False
    is_name = token.type == tokenize.NAME and not keyword.iskeyword(token.string)
    return is_name or token.type == tokenize.NUMBER or token.string in (")", "]")


def _is_within_comprehension(statement: Tokens, at: int) -> bool:
    """Whether an `in` belongs to a `for` in the same statement."""
    depth = 0
    for token in reversed(statement[:at]):
        if token.string in (")", "]", "}"):
            depth += 1
        elif token.string in ("(", "[", "{"):
            depth -= 1
            if depth < 0:
                return False
        elif depth == 0 and token.string == "for":
            return True
        elif depth == 0 and token.string in ("in", "if", "else"):
            return False
    return False


def _is_call(statement: Tokens, text: str) -> bool:
    return CALL.match(text) is not None and statement[-1].string == ")" and not _assigns(statement)


def _assigns(statement: Tokens) -> bool:
    depth = 0
    for token in statement:
        depth += (token.string in ("(", "[", "{")) - (token.string in (")", "]", "}"))
        if depth == 0 and token.string.endswith("=") and token.string not in COMPARISONS:
            return True
    return False


def _may_swap(first: Tokens, second: Tokens) -> bool:
    """Whether both are simple statements of one block, and either may come first."""
    heads = first[0].string, second[0].string
    if first[0].start[1] != second[0].start[1] or any(head in LEFT_ALONE or head == "cdef" for head in heads):
        return False
    if any(keyword.iskeyword(head) and head not in ("await", "self") for head in heads):
        return False
    return not any(s[-1].string == ":" or s[0].type == tokenize.STRING for s in (first, second))
