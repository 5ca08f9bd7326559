"""Votes, positions, relay logs and raw logs with the power cut at every step."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from pyreplog._native.system.checksum import crc32c
from pyreplog.clock import SystemClock
from pyreplog.ha import logs
from pyreplog.ha.config import NodeConfig
from pyreplog.ha.node_context import NodeContext
from pyreplog.ha.protocol.members import Members, MembersFile
from pyreplog.ha.relay.position import Advance, Applied
from pyreplog.ha.relay.position_file import PositionFile
from pyreplog.ha.relay.refetch import discard
from pyreplog.log.files import RealFiles
from pyreplog.net.reactor import Reactor
from pyreplog.rocketmq.raw_log import RawLog
from pyreplog.stream.log_position import LogPosition
from pyreplog.stream.mirror_log import MirrorLog
from pyreplog.stream.terms import History, Term, TermsFile
from tests.ha.rocketmq.records import FILE_BYTES, fill
from tests.ha.streams import config, copy, make_mirror, open_master, values

from .disk import PowerCutFiles
from .operation import Operation, Report, cut_at_every_step, kill_at_every_step


class Votes(Operation):
    """Of a node that is new: what it promises it may never forget, wherever its directory was made."""

    def prepare(self, home: Path) -> None:
        pass

    def act(self, home: Path, files: PowerCutFiles, report: Report) -> None:
        path = home / "far" / "away" / "a"
        context = NodeContext(
            path=path, config=NodeConfig(name="a"), files=files, clock=SystemClock(), reactor=Reactor(),
            terms=TermsFile(path, files), members=MembersFile(path, files),
        )  # fmt: skip
        assert logs.open_mirror(context) is None
        first = max(context.terms.promised.number, 1)  # as of an earlier life
        for number in range(first, 4):
            context.terms.promise(Term(number, "b"))
            report(f"{number} 0")
        context.members.store(Members.first("abc", 1))
        report(f"{max(first, 3)} 1")
        if first <= 4:
            context.terms.begin(Term(4, "a"), LogPosition(0, 0))
            report("4 1")
        context.terms.follow(Term(5, "c"), History())
        report("5 1")

    def verify(self, left: Path, reports: list[str]) -> None:
        path = left / "far" / "away" / "a"
        number, has_members = map(int, (reports or ["0 0"])[-1].split())
        terms = TermsFile(path, RealFiles())
        assert terms.promised.number in (number, number + 1)
        assert terms.terms.is_master == (terms.promised.number == 4)
        assert MembersFile(path, RealFiles()).members is not None or not has_members


class Positions(Operation):
    """Of an applier: what was stored is not applied again."""

    def prepare(self, home: Path) -> None:
        pass

    def act(self, home: Path, files: PowerCutFiles, report: Report) -> None:
        store = PositionFile(home / "applied", files=files)
        applied = [Applied(bytes(16), 100 * entry, entry, crc32c(b"%d" % entry)) for entry in range(1, 6)]
        content = store.load()
        if content is None:
            store.begin(applied[0])
            report("1")
        for before, after in pairwise(applied[0 if content is None else content.entry - 1 :]):
            store.save(Advance(before, after))
            report(str(after.entry))

    def verify(self, left: Path, reports: list[str]) -> None:
        content, stored = PositionFile(left / "applied").load(), int((reports or ["0"])[-1])
        assert (0 if content is None else content.entry) in (stored, stored + 1)


class Discard(Operation):
    """A relay log is whole or gone, and gone when that was said."""

    ENTRIES = 100

    def prepare(self, home: Path) -> None:
        with open_master(home / "master") as master, make_mirror(home / "relay", master) as mirror:
            master.append_batch(values(self.ENTRIES))
            copy(master, mirror)
            mirror.sync()
        (home / "relay.discarded").mkdir()  # left by one that was killed
        (home / "relay.discarded" / "checkpoint").touch()

    def act(self, home: Path, files: PowerCutFiles, report: Report) -> None:
        discard(home / "relay", files=files)
        report("gone")

    def verify(self, left: Path, reports: list[str]) -> None:
        if (left / "relay").exists():
            assert not reports
            with MirrorLog(left / "relay", config()) as mirror:
                assert mirror.resume()[1] == self.ENTRIES
        discard(left / "relay")
        assert {path.name for path in left.iterdir()} == {"master"}


class Raw(Operation):
    """A RocketMQ log grows by several files, of which the first are trimmed."""

    BATCH = 12

    def prepare(self, home: Path) -> None:
        pass

    def act(self, home: Path, files: PowerCutFiles, report: Report) -> None:
        with RawLog(home / "far" / "away", file_bytes=FILE_BYTES, files=files) as log:
            for batch in range(sum(1 for _ in log.records()) // self.BATCH, 6):
                fill(log, self.BATCH, 300, first=batch * self.BATCH)
                log.sync()
                report(f"{log.start} {log.end}")
            log.trim(2 * FILE_BYTES)
            report(f"{log.start} {log.end}")

    def verify(self, left: Path, reports: list[str]) -> None:
        start, end = map(int, (reports or ["0 0"])[-1].split())
        with RawLog(left / "far" / "away", file_bytes=FILE_BYTES) as log:
            assert log.start >= start
            assert log.end >= end
            bodies = [bytes(record) for _, record in log.records()]  # all of them verified
            assert log.start or not reports or len(bodies) >= self.BATCH * len(reports) - self.BATCH
            fill(log, 1, 300)


@pytest.mark.parametrize(
    "operation", [Votes(), Positions(), Discard(), Raw()], ids=lambda operation: type(operation).__name__
)
def test_killed_before_the_power_cut(operation: Operation, ram_path: Path, seed: int) -> None:
    assert kill_at_every_step(operation, ram_path, seed, stride=5) > 10


@pytest.mark.parametrize(
    "operation", [Votes(), Positions(), Discard(), Raw()], ids=lambda operation: type(operation).__name__
)
def test_power_cut_at_every_step(operation: Operation, ram_path: Path, seed: int) -> None:
    assert cut_at_every_step(operation, ram_path, seed) > 15
