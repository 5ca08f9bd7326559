"""Systematic mutation: change one place of the sources at a time, and see whether a test fails.

    python -m tests.mutants map                             # once: which test runs which line (about the time of the tests)
    python -m tests.mutants run --sample 500 --cython 100   # mutants 0 to 499 of the sample; run it again to go on
    python -m tests.mutants run --sample 500 --first 100 --last 199
    python -m tests.mutants table                           # writes tests/mutants/table.md

A sample is drawn by `--seed`: the mutants whose identity has the lowest hash with it, so a sample stays the same when
other lines change. Results are added to tests/mutants/results.jsonl, one line for each mutant, as they come; a mutant
that has a result is not run again, unless it survived and `--again` is given. A survivor that changes nothing that a
caller can see is explained in tests/mutants/equivalent.txt: its identity, a blank, and why.

Each mutant gets a copy of the tree of its own. The tests that cover its line come first, the quickest of them first;
then those of its target, and those that run it in processes of their own, which the map does not see. A test that hangs is
ended, by pytest or by this program, is named, and counts as failed. A mutant of Cython is built first; one that does not
compile is no mutant.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import NamedTuple
from xml.etree import ElementTree

from tests.mutants.mutations import Mutation, mutations
from tests.mutants.targets import TARGETS, Target
from tests.trees import ROOT, Tree

HERE = Path(__file__).parent
RESULTS, EQUIVALENT, TABLE = HERE / "results.jsonl", HERE / "equivalent.txt", HERE / "table.md"
MAP = ROOT / "build" / "mutants"
MAPPED = ("tests/unit", "tests/property", "tests/native", "tests/net", "tests/bookie", "tests/ledger", "tests/ha",
          "tests/topic", "tests/simulation", "tests/metadata", "tests/spark")  # fmt: skip
NOT_MAPPED = "not ctrl_c"
"""Tests that interrupt a process at every bytecode are not recorded: they would interrupt the recording, too."""
COVERING_S = 30.0
"""Of the tests that cover a line, so many seconds of the quickest are run first."""
OF_THE_TREE = (
    "tests/unit/test_tidy.py",
    "tests/unit/test_private_reads.py",
    "tests/unit/test_named.py",
    "tests/unit/test_distribution.py",
)
"""Tests of files rather than of what they do; a copy of the tree lacks some of them."""
NO_TESTS = 5  # pytest's exit code
HANG_S = 120
"""A test that takes so long hangs: pytest ends itself, and says where."""
SILENCE_S = HANG_S + 60.0
"""When pytest names no further test for so long, and has not ended, it is killed: its tests hang where it cannot see it."""
HUNG = "a test that hung"
TOLD = ("--verbosity=1", "-o", f"faulthandler_timeout={HANG_S}")
"""Options of pytest by which it names each test when it begins."""
OUTCOME = re.compile(r" (PASSED|FAILED|ERROR|SKIPPED|XFAIL|XPASS)\b")


@dataclass(frozen=True)
class Mutant:
    target: Target
    mutation: Mutation

    @property
    def is_native(self) -> bool:
        return self.mutation.path.endswith(".pyx")


class Numbered(NamedTuple):
    """A mutant, and its place in the sample that drew it."""

    seed: int
    number: int
    mutant: Mutant


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description="Mutate the sources, run the tests.")
    actions = parser.add_subparsers(dest="action", required=True)
    actions.add_parser("map", help="record which test runs which line")
    run = actions.add_parser("run", help="run the mutants of a sample that have no result yet")
    run.add_argument("--seed", type=int, default=1, help="of the sample (default 1)")
    run.add_argument("--sample", type=int, default=500, metavar="N", help="mutants of the sample (default 500)")
    run.add_argument(
        "--cython", type=int, default=100, metavar="N", help="at most so many of them in Cython (default 100)"
    )
    run.add_argument("--first", type=int, default=0, metavar="N", help="the first mutant of the sample to run")
    run.add_argument("--last", type=int, metavar="N", help="the last one")
    run.add_argument("--again", action="store_true", help="run survivors again")
    run.add_argument(
        "--survivors", action="store_true", help="run again the survivors of all samples that the sources still have"
    )
    run.add_argument(
        "--covering", action="store_true",
        help="of a mutant whose line the map knows, run only tests that cover it; of others, the quickest of their target",
    )  # fmt: skip
    run.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), metavar="N", help="mutants at a time")
    actions.add_parser("table", help="write the table of all results")
    arguments = parser.parse_args()
    if arguments.action == "map":
        return record_coverage()
    if arguments.action == "table":
        return write_table()
    return run_sample(arguments)


# ---- the sample ------------------------------------------------------------------------------------------------


def sample(seed: int, count: int, cython: int) -> list[Mutant]:
    """Draw mutants of all targets; at most `cython` of them native."""

    def rank(mutant: Mutant) -> bytes:
        return hashlib.blake2b(f"{seed} {mutant.mutation.identity}".encode()).digest()

    drawn: list[Mutant] = []
    native = 0
    for mutant in sorted(_all_mutants(), key=rank):
        if len(drawn) == count:
            break
        if mutant.is_native and native == cython:
            continue
        native += mutant.is_native
        drawn.append(mutant)
    return drawn


def _survivors() -> list[Numbered]:
    """Return the survivors of all samples that are not known to be equivalent, if the sources still have them."""
    left = {result["mutant"]: result for result in results() if result["outcome"] == "survived"}
    for mutant in equivalents():
        left.pop(mutant, None)
    return [
        Numbered(int(result["seed"]), int(result["number"]), mutant)
        for mutant in _all_mutants()
        if (result := left.get(mutant.mutation.identity)) is not None
    ]


def _all_mutants() -> Iterator[Mutant]:
    for target in TARGETS:
        for path in target.files():
            for mutation in mutations(path, path.relative_to(ROOT).as_posix()):
                yield Mutant(target, mutation)


# ---- which test covers which line ------------------------------------------------------------------------------


def record_coverage() -> int:
    """Run the tests once, recording for each line the tests that run it: a file for each folder of tests.

    A folder that has its file is not run again. The code is not 0 when the tests of one could not be recorded.
    """
    MAP.mkdir(parents=True, exist_ok=True)
    code = 0
    for folder in MAPPED:
        recorded, times = MAP / f"coverage.{Path(folder).name}", MAP / f"times.{Path(folder).name}.xml"
        if recorded.exists():
            continue
        partial = recorded.with_suffix(".partial")
        command = [
            sys.executable, "-m", "pytest", "-q", "--numprocesses", "auto", "--dist", "worksteal", "--cov=pyreplog",
            "--cov-context=test", "--cov-report=", f"--junitxml={times}", "-k", NOT_MAPPED, folder,
        ]  # fmt: skip
        done = subprocess.run(command, cwd=ROOT, env={**os.environ, "COVERAGE_FILE": str(partial)})
        if partial.exists() and done.returncode in (0, 1):  # a test that fails because it is traced has run its lines
            partial.rename(recorded)
        else:
            code = 1
    return code


class Coverage:
    """The tests that run a line, and how long each takes; empty without a recorded map."""

    def __init__(self) -> None:
        self._lines: dict[str, dict[int, list[str]]] = {}
        self._seconds: dict[str, float] = {}
        self.times = MAP / "times.json"
        for times in MAP.glob("times.*.xml"):
            for case in ElementTree.parse(times).iter("testcase"):
                name = f"{case.get('classname', '').rpartition('.')[2]}::{case.get('name')}"
                self._seconds[name] = float(case.get("time", "0"))
        MAP.mkdir(parents=True, exist_ok=True)
        self.times.write_text(json.dumps(self._seconds))

    def tests(self, mutation: Mutation) -> list[str]:
        """Return the quickest tests that run the line, in order of their time."""
        line = mutation.span[0][0]
        contexts = self._contexts(mutation.path).get(line, [])
        sorted_contexts = sorted({context.partition("|")[0] for context in contexts if context}, key=self._time)
        chosen, seconds = [], 0.0
        for test in sorted_contexts:
            seconds += self._time(test)
            if chosen and seconds > COVERING_S:
                break
            chosen.append(test)
        return chosen

    def _time(self, test: str) -> float:
        path, _, name = test.partition("::")
        function, bracket, parameters = name.partition("[")  # parameters may hold "::" as well
        return self._seconds.get(f"{Path(path).stem}::{function.rpartition('::')[2]}{bracket}{parameters}", 1.0)

    def _contexts(self, path: str) -> dict[int, list[str]]:
        if path not in self._lines:
            self._lines[path] = self._read(path)
        return self._lines[path]

    @staticmethod
    def _read(path: str) -> dict[int, list[str]]:
        lines: dict[int, list[str]] = {}
        for recorded in MAP.glob("coverage.*"):
            from coverage import CoverageData

            data = CoverageData(str(recorded))
            data.read()
            for line, contexts in data.contexts_by_lineno(str(ROOT / path)).items():
                lines.setdefault(line, []).extend(contexts)
        return lines


# ---- running ---------------------------------------------------------------------------------------------------


def run_sample(arguments: argparse.Namespace) -> int:
    """Run the mutants of a sample that have no result yet, and print each."""
    if arguments.survivors:
        waiting = _survivors()
        print(f"{len(waiting)} survivors to run", flush=True)
    else:
        drawn = sample(arguments.seed, arguments.sample, arguments.cython)
        last = len(drawn) - 1 if arguments.last is None else arguments.last
        done = {result["mutant"]: result["outcome"] for result in results()}
        waiting = [
            Numbered(arguments.seed, number, mutant)
            for number, mutant in enumerate(drawn[: last + 1])
            if number >= arguments.first
            and (
                mutant.mutation.identity not in done
                or (arguments.again and done[mutant.mutation.identity] == "survived")
            )
        ]
        print(f"seed {arguments.seed}: {len(drawn)} mutants drawn, {len(waiting)} to run", flush=True)
    coverage, writing = Coverage(), Lock()
    with tempfile.TemporaryDirectory(prefix="pyreplog-mutants-") as folder:
        sound = Tree(ROOT, Path(folder) / "sound")
        witnesses = Witnesses(sound)

        def run(numbered: Numbered) -> None:
            seed, number, mutant = numbered
            began = time.monotonic()
            outcome, by = _run(mutant, sound, coverage, witnesses, arguments.covering)
            result = _result(seed, number, mutant, outcome, by, time.monotonic() - began)
            with writing, RESULTS.open("a") as file:
                file.write(json.dumps(result) + "\n")
            place = f"{mutant.mutation.path}:{mutant.mutation.span[0][0]}"
            print(f"{number:4} {outcome:9} {place} {mutant.mutation.operator}: {mutant.mutation.line}", flush=True)

        with ThreadPoolExecutor(arguments.jobs) as threads:
            list(threads.map(run, waiting))
    return 0


class Witnesses:
    """Tests that fail on the sound tree as well: they tell nothing of a mutant. Any thread may ask."""

    def __init__(self, sound: Tree) -> None:
        self._sound = sound
        self._verdicts: dict[str, bool] = {}

    def is_sound(self, test: str) -> bool:
        """Whether a test passes on the sound tree."""
        if test not in self._verdicts:
            self._verdicts[test] = not self._sound.test(*TOLD, test, silence_s=SILENCE_S)[0]
        return self._verdicts[test]

    def rejected(self) -> list[str]:
        return [test for test, passes in list(self._verdicts.items()) if not passes]


def _run(mutant: Mutant, sound: Tree, coverage: Coverage, witnesses: Witnesses, covering: bool) -> tuple[str, str]:
    """Return the outcome and the test that failed. covering: the tests of the target are for lines that none covers."""
    with tempfile.TemporaryDirectory(prefix="pyreplog-mutant-", ignore_cleanup_errors=True) as folder:
        tree = sound.linked(Path(folder))
        path = tree.folder / mutant.mutation.path
        source = mutant.mutation.applied(path.read_text())
        path.unlink()  # it is a link
        path.write_text(source)
        try:
            if mutant.is_native:
                tree.build()
            else:
                compile(source, str(path), "exec")
        except (RuntimeError, SyntaxError):
            return "invalid", ""
        covers = coverage.tests(mutant.mutation)
        quickest = ("-p", "tests.mutants.quickest")
        stages = (
            [(quickest, covers)] if covering and covers else [(quickest, covers), (quickest, [*mutant.target.tests])]
        )
        if covering:
            stages.append(((), [*mutant.target.unseen]))
        os.environ["MUTANTS_TIMES"] = str(coverage.times)
        os.environ["MUTANTS_SECONDS"] = str(COVERING_S if covering else 0)
        for plugin, tests in stages:
            while tests:
                skipped = [f"--deselect={test}" for test in (*OF_THE_TREE, *witnesses.rejected())]
                code, output = tree.test(*plugin, *TOLD, *skipped, *tests, silence_s=SILENCE_S)
                if not code or code == NO_TESTS:
                    break
                failed, hung = _failed(output), unfinished_test(output)
                if failed and witnesses.is_sound(failed):
                    return "killed", failed
                if not failed and (not hung or witnesses.is_sound(hung)):
                    return "killed", f"{HUNG}: {hung}" if hung else f"{HUNG}, the start, or the end"
    return "survived", ""


def _failed(output: str) -> str:
    lines = [line for line in output.splitlines() if line.startswith(("FAILED tests/", "ERROR tests/"))]
    return lines[0].split()[1].partition("[")[0] if lines else ""


def unfinished_test(output: str) -> str:
    """Return the test that had begun, and had no outcome, when pytest ended; "": there is none."""
    lines = [line for line in output.splitlines() if line.startswith("tests/") and "::" in line]
    return lines[-1].split()[0].partition("[")[0] if lines and not OUTCOME.search(lines[-1]) else ""


# ---- results ---------------------------------------------------------------------------------------------------


def _result(seed: int, number: int, mutant: Mutant, outcome: str, by: str, seconds: float) -> dict[str, object]:
    mutation = mutant.mutation
    return {
        "mutant": mutation.identity, "seed": seed, "number": number, "target": mutant.target.name,
        "path": mutation.path, "line": mutation.line, "operator": mutation.operator, "before": mutation.before,
        "after": mutation.after, "outcome": outcome, "by": by, "seconds": round(seconds, 1),
    }  # fmt: skip


def results() -> list[dict[str, str]]:
    """Return the last result of each mutant."""
    return list({result["mutant"]: result for result in all_results()}.values())


def all_results() -> list[dict[str, str]]:
    """Return the results of all runs, the earliest first."""
    return [json.loads(line) for line in RESULTS.read_text().splitlines()] if RESULTS.exists() else []


def equivalents() -> dict[str, str]:
    """Return the mutants that no caller can tell from the sources, with the reason."""
    if not EQUIVALENT.exists():
        return {}
    return dict(line.split(" ", 1) for line in EQUIVALENT.read_text().splitlines() if line.strip())


def write_table() -> int:
    """Write the table of the results of all mutants that there are still, with every survivor."""
    reasons, existing = equivalents(), {mutant.mutation.identity for mutant in _all_mutants()}
    counts = Counter[tuple[str, str]]()
    survivors = []
    for result in results():
        outcome = result["outcome"]
        if result["mutant"] not in existing:
            continue  # its line was changed since
        if outcome == "survived" and result["mutant"] in reasons:
            outcome = "equivalent"
        counts[result["target"], outcome] += 1
        if outcome in ("survived", "equivalent"):
            survivors.append((result, reasons.get(result["mutant"], "")))
    lines = ["# Mutants", "", "Written by `python -m tests.mutants table`.", ""]
    lines += ["| target | killed | survived | equivalent | of those that are not equivalent |", "|---|---|---|---|---|"]
    for name in [*(target.name for target in TARGETS), "all"]:
        killed, survived, equivalent = (
            sum(count for (target, kind), count in counts.items() if kind == outcome and name in (target, "all"))
            for outcome in ("killed", "survived", "equivalent")
        )
        share = f"{100 * killed / (killed + survived):.1f} %" if killed + survived else "-"
        lines.append(f"| {name} | {killed} | {survived} | {equivalent} | {share} |")
    lines += ["", *_first_looks(reasons)]
    lines += ["", "| mutant | place | change | why it is equivalent |", "|---|---|---|---|"]
    for result, reason in sorted(survivors, key=lambda pair: (bool(pair[1]), pair[0]["path"])):
        change = (
            f"{result['operator']}: `{_cell(result['line'])}`, `{_cell(result['before'])}` → `{_cell(result['after'])}`"
        )
        lines.append(f"| {result['mutant']} | {result['path']} | {change} | {reason or '**survived**'} |")
    TABLE.write_text("\n".join(lines) + "\n")
    print(f"wrote {TABLE.relative_to(ROOT)}")
    return 0


def _first_looks(reasons: dict[str, str]) -> list[str]:
    """Return a table of what the tests caught of each sample before anybody looked at its survivors."""
    first = {result["mutant"]: result for result in reversed(all_results())}.values()
    lines = ["| seed of the sample | caught at the first look | of those that are not equivalent |", "|---|---|---|"]
    for seed in sorted({result["seed"] for result in first}):
        found = [result for result in first if result["seed"] == seed and result["mutant"] not in reasons]
        caught = sum(result["outcome"] == "killed" for result in found)
        lines.append(f"| {seed} | {caught} of {len(found)} | {100 * caught / len(found):.1f} % |")
    return lines


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())


if __name__ == "__main__":
    sys.exit(main())
