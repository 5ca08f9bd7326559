"""The programs of docs/ha.md run as they are printed: each node in a folder and a thread of its own."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from pyreplog import ha
from pyreplog.errors import NotMasterError
from tests.guides import ROOT, blocks, placed, run
from tests.ports import free_ports
from tests.waiting import until

PATIENCE_S = 60.0


def test_the_guide_runs(tmp_path: Path) -> None:
    """What the master's machine runs; and when it is gone, another one, that has a copy already: it is master then."""
    (block,) = blocks(ROOT / "docs" / "ha.md")
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
        pool.submit(run, mastering, {}).result(PATIENCE_S)  # it returns when c has it
        with (
            ha.open_master(a, name="a", port=port, members=["a", "b", "c"], sync_replicas=1),
            ha.open_replica(b, name="b", master=master) as second,
        ):
            until(lambda: [ends(node) for node in (second, third)] == [1, 1])
        printed = run(f"{replacing}    print(node.role, list(node.log))\n", {"ha": ha})
    assert printed[-1] == "master [b'order 1']"


def ends(node: ha.Node) -> int:
    """Where the log ends that readers of a node see; 0: it has none yet."""
    try:
        return node.log.end
    except NotMasterError:
        return 0
