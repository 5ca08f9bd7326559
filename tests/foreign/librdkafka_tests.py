"""`python -m tests.foreign.librdkafka_tests`: librdkafka's own tests against three brokers of this checkout. It needs npm and a C compiler.

The package node-rdkafka of npm carries them. The tests that need a broker run one after the other in their quick mode;
those of librdkafka's mock brokers, and those without a broker, are left out. A test that cannot pass is left out by
name; the table says why.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from pyreplog.kafka import EmbeddedKafka, KafkaConfig

_VERSION = "3.6.1"
"""Of node-rdkafka."""
_LIMIT_S = 300
_BUILD = Path(__file__).resolve().parents[2] / "build" / "foreign"
_TEST = re.compile(r"\b_TEST\((\d{4})_(\w+),\s*([^,)]*)")
_LEFT_OUT_FLAGS = ("TEST_F_LOCAL", "TEST_F_MANUAL", "TEST_F_KNOWN_ISSUE")

SKIPPED = {
    "0081": "a topic with compression.type=lz4 is refused: brokers store what producers compress",
    "0103": "deletes records behind the marker of a transaction as soon as EndTxn is answered: the marker may come later",
    "0129": "segments of 20,000 bytes are refused, as by Kafka 4 (KIP-1030)",
    **dict.fromkeys(("0052", "0077", "0109", "0115", "0119"), "calls scripts of an installed Kafka"),
}
"""Why a test is left out, by its number."""


def build() -> Path:
    """Fetch and build librdkafka and its tests, once; return the folder of the tests.

    Raises:
        RuntimeError: npm, or the compiler, failed.
    """
    folder = _BUILD / f"librdkafka-{_VERSION}"
    tests = folder / "package" / "deps" / "librdkafka" / "tests"
    if (tests / "test-runner").exists():
        return tests
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    _run(["npm", "pack", "--silent", f"node-rdkafka@{_VERSION}"], folder)
    with tarfile.open(folder / f"node-rdkafka-{_VERSION}.tgz") as archive:
        archive.extractall(folder, filter="data")
    _run(["./configure", "--disable-gssapi", "--disable-sasl"], tests.parent)
    _run(["make", "-j2", "libs"], tests.parent)
    _run(["make", "-j2", "-C", "tests", "build"], tests.parent)
    return tests


def _run(words: list[str], folder: Path) -> None:
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(words)} failed:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")


def tests_of(folder: Path) -> dict[str, list[str]]:
    """Return the tests that need a broker, by number: each has one file, and some have several names."""
    source = (folder / "test.c").read_text()
    found: dict[str, list[str]] = {}
    for number, name, flags in _TEST.findall(source[source.index("struct test tests[]") :]):
        if name.endswith("_mock") or flags.strip() in _LEFT_OUT_FLAGS or int(number) >= 1000:
            continue
        found.setdefault(number, []).append(name)
    return found


def run(folder: Path, number: str, servers: str, settings: Path) -> tuple[bool, str]:
    """Run the tests with a number; return whether they passed, and the end of what they print."""
    settings.write_text(f"metadata.broker.list={servers}\ntest.topic.random=true\n")
    environment = os.environ | {
        "TESTS": number, "TEST_KAFKA_VERSION": "4.1.0", "RDKAFKA_TEST_CONF": str(settings),
        "LD_LIBRARY_PATH": f"{folder.parent / 'src'}:{folder.parent / 'src-cpp'}",
    }  # fmt: skip
    try:
        done = subprocess.run(
            ["./test-runner", "-p1", "-Q", "-L"], cwd=folder, env=environment, timeout=_LIMIT_S, check=False,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        return False, f"{str(error.output)[-3000:]}\nstill running after {_LIMIT_S} s"
    return done.returncode == 0, done.stdout


def main() -> None:
    """Run the tests; print which pass. Exits with 1 if one failed that is not left out."""
    parser = argparse.ArgumentParser(prog="python -m tests.foreign.librdkafka_tests", description=__doc__)
    parser.add_argument("--only", nargs="*", metavar="NUMBER", help="run these alone, as 0012, also those left out")
    only = parser.parse_args().only
    if shutil.which("npm") is None:
        print("npm is not installed: librdkafka's own tests are left out")
        return
    folder = build()
    passed, failed, skipped = [], [], []
    settings = KafkaConfig(partitions=4, replication_factor=3, min_isr=2)
    with tempfile.TemporaryDirectory() as name, EmbeddedKafka(Path(name) / "kafka", 3, config=settings) as kafka:
        for number, names in tests_of(folder).items():
            if only and number not in only:
                continue
            if number in SKIPPED and not only:
                skipped.append(number)
                continue
            is_passed, output = run(folder, number, kafka.bootstrap_servers, Path(name) / "test.conf")
            (passed if is_passed else failed).append(number)
            print(f"{number} {', '.join(names)}: {'passed' if is_passed else 'FAILED'}", flush=True)
            if not is_passed:
                print(output[-4000:], file=sys.stderr, flush=True)
    print(f"\n{len(passed)} passed, {len(failed)} failed, {len(skipped)} left out")
    for number in skipped:
        print(f"| {number} | {SKIPPED[number]} |")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
