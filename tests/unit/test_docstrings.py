"""Docstrings that the API reference shows are complete: a summary, each argument, each error that is raised.

The summary of a function or method is an imperative sentence on one line. That of a class or a property is one line that ends with a
full stop. Sections are those of Google's style, which the reference renders.
"""

from __future__ import annotations

import ast
import functools
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path

import griffe
import pytest

import pyreplog.errors
from tests.unit.test_reference import ENTRY, PAGES, ROOT, SITE, text_of

VERBS = {
    "Accept", "Acknowledge", "Add", "Advance", "Append", "Apply", "Ask", "Attach", "Become", "Begin", "Call",
    "Change", "Close", "Complete", "Connect", "Copy", "Count", "Create", "Cut", "Delete", "Describe", "Discard", "Do",
    "End", "Estimate", "Fence", "Find", "Follow", "Forget", "Gather", "Give", "Hand", "Iterate", "Keep", "Learn",
    "List", "Load", "Make", "Move", "Note", "Open", "Parse", "Pause", "Plan", "Promote", "Publish", "Put", "Raise",
    "Read", "Record", "Refuse", "Register", "Release", "Remove", "Render", "Repair", "Replace", "Report", "Restore",
    "Resume", "Return", "Run", "Select", "Send", "Set", "Skip", "Start", "Stop", "Store", "Submit", "Sync", "Take",
    "Tell", "Trim", "Truncate", "Verify", "Wait", "Wake", "Watch", "Write", "Yield",
}  # fmt: skip
"""With which a summary may begin; add the one that you need."""

FILTERS = re.compile(r"^ {6}filters: (\[.*\])$", re.MULTILINE)


@functools.cache
def package() -> griffe.Module:
    loaded = griffe.load(
        "pyreplog", search_paths=[ROOT], allow_inspection=False, resolve_aliases=True,
        extensions=griffe.load_extensions(SITE.NativeDocstrings(), SITE.SharedArguments()),
    )  # fmt: skip
    assert isinstance(loaded, griffe.Module)
    return loaded


def shown(page: Path) -> Iterator[tuple[str, griffe.Object]]:
    """What a page shows, by name: its entries, and the public members of classes."""
    for block in re.split(r"^(?=::: )", text_of(page), flags=re.MULTILINE)[1:]:
        (name,) = ENTRY.findall(block)
        entry = package()[name.removeprefix("pyreplog.")]
        target = entry.final_target if entry.is_alias else entry
        yield name, target
        if target.is_class:
            filters = ast.literal_eval(matches[0]) if (matches := FILTERS.findall(block)) else ["!^_"]
            yield from members(name, target, [re.compile(pattern.removeprefix("!")) for pattern in filters])


def members(name: str, entry: griffe.Object, hidden: list[re.Pattern[str]]) -> Iterator[tuple[str, griffe.Object]]:
    for member in entry.all_members.values():
        if any(pattern.search(member.name) for pattern in hidden):
            continue
        target = member.final_target if member.is_alias else member
        if (target.is_function or target.has_labels("property")) and "pyreplog" in target.path:  # type: ignore[attr-defined]
            yield f"{name}.{member.name}", target


def sections(entry: griffe.Object) -> dict[str, set[str]]:
    """Names in the sections of a docstring, by kind."""
    assert entry.docstring is not None
    named: dict[str, set[str]] = {}
    for section in entry.docstring.parse("google", warnings=False):
        if isinstance(section.value, list):
            names = {str(getattr(item, "name", None) or getattr(item, "annotation", "")) for item in section.value}
            named.setdefault(section.kind.value, set()).update(name.strip("*") for name in names)
    return named


def is_described(member: griffe.Object) -> bool:
    """Whether the docstring of its class describes a member; one that Cython declares can have none."""
    owner = member.parent
    return owner is not None and owner.docstring is not None and member.name in sections(owner).get("attributes", set())


def parameters(entry: griffe.Object) -> set[str]:
    if isinstance(entry, griffe.Class):
        init = entry.all_members.get("__init__")
        if "dataclass" in entry.labels or is_named_tuple(entry):
            return {member.name for member in entry.attributes.values() if is_field(member)}
        if init is None or not init.path.startswith("pyreplog.") or init.path.startswith("pyreplog._native."):
            return set()
        if entry.path.startswith("pyreplog.errors."):  # what is caught has attributes
            return parameters(entry.members["__init__"]) - {"message"} if "__init__" in entry.members else set()
        assert entry.docstring is not None
        made_by_a_call = "made by" in entry.docstring.value.partition("\n")[0]
        return set() if made_by_a_call else parameters(init.final_target if init.is_alias else init)
    if isinstance(entry, griffe.Function):
        return {parameter.name for parameter in entry.parameters} - {"self", "cls", "_"}
    return set()


def is_named_tuple(entry: griffe.Class) -> bool:
    return any("NamedTuple" in str(base) for base in entry.bases)


def is_field(member: griffe.Attribute) -> bool:
    return member.annotation is not None and not member.name.startswith("_") and "property" not in member.labels


def raised(entry: griffe.Object) -> set[str]:
    """Typed errors that the body itself raises."""
    if not isinstance(entry, griffe.Function) or Path(str(entry.filepath)).suffix != ".py":
        return set()
    tree = ast.parse(textwrap.dedent("\n".join(entry.lines)))
    calls = (node.exc for node in ast.walk(tree) if isinstance(node, ast.Raise))
    names = {call.func.id for call in calls if isinstance(call, ast.Call) and isinstance(call.func, ast.Name)}
    return names & {*pyreplog.errors.__all__}


def is_documented(error: str, named: set[str]) -> bool:
    """Whether an error or one that it is a kind of is named."""
    kinds = {kind.__name__ for kind in getattr(pyreplog.errors, error).__mro__} - {"Exception", "object"}
    return bool(kinds & {name.rpartition(".")[2] for name in named})


def problems(name: str, entry: griffe.Object) -> Iterator[str]:
    if entry.docstring is None:
        if entry.is_function or not is_described(entry):
            yield f"{name}: no docstring"
        return
    first, _, rest = entry.docstring.value.strip().partition("\n")
    if not first.endswith(".") or rest.partition("\n")[0].strip():
        yield f"{name}: the summary is not one line that ends with a full stop, and then a blank one"
    if entry.is_function and first.split()[0] not in VERBS:
        yield f"{name}: the summary does not begin with a verb: {first}"
    named = sections(entry)
    described = named.get("parameters", set()) | named.get("attributes", set())
    if missing := parameters(entry) - described:
        yield f"{name}: not in Args: or Attributes:: {', '.join(sorted(missing))}"
    if unknown := {error for error in raised(entry) if not is_documented(error, named.get("raises", set()))}:
        yield f"{name}: not in Raises:: {', '.join(sorted(unknown))}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_public_docstrings_are_complete(page: Path) -> None:
    missing = [problem for name, entry in shown(page) for problem in problems(name, entry)]
    assert not missing, "\n" + "\n".join(missing)


@pytest.mark.parametrize(
    ("docstring", "expected"),
    [
        ("Read it.\n\n    Args:\n        entry: a number.\n\n    Raises:\n        ClosedError: it was closed.\n    ", ""),
        ("Read it.\n\n    Args:\n        entry: a number.\n\n    Raises:\n        ReplogError: it failed.\n    ", ""),
        ("Reads it.\n\n    Args:\n        entry: a number.\n\n    Raises:\n        ClosedError: it was closed.\n    ", "verb"),
        ("Read it\n\n    Args:\n        entry: a number.\n\n    Raises:\n        ClosedError: it was closed.\n    ", "full stop"),
        ("Read it.\n\n    Raises:\n        ClosedError: it was closed.\n    ", "not in Args"),
        ("Read it.\n\n    Args:\n        entry: a number.\n    ", "not in Raises"),
        ("Read it.\n\n    Args:\n        entry: a number.\n\n    Raises:\n        LockedError: no.\n    ", "not in Raises"),
    ],
)  # fmt: skip
def test_check_reports_incomplete_docstrings(docstring: str, expected: str) -> None:
    code = f'def read(entry: int) -> None:\n    """{docstring}"""\n    raise ClosedError("the log was closed")\n'
    with griffe.temporary_visited_module(code) as module:
        actual_problems = [*problems("read", module["read"])]
    assert len(actual_problems) == bool(expected) and all(expected in problem for problem in actual_problems), (
        actual_problems
    )


def test_sections_of_compiled_docstrings_are_rendered() -> None:
    """Without a parser the reference shows `Args:` as text, and no warning tells of a wrong argument."""
    native = package()["CommitLog"].all_members["append"]
    docstring = (native.final_target if native.is_alias else native).docstring
    assert docstring is not None and docstring.parser == "google"
    assert {section.kind.value for section in docstring.parsed} >= {"parameters", "returns", "raises"}


def test_arguments_that_another_method_describes_are_written_out() -> None:
    """`submit` names `publish`, whose text the reference shows; its own `timeout` stays."""
    docstring = package()["TopicLike"].members["submit"].docstring
    (arguments,) = (section for section in docstring.parse("google") if section.kind.value == "parameters")
    texts = {item.name: item.description for item in arguments.value}
    assert list(texts) == [
        "value", "key", "properties", "event_time", "deliver_at", "delay", "sequence", "producer",
        "replicate_to", "timeout",
    ]  # fmt: skip
    assert texts["value"] == "bytes, or anything with a buffer."
    assert texts["sequence"].endswith("None: the next number."), "of several lines"
    assert texts["timeout"] == "seconds that a thread waits for room."
    partitioned = package()["PartitionedProducer"].members["submit_batch"].docstring.value
    assert "sequences: ascending numbers" in partitioned, "by way of Publisher.submit_batch and Publisher.publish_batch"
    assert "those of" not in partitioned
