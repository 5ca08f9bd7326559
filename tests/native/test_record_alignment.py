"""Records that were received begin at any address, and native code reads their heads in place."""

from __future__ import annotations

import subprocess
from pathlib import Path

HERE = Path(__file__).parent
NATIVE = HERE.parents[1] / "pyreplog" / "_native"


def test_record_heads_are_read_at_any_address(tmp_path: Path) -> None:
    program = tmp_path / "record_alignment"
    flags = ["-O1", "-g", "-Wall", "-Wextra", "-Werror", "-fsanitize=alignment", "-fno-sanitize-recover"]
    subprocess.run(["gcc", *flags, f"-I{NATIVE}", "-o", program, HERE / "record_alignment.c"], check=True)
    done = subprocess.run([program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
