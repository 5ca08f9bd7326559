"""FORMAT.md, layout.h and the plain-Python twin agree on every byte."""

from __future__ import annotations

import random
import re
import subprocess
from pathlib import Path

import pytest

import pyreplog
from tests import twin

NATIVE = Path(pyreplog.__file__).parent / "_native"
FORMAT = (NATIVE / "FORMAT.md").read_text()
SOURCE = re.findall(
    r'cdef extern from \*:\n    """\n(.*?)"""', (NATIVE / "ledger_log" / "index_file.pxd").read_text(), re.DOTALL
)[0]
"""What index_file.pxd has in C; includes layout.h."""

TABLE = re.compile(r"<!-- table: (\w+) -->\n\|[^\n]*\n\|[-|]*\n((?:\|[^\n]*\n)+)")


def documented() -> dict[str, list[tuple[int, int, str]]]:
    """Rows (offset, bytes, field) of every table of a structure."""
    tables = {}
    for name, body in TABLE.findall(FORMAT):
        rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in body.splitlines()]
        tables[name] = [(int(row[0]), int(row[1]), row[2]) for row in rows]
    return tables


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[tuple[int, int, str]]]:
    """The same, as the compiler lays them out."""
    folder = tmp_path_factory.mktemp("layout")
    lines = []
    for name, rows in documented().items():
        lines.append(f'printf("{name} {len(rows)} %zu\\n", sizeof({name}));')
        for _, _, field in rows:
            lines.append(
                f'printf("{name} {field} %zu %zu\\n", offsetof({name}, {field}), sizeof((({name} *)0)->{field}));'
            )
    source = folder / "layout.c"
    source.write_text(f"#include <stdio.h>\n{SOURCE}\nint main(void) {{ {' '.join(lines)} return 0; }}\n")
    subprocess.run(["gcc", "-I", NATIVE, source, "-o", folder / "layout"], check=True)
    output = subprocess.run([folder / "layout"], check=True, capture_output=True, text=True).stdout
    tables: dict[str, list[tuple[int, int, str]]] = {}
    for line in output.splitlines():
        name, field, *numbers = line.split()
        if len(numbers) == 1:
            tables[name] = []
        else:
            tables[name].append((int(numbers[0]), int(numbers[1]), field))
    return tables


STRUCTURES = ["segment", "record", "short", "counted", "long", "messages", "index", "index_block", "time_range", "tail", "ledger_index",
              "ledger_run"]  # fmt: skip


def test_every_structure_has_a_table():
    sources = (NATIVE / "layout.h").read_text() + SOURCE
    in_header = set(re.findall(r"^ *} (replog_\w+);", sources, re.MULTILINE))
    assert in_header == set(documented()) == {f"replog_{name}" for name in STRUCTURES}


@pytest.mark.parametrize("name", STRUCTURES)
def test_table_is_the_compiled_structure(name, compiled):
    assert documented()[f"replog_{name}"] == compiled[f"replog_{name}"]


@pytest.mark.parametrize("name", STRUCTURES)
def test_table_has_no_gap(name):
    at = 0
    for offset, size, field in documented()[f"replog_{name}"]:
        assert offset == at, field
        at += size


@pytest.mark.parametrize("durability", ["appended", "synced"])
def test_twin_reads_what_was_written(tmp_path, durability):
    rng = random.Random(1)
    written = []
    with pyreplog.open(tmp_path / "log", segment_bytes=1 << 16, durability=durability) as log:
        for number in range(600):
            value = rng.randbytes(rng.choice([0, 1, 7, 8, 9, 100, 1000]))
            key = rng.choice([None, b"", rng.randbytes(rng.randrange(20))])
            event_time = rng.choice([None, rng.randrange(-(1 << 40), 1 << 60)])
            properties = rng.choice([None, {"a": "b", "name": b"\x00\xff"}])
            if number % 50 == 0:
                log.append_batch([], control=b"c%d" % number)
            assert log.append(value, key, event_time=event_time, properties=properties) == number
            written.append((number, key, value, event_time, properties))
        log.sync()
        records = twin.read_log(tmp_path / "log")
        mine = [record for batch in log.read_positions(log.start_position, all_kinds=True) for record in batch]
    assert [(r.position, r.kind, r.time, r.entry, r.synced, r.key, r.value) for r in records] == [
        (r.position, r.kind, r.timestamp, r.entry, r.lac, r.key, r.value) for r in mine
    ]
    assert [r.attributes for r in records] == [tuple(r.attributes) for r in mine]
    data = [r for r in mine if r.kind == 1]
    assert [(r.entry, r.key, r.value, r.event_time) for r in data] == [row[:4] for row in written]
    assert [r.properties for r in data] == [
        {name: value.encode() if isinstance(value, str) else value for name, value in (row[4] or {}).items()}
        for row in written
    ]
    assert [r.value for r in mine if r.kind == 3] == [b"c%d" % n for n in range(0, 600, 50)]


@pytest.mark.parametrize("times", [False, True])
def test_twin_makes_the_same_sparse_index(tmp_path, seed, times):
    """From records of one size and of many, with and without numbers and event times."""
    rng = random.Random(seed)
    with pyreplog.open(tmp_path / "log", segment_bytes=1 << 17) as log:
        while len(sealed := sorted(log.path.glob("*.log"))) < 6:
            size, count = rng.choice([0, 1, 100, 1000, 9000]), rng.randrange(1, 200)
            event_times = [rng.choice([None, rng.randrange(-(1 << 40), 1 << 60)]) for _ in range(count)]
            log.append_batch([rng.randbytes(size)] * count, None, event_times if times else None)
            if rng.random() < 0.3:
                log.append_batch([], control=rng.randbytes(rng.randrange(40)))
            log.append_batch([rng.randbytes(rng.randrange(5000)) for _ in range(rng.randrange(20))])
    compared = 0
    for path in sealed:
        index = path.with_suffix(".idx")
        if index.exists():
            assert index.read_bytes() == twin.make_index(path), path
            compared += 1
    assert compared >= 3


def test_stamps_of_one_log_differ():
    """Two segments of one epoch, and one place in two epochs, never share a stamp."""
    uuid = bytes(range(16))
    same_epoch = {twin.TwinSegment(uuid, place << 16, 1 << 16, 0, 3).stamp for place in range(2000)}
    same_place = {twin.TwinSegment(uuid, 5 << 16, 1 << 16, 0, epoch).stamp for epoch in range(2000)}
    assert (len(same_epoch), len(same_place)) == (2000, 2000)
