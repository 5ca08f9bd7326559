"""The two ways to run the benchmarks."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def run(*words: str) -> str:
    done = subprocess.run([sys.executable, "-m", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_command_writes_markdown_and_json(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    by_hand = "## Measured apart\n\nBy hand.\n"
    page.write_text(f"# Former tables\n\n{by_hand}")
    common = ("benchmarks", "--budget", "0.02", "--only", "read", "--directory", str(tmp_path / "data"))
    told = json.loads(run(*common, "--json", "--markdown", str(page)))
    assert "kernel" in told["machine"]
    (section,) = told["sections"]
    assert section["name"] == "read"
    assert len(section["comparisons"]) == 4
    text = page.read_text()
    assert text.startswith("# Benchmarks") and "Former" not in text
    assert text.endswith(f"\n\n{by_hand}"), "no row makes it, so it stays"
    assert all(comparison["work"] in text for comparison in section["comparisons"])


def test_suites_of_pytest_benchmark_run(tmp_path: Path) -> None:
    suites = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "benchmarks").glob("bench_*.py"))
    assert len(suites) == 4
    told = run("pytest", "--benchmark-disable", "-p", "no:cacheprovider", "--basetemp", str(tmp_path / "data"), *suites)
    assert "[100%]" in told
