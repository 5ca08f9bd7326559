"""The programs and commands of docs/ha.md run as printed, each node in a folder and a thread or process of its own."""

from __future__ import annotations

import re
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from pyreplog import ha
from pyreplog.errors import NotMasterError
from pyreplog.metadata import open_store
from tests.consoles import Console, Step, shape, steps
from tests.guides import ROOT, blocks, fences, placed, run
from tests.ports import free_ports
from tests.waiting import until

PATIENCE_S = 60.0
GUIDE = ROOT / "docs" / "ha.md"
BY_HAND, LOOK, PROMOTE, COME_BACK, BY_ITSELF = [
    steps(text) for language, text in fences(GUIDE) if language == "console"
]


def test_programs_of_the_guide_to_replica_groups_run(tmp_path: Path) -> None:
    """The program of the master's machine runs. When that is gone, another machine with a copy becomes master."""
    block = blocks(GUIDE)[0]
    at = block.index("peers = ")
    port, own, others = free_ports(3)
    master, a, b, c = f"127.0.0.1:{port}", *(tmp_path / name / "data" / "orders" for name in "abc")
    mastering = placed(block[:at], {'"data/orders"': f'"{a}"', "7001": str(port)})
    addresses = {
        "host-a:7001": master,
        "host-c:7001": f"127.0.0.1:{others}",
        "7001": str(own),
        "timeout=5.0": "timeout=0.1",
    }
    replacing = placed(block[at:], {'"data/orders"': f'"{b}"', **addresses})
    with ThreadPoolExecutor(1) as pool, ha.open_replica(c, name="c", port=others, master=master) as third:
        pool.submit(run, mastering, {}).result(PATIENCE_S)  # append returns when c has the record
        with (
            ha.open_master(a, name="a", port=port, members=["a", "b", "c"], sync_replicas=1),
            ha.open_replica(b, name="b", master=master) as second,
        ):
            until(lambda: [ends(node) for node in (second, third)] == [1, 1])
        printed = run(f"{replacing}    print(node.role, list(node.log))\n", {"ha": ha})
    assert printed[-1] == "master [b'order 1']"


def test_the_failover_program_of_the_guide_runs(tmp_path: Path) -> None:
    """The program of one node, which is elected when the master is gone. The third node does not take part in the
    leases."""
    block = blocks(GUIDE)[1]
    ports, url = free_ports(3), f"sqlite:{tmp_path / 'metadata.sqlite'}"
    a, b, c = (f"127.0.0.1:{port}" for port in ports)
    places = {"host-a:7001": a, "host-c:7001": c, "7001": str(ports[1]), "zk://host:2181/root": url}
    program = placed(block, {'"data/orders"': f'"{tmp_path / "b"}"', **places}) + "    print(list(node.log))\n"
    third = ha.open_replica(tmp_path / "c", name="c", port=ports[2], master=a, peers={"a": a, "b": b})
    with ThreadPoolExecutor(1) as pool, third:
        with (
            ha.open_master(tmp_path / "a", name="a", port=ports[0], members=["a", "b", "c"], sync_replicas=1) as first,
            open_store(url) as store,
            ha.Failover(first, store, "orders"),
        ):
            until(lambda: store.get("/ha/orders/master") is not None)
            running = pool.submit(run, program, {})
            first.append(b"order 1")
            until(
                lambda: (
                    {replica["name"] for replica in first.stats()["replicas"] if not replica["lag_bytes"]} == {*"bc"}
                )
            )
        assert running.result(PATIENCE_S)[-1] == "[b'order 1', b'order 2']"


def ends(node: ha.Node) -> int:
    """Return the end of the log that readers of a node see, or 0 if it has no log yet."""
    try:
        return node.log.end
    except NotMasterError:
        return 0


def test_the_guide_of_clients_runs(tmp_path: Path) -> None:
    block = blocks(GUIDE)[2]
    with (
        ha.open_master(tmp_path / "a", name="a", members=["a", "b"], sync_replicas=1) as a,
        ha.open_replica(tmp_path / "b", name="b", master=a.address) as b,
    ):
        program = placed(block, {"host-a:7001": b.address, "host-b:7001": a.address, "timeout=1.0": "timeout=0"})
        printed = run(program, {})
    assert printed == ["b'customer 7' b'order 99' 99", *(f"b'order {number}'" for number in range(1, 100))]


# ---- commands --------------------------------------------------------------------------------------------------


def console(folder: Path) -> Console:
    return Console(folder, {f"127.0.0.1:700{n}": f"127.0.0.1:{port}" for n, port in enumerate(free_ports(3), 1)})


def run_steps(console: Console, printed_steps: list[Step]) -> None:
    """Start servers, and run commands until they print what the guide shows, but for numbers and the connected replicas."""

    def expected(text: str) -> str:
        return shape(re.sub(r"^replica .*\n", "", text, flags=re.MULTILINE))

    for step in printed_steps:
        if step.terminal:
            assert console.start(step) == [console.placed(step.printed)]
        elif " ha append " in step.command or " ha promote " in step.command:
            assert expected(console.run(step.command)) == expected(console.placed(step.printed))
        else:
            until(lambda step=step: expected(console.run(step.command)) == expected(console.placed(step.printed)))


def test_commands_of_the_guide_make_a_group_and_promote_a_replica_by_hand(tmp_path: Path) -> None:
    with console(tmp_path) as terminals:
        run_steps(terminals, BY_HAND)
        run_steps(terminals, LOOK)
        status = LOOK[-1].command
        until(lambda: terminals.run(status).count("streaming, in sync") == LOOK[-1].printed.count("streaming, in sync"))
        terminals.stop("a", signal.SIGKILL)
        run_steps(terminals, PROMOTE)
        run_steps(terminals, COME_BACK)
        until(lambda: "replica a  streaming" in terminals.run(status.replace("7001", "7002")))


def test_commands_of_the_guide_make_a_group_that_fails_over_by_itself(tmp_path: Path) -> None:
    with console(tmp_path) as terminals:
        run_steps(terminals, BY_ITSELF)
        append = LOOK[0].command
        terminals.run(append)
        terminals.stop("a", signal.SIGKILL)
        assert terminals.run(append).startswith("2 entries, 2 to 3;"), "b or c is master"
