"""A client of a replica group in another process, beside the master's own appends."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from contextlib import ExitStack

from benchmarks.entries import BATCH, SIZES, VALUES, in_turn, make_values, stride
from benchmarks.plan import Plan
from benchmarks.result import Comparison, Figure, Section
from benchmarks.rows.ha.node import remote
from benchmarks.sampling import interleave
from pyreplog import ha
from pyreplog.future import AppendFuture
from pyreplog.ha import GroupClient

_SIZE = 1024
_SECONDS = 5.0
_WINDOW_BYTES = 16 << 20


def client(plan: Plan) -> Section:
    """Rates of batches that a replica has: appended by the master's process, and by a client of the group."""
    section = Section(
        "ha-client", f"A client of a replica group, batches of {BATCH} entries of {SIZES[_SIZE]}, appended"
    )
    seconds = min(plan.budget, _SECONDS)
    with plan.folder() as folder, ExitStack() as stack:
        log = {"segment_bytes": plan.segment_bytes}
        master = remote(stack, folder / "master", "master", members=["master", "b"], sync_replicas=1, log=log)
        replica = remote(stack, folder / "replica", "b", master=master.address, log=log)
        user = stack.enter_context(ha.connect([master.address], window_bytes=2 * _WINDOW_BYTES))
        user.append_batch(in_turn(make_values(_SIZE), BATCH))  # connected, and the replica has joined
        rates = interleave(
            plan,
            {
                "client": lambda: _load(user, seconds),
                "master": lambda: master.call("load", _SIZE, seconds, _WINDOW_BYTES)["rate"],
            },
        )
        told = replica.call("verified", _SIZE, VALUES, user.end())
    section.comparisons.append(
        Comparison(
            "append rate",
            Figure("a client", rates["client"], "B/s", "appended"),
            Figure("the master's own", rates["master"], "B/s", "appended"),
            None,
            told,
        )
    )
    section.notes.append(
        "Client, master and replica are processes of their own. The client's records cross the wire, are verified, and "
        "are encoded again by the master, each batch behind a control record."
    )
    return section


def _load(user: GroupClient, seconds: float) -> float:
    """Bytes per second until all were acknowledged; so many bytes at a time have no outcome as in the master's load."""
    values, waiting = in_turn(make_values(_SIZE), BATCH), deque[AppendFuture[Sequence[int]]]()
    most = max(_WINDOW_BYTES // (stride(_SIZE) * BATCH), 1)
    batches, begin = 0, time.monotonic()
    while time.monotonic() < begin + seconds or not batches:
        waiting.append(user.submit_batch(values))
        batches += 1
        if len(waiting) >= most:
            waiting.popleft().result()
    user.flush()
    return batches * BATCH * _SIZE / (time.monotonic() - begin)
