"""Programs of the documentation, to be run as they are printed."""

from __future__ import annotations

import contextlib
import io
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]


def blocks(path: Path) -> list[str]:
    """The Python programs of a page."""
    return [text for language, text in fences(path) if language == "python"]


def fences(path: Path) -> list[tuple[str, str]]:
    """The code blocks of a page: language and text of each."""
    return re.findall(r"^```(\w+)\n(.*?)^```$", path.read_text(), re.DOTALL | re.MULTILINE)


def placed(block: str, places: dict[str, str]) -> str:
    """The same with other paths and addresses."""
    for printed, here in places.items():
        block = block.replace(printed, here)
    return block


def patient(block: str) -> str:
    """The same, on a machine that may have much else to do."""
    return re.sub(r"timeout([=(])5\.0", r"timeout\g<1>30.0", block).replace("(timeout=1.0)", "(timeout=5.0)")


def run(block: str, namespace: dict[str, Any]) -> list[str]:
    """Run it; the lines that it prints."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(patient(block), "guide", "exec"), namespace)
    return out.getvalue().splitlines()


def run_as_promised(block: str, namespace: dict[str, Any]) -> None:
    """Run it. What stands in a comment behind a `print` is what it prints."""
    printed = run(block, namespace)
    for promised in re.findall(r"^ *print\(.*\)  # (.*)$", block, re.MULTILINE):
        assert promised in printed, f"{block}\nprinted {printed}"


@contextlib.contextmanager
def server(directory: str) -> Iterator[str]:
    """`pyreplog serve`, where it serves."""
    command = [sys.executable, "-W", "error", "-m", "pyreplog", "serve", directory, "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            yield json.loads(process.stdout.readline())["address"]
        finally:
            process.terminate()
            assert process.wait(30) == 0
