"""A node is killed before each step on the disk while its role changes; it is restarted with the files that were left."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from pyreplog import ha
from pyreplog._native.log.disk import Steps
from pyreplog.errors import PromotionRefusedError, ReplicationTimeoutError
from pyreplog.ha.node import Node
from pyreplog.log import names
from pyreplog.log.files import RealFiles
from pyreplog.log.replica import is_replica
from tests.crash.disk import run_each
from tests.ha.inside import context_of, master_of
from tests.ha.nodes import Lab, assert_same_files, level, until, values


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    with ExitStack() as stack:
        yield Lab(tmp_path, stack)


class Snapshots(RealFiles):
    """The real disk. While `folder` is set, `directory` is copied into it before each step."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.folder: Path | None = None
        self.copies: list[tuple[str, Path]] = []

    def _step(self, subject: str) -> None:
        folder = self.folder
        if folder is None:
            return
        copy = folder / f"{len(self.copies):03d}-{subject}"
        # other threads write these two files: the records that they count have to be in the files copied later
        claims = (names.TAIL, names.CHECKPOINT)
        paths = sorted(self.directory.rglob("*"), key=lambda path: path.name not in claims)
        for path in paths:
            with suppress(FileNotFoundError):  # a file that another thread has prepared may vanish meanwhile
                if path.is_file():
                    target = copy / path.relative_to(self.directory)
                    target.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copyfile(path, target)
        self.copies.append((subject, copy))

    def run(self, steps: Steps) -> None:
        run_each(self, steps)

    def replace_small(self, path: Path, data: bytes) -> None:
        self._step(f"replace-{path.name}")
        super().replace_small(path, data)

    def rename(self, old: Path, new: Path) -> None:
        self._step(f"rename-{new.name}")
        super().rename(old, new)

    def remove(self, path: Path) -> None:
        self._step(f"remove-{path.name}")
        super().remove(path)

    def write(self, fd: int, data: bytes | memoryview, offset: int) -> None:
        self._step("write")
        super().write(fd, data, offset)

    def sync_directory(self, path: Path) -> None:
        self._step("sync_directory")
        super().sync_directory(path)


def opened(lab: Lab, name: str, files: Snapshots, **settings: Any) -> Node:
    node = Node(files.directory, ha.NodeConfig.of({"name": name, **lab.settings(settings)}), files=files)
    return lab.opened(node)


def lines(count: int) -> list[bytes]:
    return [b"line %d " % i + b"." * 900 for i in range(count)]


def test_a_replica_killed_at_any_step_of_its_promotion_recovers(lab: Lab, tmp_path: Path) -> None:
    """After each step the node is a replica, or a master of the term that it won. It has all records, and can be
    promoted."""
    a = lab.master(members="ab")
    files = Snapshots(tmp_path / "b")
    b = opened(lab, "b", files)
    b.follow(a.address)
    a.append_batch(lines(100))
    level(a, b)
    lab.close(a)
    shutil.copytree(tmp_path / "a", tmp_path / "a-before")
    a = lab.replica("a", None)
    files.folder = tmp_path / "copies"
    assert b.promote() == ""
    files.folder = None
    lab.close(b)
    steps = [each_stage for each_stage, _ in files.copies]
    assert {"replace-members", "replace-terms", f"remove-{names.REPLICA}"} <= set(steps)
    for stage, copy in files.copies:
        with ExitStack() as stack:
            node = _restarted(copy, stack, lab, {"a": a.address})
            a.learn_peers({"b": node.address})
            assert node.role == "master", stage
            assert node.log.tail.end_entry == 100, stage
            a.follow(node.address)
            assert node.append(b"after %s" % stage.encode()) == 100, stage
            level(node, a)
            assert values(node) == values(a), stage
            a.follow("127.0.0.1:1")
        lab.close(a)
        shutil.rmtree(tmp_path / "a")
        a = _fresh(lab, tmp_path, files)


def _restarted(copy: Path, stack: ExitStack, lab: Lab, peers: dict[str, str]) -> Node:
    """Restart the node in the role that its files have; promote a replica."""
    settings: dict[str, Any] = {"name": "b", "peers": peers, **lab.settings({})}
    if is_replica(copy):
        node = stack.enter_context(ha.open_replica(copy, **settings))
        node.promote()
        return node
    return stack.enter_context(ha.open_master(copy, **settings))


def _fresh(lab: Lab, tmp_path: Path, files: Snapshots) -> Node:
    """Restore the other member as it was before: with its copy it forgets what it had promised."""
    shutil.copytree(tmp_path / "a-before", tmp_path / "a")
    return lab.replica("a", None)


def test_a_replica_killed_at_any_step_of_a_cut_recovers(lab: Lab, tmp_path: Path) -> None:
    files = Snapshots(tmp_path / "a")
    a = opened(lab, "a", files, ack_timeout_ms=50)
    a.open_as_master(list("abc"), 1)
    b, c = lab.replica("b", a), lab.replica("c", a)
    a.submit_batch(lines(10))  # without waiting: if the replicas take long to join, it is committed later
    until(lambda: a.log.end == 10)
    level(a, b, c)
    lab.close(c)
    lab.close(b)
    until(lambda: all(replica.state == "gone" for replica in a.replication().replicas))
    with pytest.raises(ReplicationTimeoutError):
        a.append_batch([b"never committed " + b"." * 900] * 100)  # more than a segment
    b, c = lab.replica("b", None), lab.replica("c", None)
    b.learn_peers({"a": "127.0.0.1:1"})  # b cannot ask a, so that a does not learn of the new term
    a.learn_peers({"b": "127.0.0.1:1", "c": "127.0.0.1:1"})
    b.promote()
    c.follow(b.address)
    b.append_batch(lines(3))
    files.folder = tmp_path / "copies"
    a.follow(b.address)
    level(b, a)
    files.folder = None
    expected = values(b)
    assert values(a) == expected
    assert f"replace-{names.TRUNCATION}" in [each_stage for each_stage, _ in files.copies]
    lab.close(a)
    for stage, copy in files.copies:
        until(lambda: "a" not in {replica.name for replica in b.replication().replicas if replica.state != "gone"})
        with context_of(b).lock:
            master_of(b).group._progress_by_name.pop(
                "a", None
            )  # forget what a had acknowledged before: it is started from an older copy
        with ha.open_replica(copy, name="a", master=b.address, **lab.settings({})) as node:
            level(b, node)
            assert values(node) == expected, stage
            assert_same_files(b, node)


def test_a_master_killed_at_any_step_of_founding_a_group_recovers(lab: Lab, tmp_path: Path) -> None:
    files = Snapshots(tmp_path / "a")
    a = opened(lab, "a", files)
    (tmp_path / "a").mkdir(exist_ok=True)
    files.folder = tmp_path / "copies"
    a.open_as_master(list("ab"), 0)
    a.append(b"one")
    files.folder = None
    lab.close(a)
    for stage, copy in files.copies:
        with ha.open_master(copy, name="a", members=["a", "b"], **lab.settings({})) as node:
            entry = node.append(b"two")
            assert values(node)[entry] == b"two", stage


def test_a_lost_quorum_is_not_made_up_for_by_a_restart(lab: Lab, tmp_path: Path) -> None:
    """The node is killed during a promotion by force without other members: after a restart it cannot be elected alone."""
    a = lab.master(members="abc", sync_replicas=1)
    files = Snapshots(tmp_path / "b")
    b = opened(lab, "b", files, election_timeout_ms=200)
    b.follow(a.address)
    c = lab.replica("c", a)
    a.append_batch(lines(3))
    level(a, b, c)
    lab.close(c)
    lab.close(a)
    files.folder = tmp_path / "copies"
    b.promote(force=True)
    files.folder = None
    lab.close(b)
    for stage, copy in files.copies:
        if is_replica(copy):
            with ha.open_replica(copy, name="b", **lab.settings({"election_timeout_ms": 100})) as node:
                assert node.role == "replica", stage
                with pytest.raises(PromotionRefusedError):
                    node.promote()
