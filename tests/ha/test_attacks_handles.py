"""Nodes that are interrupted, forked, fail to open or are closed: nothing stays open and no call hangs."""

from __future__ import annotations

import gc
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from pyreplog import ha
from pyreplog.errors import (
    ClosedError,
    DeposedError,
    ForkedError,
    HigherTermError,
    NotMasterError,
    ReplicaError,
    ReplogError,
)
from pyreplog.ha.protocol import messages
from pyreplog.net.reactor import Reactor
from pyreplog.stream.terms import TERMS, Term
from tests.ha.inside import context_of, followers_of, master_of
from tests.ha.nodes import Lab, level, until, values
from tests.ha.test_attacks import faulty_replica
from tests.ha.test_attacks_wire import Stranger, join

ATTEMPTS = 20  # enough attempts that one descriptor left open by each stands out against those of other tests


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    with ExitStack() as stack:
        yield Lab(tmp_path, stack)


def threads() -> set[str]:
    return {thread.name for thread in threading.enumerate() if thread.name.startswith("pyreplog")}


def descriptors() -> int:
    """Return how many descriptors are open. Clients of earlier tests, which reconnect, add and remove some."""
    return len(list(Path("/proc/self/fd").iterdir()))


def spoil_terms(folder: Path) -> None:
    (folder / TERMS).write_bytes(b"no terms")


def spoil_log(folder: Path) -> None:
    segment = next(folder.glob("*.log"))
    data = bytearray(segment.read_bytes())
    data[:64] = bytes(64)
    segment.write_bytes(data)


@pytest.mark.parametrize("spoil", [spoil_terms, spoil_log])
def test_failed_open_of_a_node_leaks_no_threads_or_descriptors(lab: Lab, spoil: Callable[[Path], None]) -> None:
    a = lab.master(members="a", sync_replicas=0)
    a.append(b"one")
    lab.close(a)
    spoil(lab.folder / "a")
    before, open_before = threads(), descriptors()
    for _ in range(ATTEMPTS):
        with pytest.raises(ReplogError):
            lab.master("a")
        with pytest.raises(ReplogError):
            lab.replica("a")
    until(lambda: threads() <= before)
    until(lambda: descriptors() < open_before + ATTEMPTS)


def test_a_port_that_is_taken_leaves_nothing(lab: Lab) -> None:
    a = lab.master(members="a", sync_replicas=0)
    port = int(a.address.rpartition(":")[2])
    before, open_before = threads(), descriptors()
    for _ in range(ATTEMPTS):
        with pytest.raises(OSError):
            lab.master("b", port=port)
    until(lambda: threads() <= before)
    until(lambda: descriptors() < open_before + ATTEMPTS)


def test_roles_that_change_leave_nothing(lab: Lab) -> None:
    before = set(threading.enumerate())
    a = lab.master(members="ab", sync_replicas=0)
    b = lab.replica("b", a)
    a.append(b"one")
    level(a, b)
    counts = []
    for _ in range(4):
        b.promote()
        until(lambda: a.role == "replica")
        a.follow(b.address)
        until(lambda: a.log.tail.end == b.log.tail.end)
        a.promote()
        until(lambda: b.role == "replica")
        b.follow(a.address)
        until(lambda: a.log.tail.end == b.log.tail.end)
        until(lambda: "pyreplog-rejoin" not in threads())
        counts.append(descriptors())
    gc.collect()  # the mapped pages of logs that were closed
    until(lambda: descriptors() <= counts[0] + 4)
    ours = set(threading.enumerate()) - before
    assert len([thread for thread in ours if thread.name.startswith("pyreplog")]) < 20


@pytest.mark.usefixtures("uncollected")
def test_ctrl_c_while_an_append_waits(lab: Lab) -> None:
    a = lab.master(members="ab", ack_timeout_ms=60_000)

    def interrupt() -> None:
        until(lambda: a.log.tail.end_entry == 1 and context_of(a).reactor._driver_lock.is_lent())
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        a.append(b"interrupted")
    thread.join()
    b = lab.replica("b", a)
    a.append(b"more")
    level(a, b)
    assert values(b) == [b"interrupted", b"more"]


@pytest.mark.usefixtures("uncollected")
@pytest.mark.parametrize("name", ["members", "terms"])
def test_ctrl_c_during_a_promotion_leaves_a_usable_replica(lab: Lab, name: str) -> None:
    a = lab.master()
    b, files = faulty_replica(lab, "b", a)
    c = lab.replica("c", a)
    a.append(b"one")
    level(a, b, c)
    lab.close(a)

    def interrupt(path: Path) -> None:
        if path.name == name and threading.current_thread() is threading.main_thread():
            files.before = lambda path: None  # type: ignore[method-assign]
            signal.raise_signal(signal.SIGINT)

    files.before = interrupt  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        b.promote()
    assert b.role == "replica"
    assert b.promote() == ""
    c.follow(b.address)
    b.append(b"two")
    level(b, c)


def test_a_forked_child_is_refused(lab: Lab) -> None:
    a = lab.master(members="ab", sync_replicas=0)
    b = lab.replica("b", a)
    a.append(b"one")
    child = os.fork()
    if not child:
        refused = 0
        for call in (lambda: a.append(b"of the child"), lambda: a.replication(), lambda: b.promote(), lambda: b.log):
            try:
                call()
            except ForkedError:
                refused += 1
        a.close()
        b.close()
        os._exit(refused)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 4
    a.append(b"two")
    level(a, b)
    assert values(b) == [b"one", b"two"]


def test_closing_ends_waiting_calls_and_refuses_later_ones(lab: Lab) -> None:
    a = lab.master(members="ab", ack_timeout_ms=60_000)
    errors: list[Exception] = []

    def work() -> None:
        try:
            a.append(b"waits")
        except ReplogError as error:
            errors.append(error)

    workers = [threading.Thread(target=work) for _ in range(4)]
    for worker in workers:
        worker.start()
    until(lambda: a.log.tail.end_entry == 4)
    future = a.submit(b"waits, too")
    lab.close(a)
    for worker in workers:
        worker.join(60)
    assert [type(error) for error in errors] == [DeposedError] * 4
    assert isinstance(future.exception(60), DeposedError)
    for call in (lambda: a.append(b"late"), lambda: a.submit(b"late"), lambda: a.log, a.stats, a.replication):
        with pytest.raises(ClosedError):
            call()
    a.close()


def test_a_master_survives_hundreds_of_observers_at_once(lab: Lab) -> None:
    """300 observers join, and leave at the same time."""
    a = lab.master(members="ab", sync_replicas=1)
    b = lab.replica("b", a)
    a.append(b"one")
    with Reactor() as reactor, ExitStack() as stack:
        reactor.start()
        strangers = [stack.enter_context(Stranger(reactor, a.address, f"x{i}")) for i in range(300)]
        for i, stranger in enumerate(strangers):
            stranger.say(messages.encode(join(a, f"x{i}", observer=True)))
        until(lambda: len(a.replication().replicas) == 301)
        for i in range(20):
            a.append(b"%d" % i)
        level(a, b)
    until(lambda: len(a.replication().replicas) == 1)
    until(lambda: len(followers_of(a)) == 1)


def test_a_copy_is_no_master(lab: Lab) -> None:
    a = lab.master(members="ab", sync_replicas=0)
    b = lab.replica("b", a)
    level(a, b)
    lab.close(b)
    before = threads()
    with pytest.raises(ReplicaError):
        ha.open_master(lab.folder / "b", name="b", **lab.settings({}))
    until(lambda: threads() <= before)


def test_an_append_that_is_late_for_the_end_of_its_node_is_unknown(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """The append is written, but does not wait yet when the node is closed: a ClosedError would say that nothing was
    appended."""
    a = lab.master(members="ab", durability="synced")
    written, closed, errors = threading.Event(), threading.Event(), []
    wait_synced = a.log.wait_synced

    def late(position: int) -> None:
        wait_synced(position)
        if threading.current_thread() is worker:
            written.set()
            assert closed.wait(60)

    def work() -> None:
        try:
            a.append(b"late")
        except ReplogError as error:
            errors.append(error)

    monkeypatch.setattr(a.log, "wait_synced", late)
    worker = threading.Thread(target=work)
    worker.start()
    assert written.wait(60)
    lab.close(a)
    closed.set()
    worker.join(60)
    assert [type(error) for error in errors] == [DeposedError]


@pytest.mark.parametrize("why", [HigherTermError, NotMasterError, ClosedError])
@pytest.mark.parametrize("how", ["append", "append_batch", "submit", "submit_batch"])
def test_append_that_finds_the_log_closed_raises_the_reason(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, how: str, why: type[ReplogError]
) -> None:
    """The append was admitted and finds the log closed, so nothing was appended. The master was deposed, told to
    follow, or closed."""
    a = lab.master(members="ab")
    b = lab.replica("b", a)
    a.append(b"in time")
    level(a, b)
    master = master_of(a)
    let_in, deposed, errors = threading.Event(), threading.Event(), []
    admit = master._admit

    def admit_late() -> None:
        admit()
        if threading.current_thread() is worker and not let_in.is_set():
            let_in.set()
            assert deposed.wait(60)

    def work() -> None:
        try:
            getattr(a, how)([b"late"] if how.endswith("batch") else b"late")
        except ReplogError as error:
            errors.append(error)

    monkeypatch.setattr(master, "_admit", admit_late)
    master.is_guarded = True  # as with `min_in_sync`: each append is admitted first
    worker = threading.Thread(target=work)
    worker.start()
    assert let_in.wait(60)
    if why is HigherTermError:
        b.promote()
        until(lambda: a.role == "replica")
    elif why is NotMasterError:
        a.follow(b.address)
    else:
        lab.close(a)
    deposed.set()
    worker.join(60)
    assert [type(error) for error in errors] == [why] and values(b) == [b"in time"]


def test_a_waiting_call_names_the_node_that_deposed_its_master(lab: Lab) -> None:
    """A call that begins to wait when the deposed master is already closed gets the same error."""
    a = lab.master(members="ab")
    b = lab.replica("b", a)
    a.append(b"in time")
    level(a, b)
    master = master_of(a)
    b.promote()
    until(lambda: a.role == "replica")
    with pytest.raises(DeposedError) as raised:
        master._wait(1 << 40)
    assert raised.value.term == Term(2, "b")
