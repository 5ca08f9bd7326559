"""`pyreplog bookie` as a process: killed in the middle of adds again and again, drained, refused."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import pytest

from pyreplog.bookie.protocol import Flag, Reply, ReplyStatus
from pyreplog.bookie.registration import AVAILABLE
from pyreplog.ledger.ledger_metadata import Fragment, LedgerMetadata, State, key_proof, metadata_key
from pyreplog.ledger.ledger_store import NEXT_LEDGER
from pyreplog.metadata.url import open_store
from tests.bookie.asking import KEY, OTHER_KEY, add, entries_in, last, read, set_lac
from tests.bookie.tcp import Client

LIMIT_S = 120.0
LEDGERS = range(10)


def know_ledgers(url: str) -> None:
    """The metadata have them, with the key that requests carry."""
    with open_store(url) as store:
        if store.list("/ledgers"):
            return
        for ledger in LEDGERS:
            ledger_metadata = LedgerMetadata(
                ledger=ledger, ensemble_size=1, write_quorum=1, ack_quorum=1, fragments=(Fragment(0, ("b",)),),
                proof=key_proof(KEY),
            )  # fmt: skip
            store.create(metadata_key(ledger), ledger_metadata.encode())
        store.create(NEXT_LEDGER, b"%d" % len(LEDGERS))


class Process:
    """One that serves `path / name`; its first line says where."""

    def __init__(self, path: Path, *options: str, name: str = "b1") -> None:
        know_ledgers(f"sqlite:{path / 'metadata.sqlite'}")
        self.popen = subprocess.Popen(
            [
                sys.executable, "-m", "pyreplog", "bookie", str(path / name), "--json", "--segment-bytes", str(256 << 10),
                "--metadata", f"sqlite:{path / 'metadata.sqlite'}", *options,
            ],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self.popen.stdout is not None
        line = self.popen.stdout.readline()
        self.output = json.loads(line) if line else {}

    @property
    def address(self) -> str:
        return str(self.output["address"])

    def end(self, number: int) -> tuple[int, str]:
        """Exit code and what it complained of."""
        self.popen.send_signal(number)
        return self.result()

    def result(self) -> tuple[int, str]:
        _, error_text = self.popen.communicate(timeout=LIMIT_S)
        return self.popen.returncode, error_text


@contextmanager
def running(path: Path, *options: str) -> Iterator[Process]:
    process = Process(path, *options)
    try:
        yield process
    finally:
        if process.popen.poll() is None:
            process.end(signal.SIGKILL)
        for stream in (process.popen.stdout, process.popen.stderr):
            assert stream is not None
            stream.close()


@pytest.mark.parametrize("durability", ["appended", "synced"])
def test_killed_in_the_middle_of_adds(durability: str, tmp_path: Path, seed: int) -> None:
    """All that was acknowledged is there, also the unsynced: only the process died."""
    rng = Random(seed)
    acked: dict[int, set[int]] = {1: set(), 2: set()}
    sent = {1: 0, 2: 0}
    for _ in range(4):
        with running(tmp_path, "--durability", durability) as process, Client(process.address) as client:
            for ledger, entries in acked.items():
                numbers: set[int] = set()
                while len(numbers) < sent[ledger]:
                    reply = client.ask(read(max(numbers, default=-1) + 1, sent[ledger], ledger=ledger))
                    numbers |= set(entries_in(reply))
                    if reply.last == sent[ledger]:
                        break
                assert entries <= numbers
            answers: list[object] = []
            for _ in range(rng.randint(20, 60)):
                ledger = rng.choice((1, 2))
                first, sent[ledger] = sent[ledger], sent[ledger] + 5
                request = add(
                    *range(first, first + 5), ledger=ledger, flags=Flag.UNSYNCED if ledger == 1 else 0, mark=b"." * 300
                )
                answers.append((request, client.send(request)))
            wanted = rng.randint(0, 20)
            client.reactor.drive(lambda: sum(bool(answer) for _, answer in answers) >= wanted, LIMIT_S)  # noqa: B023
            process.end(signal.SIGKILL)
            client.reactor.drive(lambda: all(answer for _, answer in answers), LIMIT_S)  # noqa: B023
            for request, (answer,) in answers:
                if isinstance(answer, Reply) and answer.status == ReplyStatus.OK:
                    acked[request.ledger] |= set(range(request.first, request.last + 1))
    assert acked[1] or acked[2]


def test_fences_keys_and_lacs_survive_kill(tmp_path: Path) -> None:
    """33"""
    with running(tmp_path) as process, Client(process.address) as client:
        client.ask(add(0, 1))
        client.ask(set_lac(1))
        client.ask(last(fence=True, ledger=9))
        client.ask(last(fence=True))
        assert process.end(signal.SIGKILL)[0] == -signal.SIGKILL
    with running(tmp_path) as process, Client(process.address) as client:
        for ledger in (7, 9):
            assert client.ask(add(2, ledger=ledger)).status == ReplyStatus.FENCED
            assert client.ask(last(ledger=ledger, fence=True, key=OTHER_KEY)).status == ReplyStatus.UNAUTHORIZED
        assert client.ask(last()) == Reply(ReplyStatus.OK, 7, 0, 1, 1)


def test_sigterm_drains_a_bookie_and_unregisters_it(tmp_path: Path) -> None:
    with (
        running(tmp_path) as process,
        Client(process.address) as client,
        open_store(f"sqlite:{tmp_path / 'metadata.sqlite'}") as store,
    ):
        assert store.list(AVAILABLE) == [process.output["bookie"]]
        assert client.ask(add(0)).status == ReplyStatus.OK
        assert process.end(signal.SIGTERM) == (0, "")
        assert store.list(AVAILABLE) == []
    with running(tmp_path) as again:
        assert again.output["bookie"] == process.output["bookie"]


def test_refusals_are_one_line_and_an_exit_code(tmp_path: Path) -> None:
    with running(tmp_path) as process:
        with running(tmp_path) as second:
            code, error_text = second.result()
            assert code == 3 and f"process {process.popen.pid}" in error_text and error_text.count("\n") == 1
        with Client(process.address) as client:
            assert client.ask(add(0)).status == ReplyStatus.OK, "the first one goes on"
        process.end(signal.SIGTERM)
    (tmp_path / "b1").rename(tmp_path / "elsewhere")
    with running(tmp_path) as emptied:
        code, error_text = emptied.result()
        assert code == 4 and "--replace" in error_text and error_text.count("\n") == 1
    with running(tmp_path, "--replace") as replaced:
        assert replaced.output["bookie"].startswith("b1@") and replaced.output["bookie"] != process.output["bookie"]
    with running(tmp_path, "--listen", "nowhere") as bad:
        assert bad.result()[0] == 2


def test_the_only_copies_are_not_replaced_unasked(tmp_path: Path) -> None:
    """An empty directory takes the name of a bookie that has the only copies of 5 entries: not without --yes."""
    with running(tmp_path) as process:
        process.end(signal.SIGTERM)
    former = process.output["bookie"]
    ledger_metadata = LedgerMetadata(
        ledger=20, ensemble_size=1, write_quorum=1, ack_quorum=1, fragments=(Fragment(0, (former,)),),
        proof=key_proof(KEY), state=State.CLOSED, last_entry=4,
    )  # fmt: skip
    with open_store(f"sqlite:{tmp_path / 'metadata.sqlite'}") as store:
        store.create(metadata_key(20), ledger_metadata.encode())
    with running(tmp_path, "--replace") as again:
        assert again.output["bookie"] == former, "the directory is not empty"
        assert again.end(signal.SIGTERM) == (0, ""), "and nothing was read for that"
    (tmp_path / "b1").rename(tmp_path / "elsewhere")
    (tmp_path / "b1" / "lost+found").mkdir(parents=True)
    with running(tmp_path, "--replace") as refused:
        code, error_text = refused.result()
        assert code == 6 and f"{former} has the only copies of entries of 1 ledger, ledger 20 first" in error_text
        assert "--yes" in error_text.splitlines()[-1]
    assert [path.name for path in (tmp_path / "b1").iterdir()] == ["lost+found"], "nothing was changed"
    with running(tmp_path, "--replace", "--yes") as replaced:
        assert replaced.output["bookie"] != former
        error_text = replaced.end(signal.SIGTERM)[1]
        assert f"bookie {former}: 1 ledger names it\n  ledger 20: 5 entries are lost\n" in error_text


def test_replacing_a_running_bookie_warns_with_its_address(tmp_path: Path) -> None:
    with running(tmp_path) as former:
        successor = Process(tmp_path, "--name", "b1", "--replace", name="other")
        assert successor.output["bookie"] not in ("", former.output["bookie"])
        error_text = successor.end(signal.SIGTERM)[1]
        assert f"it is still registered: if it runs at {former.address}, stop it\n" in error_text


def test_advertised_address_is_registered(tmp_path: Path) -> None:
    """Where it listens is nobody's business then: all addresses, or those of a container."""
    with (
        running(tmp_path, "--listen", "0.0.0.0:0", "--advertise", "bookie.example.org:4181") as process,
        open_store(f"sqlite:{tmp_path / 'metadata.sqlite'}") as store,
    ):
        assert process.address == "bookie.example.org:4181"
        (name,) = store.list(AVAILABLE)
        stored = store.get(f"{AVAILABLE}/{name}")
        assert stored is not None and json.loads(stored.value)["address"] == "bookie.example.org:4181"
    for bad in ("bookie.example.org", ":4181", "bookie.example.org:99999"):
        with running(tmp_path, "--advertise", bad) as process:
            assert process.result()[0] == 2
    with running(tmp_path, "--listen", "0.0.0.0:0") as process:
        code, error_text = process.result()
        assert code == 2 and "--advertise" in error_text
