"""Where libFuzzer begins: what is right, so that it gets behind lengths and checksums that no chance would meet."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from pathlib import Path


def seeded(arguments: list[str], seeds: Iterable[bytes]) -> list[str]:
    """The arguments, and a corpus directory with the seeds behind those that were given: what is found goes to the first."""
    folder = Path(tempfile.mkdtemp(prefix="seeds-"))
    for number, seed in enumerate(seeds):
        (folder / str(number)).write_bytes(seed)
    given = [argument for argument in arguments[1:] if not argument.startswith("-")]
    folders = [] if given else [tempfile.mkdtemp(prefix="found-")]
    return [*arguments, *folders, str(folder)]
