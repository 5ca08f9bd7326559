"""Topics beside other queues with acknowledgements, with the same durability, in turns."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Mapping
from contextlib import ExitStack, closing
from statistics import median

from benchmarks.entries import SIZES, in_turn, make_values
from benchmarks.peers.queues import QUEUES, EmbeddedTopic, QueuePeer, QueueTopic, ServedTopic
from benchmarks.peers.queues.peer import PATIENCE_S
from benchmarks.plan import Plan
from benchmarks.result import Comparison, Durability, Figure, Section, Table, Unit
from benchmarks.sampling import interleave

_SIZE = 100
_BATCH = 256
_TURN_MESSAGES = 1 << 17
_LATENCIES = 200
_PAUSE_S = 0.001
"""Before a message whose latency is taken: the consumer sleeps by then."""

_DURABILITIES: tuple[Durability, ...] = ("appended", "synced")
_OURS = (EmbeddedTopic.__name__, ServedTopic.__name__)
_WORK: dict[str, Unit] = {"publish": "/s", "consume": "/s", "latency": "s"}
_TITLES = {
    "publish": f"publish {SIZES[_SIZE]}, batches of {_BATCH}",
    "consume": f"consume {SIZES[_SIZE]} and acknowledge",
    "latency": f"publish {SIZES[_SIZE]} to received, one outstanding",
}

Found = dict[str, dict[str, float]]
"""Medians by work and queue."""

Queues = Mapping[str, type[QueuePeer]]
"""By name."""


def peers(plan: Plan) -> Section:
    """Messages per second published, and consumed with acknowledgements; seconds from publishing to having one."""
    section = Section("topics-peers", "Topics beside other queues, the same durability")
    compare(plan, section, QUEUES)
    section.notes += [
        f"Versions: {'; '.join(dict.fromkeys(kind.version() for kind in QUEUES.values()))}.",
        "Topics in this process are compared with the best queue in a file of this process, the topic server with the "
        "best server; all keep one copy, except where three are named. Servers run on this machine; Redis is reached "
        "through a unix socket, NATS and the topic server through TCP.",
        "appended: Redis writes its file and leaves syncs to the system; SQLite in WAL mode with synchronous=NORMAL; "
        "NATS syncs every two minutes, and confirms acknowledgements before it writes them: a turn of its ends when "
        "its file has them. synced: Redis with appendfsync=always, SQLite with synchronous=FULL; this NATS cannot.",
        f"Batches: ours as many on their way as the window takes; Redis a pipeline of {_BATCH} XADD, XREADGROUP of "
        "1,000 with the XACK of those before; NATS as many on their way as its client lets, fetch of 1,000 with one "
        f"acknowledgement of all; litequeue a transaction of {_BATCH}, but messages are taken out one by one; "
        "persist-queue has none. A turn ends when all is confirmed, acknowledgements, too: ours wait for that at the "
        "end only.",
        f"Latency: a thread waits for messages; {_PAUSE_S * 1e3:.0f} ms after it has had one the next is published. "
        "litequeue's consumers cannot wait.",
    ]
    return section


def compare(plan: Plan, section: Section, queues: Queues) -> None:
    """Measure these queues, of which at least one is a topic and one is not, into a section."""
    for durability in _DURABILITIES:
        found, verified = _measure(plan.shared(len(_DURABILITIES)), durability, queues)
        for ours in _OURS:
            if ours in queues:
                section.comparisons += _against_best(durability, ours, found, verified, queues)
        section.tables.append(_table(durability, found, queues))


class Turns:
    """What one queue does in turns, and whether it gave back what it was given."""

    def __init__(self, peer: QueuePeer, seconds: float) -> None:
        self.peer, self._seconds = peer, seconds
        self._values = make_values(_SIZE)
        self.consumed: list[float] = []
        self.verified = 0

    def publish(self) -> float:
        """Messages per second; afterwards they are consumed, at the rate that is put into `consumed`."""
        self.peer.start()
        messages, published, begin = in_turn(self._values, _BATCH), 0, time.perf_counter()
        while not published or (time.perf_counter() - begin < self._seconds and published < _TURN_MESSAGES):
            self.peer.publish_batch(messages)
            published += _BATCH
        self.peer.flush()
        rate = published / (time.perf_counter() - begin)
        self.consumed.append(self._consume(published))
        return rate

    def _consume(self, published: int) -> float:
        """As many as the time allows."""
        batches, count, begin = list[list[bytes]](), 0, time.perf_counter()
        while not count or (time.perf_counter() - begin < self._seconds and count < published):
            batches.append(self.peer.take())
            count += len(batches[-1])
        self.peer.settle()
        rate = count / (time.perf_counter() - begin)
        self._verify([value for batch in batches for value in batch], published)
        return rate

    def latency(self) -> float:
        """Median seconds from publishing a message until the thread that waits has it; the first is not counted."""
        self.peer.start()
        with _Waiting(self.peer) as waiting:
            taken, deadline, values = list[float](), time.perf_counter() + self._seconds, self._values
            last = False
            while not last:
                last = len(taken) == _LATENCIES or (len(taken) > 1 and time.perf_counter() > deadline)
                waiting.is_last = last
                time.sleep(_PAUSE_S)
                begin = time.perf_counter()
                self.peer.publish(values[len(taken) % len(values)])
                taken.append(waiting.next() - begin)
        self._verify(waiting.values, len(taken))
        return median(taken[1:])

    def _verify(self, found: list[bytes], published: int) -> None:
        if found != in_turn(self._values, len(found)):
            raise ValueError(f"{self.peer.title}: {len(found)} messages were received, not as they were published")
        left = self.peer.backlog()
        if left != published - len(found):
            raise ValueError(
                f"{self.peer.title}: {published} messages were published, {len(found)} acknowledged, {left} are left"
            )
        self.verified += len(found)


class _Waiting:
    """A thread that takes messages as they come, up to the one that is_last was set for."""

    def __init__(self, peer: QueuePeer) -> None:
        self.values: list[bytes] = []
        self.is_last = False
        self._peer = peer
        self._arrived: queue.SimpleQueue[float | BaseException] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        clock = time.perf_counter
        try:
            with closing(self._peer.arrivals()) as arrivals:
                for value in arrivals:
                    now, last = clock(), self.is_last
                    self.values.append(value)
                    self._arrived.put(now)
                    if last:
                        return
        except BaseException as error:
            self._arrived.put(error)

    def next(self) -> float:
        """When the next message came. Errors: those of the thread."""
        found = self._arrived.get(timeout=PATIENCE_S)
        if isinstance(found, BaseException):
            raise found
        return found

    def __enter__(self) -> _Waiting:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.join(PATIENCE_S)


def _measure(plan: Plan, durability: Durability, queues: Queues) -> tuple[Found, str]:
    """All queues that can, in turns."""
    with plan.folder() as folder, ExitStack() as stack:
        turns = {}
        kinds = {name: kind for name, kind in queues.items() if durability in kind.durabilities}
        seconds = max(plan.budget / (4 * plan.rounds * len(kinds)), 0.002)
        for name, kind in kinds.items():
            (folder / name).mkdir()
            peer = kind(folder / name, durability)
            stack.callback(peer.close)
            turns[name] = Turns(peer, seconds)
        part = plan.shared(2)
        found: Found = {"publish": interleave(part, {name: one.publish for name, one in turns.items()})}
        found["consume"] = {name: median(one.consumed[plan.uncounted :]) for name, one in turns.items()}
        waiting = {name: one.latency for name, one in turns.items() if one.peer.waits}
        found["latency"] = interleave(part, waiting)
        return found, f"{sum(one.verified for one in turns.values()):,} messages of all queues"


def _against_best(durability: Durability, ours: str, found: Found, verified: str, queues: Queues) -> list[Comparison]:
    """One of our topics beside the best of the others that are kept where it is."""
    compared = []
    for work, unit in _WORK.items():
        by_queue = found[work]
        others = [
            name
            for name in by_queue
            if not issubclass(queues[name], QueueTopic) and queues[name].served == queues[ours].served
        ]
        best = (min if unit == "s" else max)(others, key=by_queue.__getitem__)

        def figure(name: str, by_queue: Mapping[str, float] = by_queue, unit: Unit = unit) -> Figure:
            size = _SIZE if unit == "/s" else 0
            return Figure(queues[name].title, by_queue[name], unit, durability, size)

        compared.append(Comparison(_TITLES[work], figure(ours), figure(best), None, verified))
    return compared


def _table(durability: Durability, found: Found, queues: Queues) -> Table:
    rows = []
    for name in found["publish"]:
        cells = [
            str(Figure("", by_queue[name], _WORK[work], durability)) if name in by_queue else ""
            for work, by_queue in found.items()
        ]
        rows.append([queues[name].title, *cells])
    return Table(f"{SIZES[_SIZE]}, {durability}", ["", "publish", "consume + ack", "latency"], rows)
