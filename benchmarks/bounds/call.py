"""`append` of 1 KiB with the log taken out of it: a call from Python that copies the value, or encodes it."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.areas import recycled_area
from benchmarks.entries import SIZES, in_turn, make_values, stride
from benchmarks.limits import bare, calls
from benchmarks.plan import Plan
from benchmarks.result import Comparison, Figure, Section
from benchmarks.sampling import interleave, timed

_SIZE = 1024
_PARTS = {
    "empty": "an empty call",
    "copy": "a call that copies",
    "encode": "a call that copies with header, CRC and clock",
}


def call(plan: Plan) -> Section:
    """One call per value beside a loop of memcpy in C."""
    section = Section("bound-call", f"What bounds one append of {SIZES[_SIZE]}: the call before the copy")
    values = make_values(_SIZE)
    entries = in_turn(values, plan.segment_bytes // stride(_SIZE) // len(values) * len(values))
    native, count, empty = bare.Values(values), len(entries), calls.Empty()
    with recycled_area(plan) as area, recycled_area(plan) as encoded:
        found = interleave(
            plan,
            {
                "memcpy": lambda: timed(lambda: area.copy(native, count), count),
                "empty": lambda: timed(lambda: _each(empty.append, entries), count),
                "copy": lambda: timed(lambda: _each(area.copy_one, entries), count),
                "encode": lambda: timed(lambda: _each(encoded.encode_one, entries), count),
            },
        )
        checked = f"{area.check_copied(native):,} copies, {encoded.check_encoded(native):,} records"
    section.comparisons += [
        Comparison(
            part,
            Figure("Cython method, bytes -> int", found[name], "s", "appended", _SIZE),
            Figure("glibc memcpy in a C loop", found["memcpy"], "s", "appended", _SIZE),
            None,
            checked,
        )
        for name, part in _PARTS.items()
    ]
    section.notes.append(
        "No log takes part. The third line is all that an append has to do to bytes, done in a call from Python; what "
        "`append` takes beyond that is index, publication and rolls."
    )
    return section


def _each(append: Callable[[bytes], object], entries: list[bytes]) -> None:
    for entry in entries:
        append(entry)
