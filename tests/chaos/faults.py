"""Which fault comes when, and how long nothing was acknowledged."""

from __future__ import annotations

import random
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from tests.chaos.victims import FAKETIME, Victim
from tests.waiting import until

CALM_S = (0.5, 4.0)
DOWN_S = (0.1, 8.0)
STOPPED_S = (0.5, 20.0)
JUMPS_S = (-3600, -60, -5, 5, 60, 3600)
DELAY_S = 0.25
"""What takes longer is counted as delayed."""


@dataclass(frozen=True)
class Fault:
    """One that really took place: the process was gone, or stood still, or had another clock."""

    kind: str
    victim: str
    began: float
    ended: float

    @property
    def interrupts(self) -> bool:
        """Whether clients must notice it. They need not notice a clock that jumps."""
        return self.kind != "clock"


class Faults(ABC):
    """Disturbs one victim at a time, on a thread of its own, until it is ended, or has no more to do."""

    def __init__(self, victims: Sequence[Victim]) -> None:
        self._victims = list(victims)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._guarded)
        self.began = time.monotonic()
        self.past: list[Fault] = []
        self.error: BaseException | None = None

    def start(self) -> None:
        self._thread.start()

    def wait(self, timeout_s: float | None) -> None:
        """Wait for so long, or until it has no more to do."""
        self._thread.join(timeout_s)

    def end(self) -> None:
        """End the fault that is under way, and begin no other. Raises what went wrong meanwhile, and AssertionError
        if there was no fault at all."""
        self._over.set()
        self._thread.join()
        if self.error is not None:
            raise self.error
        assert self.past, "no fault was injected"

    @property
    def is_complete(self) -> bool:
        """Whether there was each kind of fault, or one failed."""
        return self.error is not None

    def _guarded(self) -> None:
        try:
            self._run()
        except BaseException as error:
            self.error = error

    @abstractmethod
    def _run(self) -> None:
        """Disturb victims until `_over` is set."""


class RandomFaults(Faults):
    """Kills, stops and misleads victims at random, of which one at a time is down. Kinds come in packs of one of each.

    longest_s: no fault is longer, but for the start of a process.
    """

    def __init__(self, victims: Sequence[Victim], seed: int, longest_s: float = STOPPED_S[1]) -> None:
        super().__init__(victims)
        self._random, self._longest_s = random.Random(seed), longest_s
        self._kinds = ("kill -9", "SIGSTOP", "clock") if FAKETIME else ("kill -9", "SIGSTOP")
        self._pack: list[str] = []

    @property
    def is_complete(self) -> bool:
        return super().is_complete or {fault.kind for fault in self.past} == {*self._kinds}

    def _pause(self, bounds: tuple[float, float]) -> None:
        self._over.wait(min(self._random.uniform(*bounds), self._longest_s))

    def _run(self) -> None:
        while not self._over.wait(self._random.uniform(*CALM_S)):
            for victim in self._victims:
                victim.check_alive()
            self._disturb(self._random.choice(self._victims))

    def _disturb(self, victim: Victim) -> None:
        if not self._pack:
            self._pack = self._random.sample(self._kinds, len(self._kinds))
        kind = self._pack.pop()
        began = time.monotonic()
        if kind == "kill -9":
            victim.kill()
            self._pause(DOWN_S)
            victim.start()
        elif kind == "SIGSTOP":
            victim.stop()
            self._pause(STOPPED_S)
            victim.resume()
        else:
            victim.set_clock(self._random.choice(JUMPS_S))
            self._pause(DOWN_S)
            victim.set_clock(0)
        self.past.append(Fault(kind, victim.name, began, time.monotonic()))


class Worker(ABC):
    """A client that works on a thread of its own until it is ended."""

    def __init__(self) -> None:
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._guarded)
        self.errors = Counter[str]()  # by class
        self.error: BaseException | None = None

    def start(self) -> None:
        self._thread.start()

    def end(self) -> None:
        """End it. Raises what ended it before."""
        self._over.set()
        self._thread.join()
        if self.error is not None:
            raise self.error

    def _guarded(self) -> None:
        try:
            self._run()
        except BaseException as error:
            self.error = error

    @abstractmethod
    def _run(self) -> None:
        """Work until `_over` is set."""


@dataclass(frozen=True)
class Outcome:
    """acknowledged, lost: how many. held: no pause was longer than its bound. missing: what there must be in a round
    that proves anything, and was not."""

    acknowledged: int
    lost: int
    held: bool
    missing: tuple[str, ...] = ()


@dataclass
class Availability:
    """When something was acknowledged, and the longest times when nothing was, from the first one on: processes take long
    to start on a busy machine. Any thread may call it."""

    name: str
    bound_s: float
    acknowledged: int = 0
    gaps: list[tuple[float, float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._last: float | None = None
        self._lock = threading.Lock()

    def acknowledge(self, count: int = 1) -> None:
        with self._lock:
            now = time.monotonic()
            self.acknowledged += count
            if self._last is not None and now - self._last > DELAY_S:
                self.gaps.append((self._last, now))
            self._last = now

    def report(self, faults: Faults) -> bool:
        """Print how long nothing was acknowledged, and during which faults; return whether the bound held.

        Call it when the faults have ended and clients still work: waits for one more acknowledgement.
        """
        count = self.acknowledged
        until(lambda: self.acknowledged > count, pause_s=0.01)
        with self._lock:
            gaps = list(self.gaps)
        began = faults.began
        lengths = sorted(end - begin for begin, end in gaps)
        longest = lengths[-1] if lengths else 0.0
        middle = lengths[len(lengths) // 2] if lengths else 0.0
        print(f"{self.name}: {self.acknowledged:,} acknowledged through {len(faults.past)} faults", flush=True)
        print(
            f"  {len(lengths)} pauses over {DELAY_S} s, median {middle:.2f} s, longest {longest:.2f} s; bound {self.bound_s} s"
        )
        for begin, end in gaps:
            if end - begin > self.bound_s:
                causes = [
                    f"{fault.kind} of {fault.victim} from {fault.began - began:.1f} to {fault.ended - began:.1f}"
                    for fault in faults.past
                    if fault.began < end and fault.ended > begin - 10.0
                ]
                print(f"  {end - begin:.2f} s from {begin - began:.1f} s on: {', '.join(causes) or 'no fault'}")
        return longest <= self.bound_s
