"""Coverage-guided fuzzing of record and segment parsing: `python tests/fuzz/fuzz_segment.py -max_total_time=60`.

Needs atheris (dependency group "fuzz"). The first byte decides whether stamps and checksums are mended.
"""

import sys
from pathlib import Path

import atheris

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests import twin
from tests.fuzz import segments
from tests.fuzz.seeds import seeded

segments.twin_of = atheris.instrument_func(segments.twin_of)
twin.read_record = atheris.instrument_func(twin.read_record)  # its branches show the way


@atheris.instrument_func
def target(data: bytes) -> None:
    if data:
        version = 2 if data[0] & 4 else 1
        segments.exercise(data[1:], mended=bool(data[0] & 1), first_entry=-1 if data[0] & 2 else 0, version=version)


if __name__ == "__main__":
    atheris.Setup(seeded(sys.argv, segments.seeds()), target)
    atheris.Fuzz()
