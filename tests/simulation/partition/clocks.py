"""Clocks of machines: monotonic time since the machine booted, and wall time, which is set forward and back."""

from __future__ import annotations

from random import Random

from ..world import World

WALL_US = 1_700_000_000_000_000
EXPIRATION_US = 86_400_000_000
"""After so long an idle producer is forgotten, by wall time."""
SKEW_MAX_US = 11 * 3_600_000_000
"""So far a clock is off at most: of two machines less than `EXPIRATION_US`, so that no producer at work is forgotten."""
_STEPS_US = (5_000, 500_000, 60_000_000, 3_600_000_000)


class MachineClock:
    """The clock of one machine. No two machines have the same monotonic time, and it does not run at the same rate: what
    compares times of two of them goes wrong."""

    def __init__(self, world: World, random: Random, name: str) -> None:
        self._world, self._random, self.name = world, random, name
        self._skew_us = random.randint(-SKEW_MAX_US, SKEW_MAX_US)
        self._rate = random.uniform(0.98, 1.02)
        self.boot()

    def boot(self) -> None:
        """Begin the monotonic time anew; the wall time goes on."""
        self._booted, self._origin_us = self._world.now, self._random.randrange(1 << self._random.choice((20, 40)))

    def monotonic_us(self) -> int:
        return self._origin_us + round((self._world.now - self._booted) * self._rate * 1_000_000)

    def now_us(self) -> int:
        return WALL_US + self._skew_us + round(self._world.now * 1_000_000)

    def step(self) -> None:
        """Set the wall time, by a little or by hours."""
        before, random = self._skew_us, self._random
        step = random.choice((-1, 1)) * random.choice(_STEPS_US)
        wanted = before + step if random.random() < 0.5 else random.randint(-SKEW_MAX_US, SKEW_MAX_US)
        self._skew_us = min(max(wanted, -SKEW_MAX_US), SKEW_MAX_US)
        self._world.note(f"the clock of {self.name} is set by {(self._skew_us - before) / 1e6:.3f} s")

    def set_behind(self, time_us: int) -> None:
        """Set the wall time, some minutes or hours, behind a time; or leave it, if the skew would be too large."""
        wanted = self._skew_us + time_us - self.now_us() - self._random.choice((60_000_000, 3_600_000_000))
        if wanted >= -SKEW_MAX_US:
            self._skew_us = wanted
            self._world.note(f"the clock of {self.name} is set to {wanted / 1e6:.3f} s")


class Clocks:
    """The clocks of a run, and when they are set. What is drawn for them changes no other draw of the seed.

    steps: so many were set.
    """

    def __init__(self, world: World, seed: int) -> None:
        self._world, self._random = world, Random(f"clocks, {seed}")
        self._clocks: list[MachineClock] = []
        self.steps = 0

    def clock(self, name: str) -> MachineClock:
        clock = MachineClock(self._world, self._random, name)
        self._clocks.append(clock)
        return clock

    def plan(self, busy_s: float) -> None:
        """Clocks are set while faults go on, and once they are over."""
        for _ in range(self._random.choice((0, 2, 5, 12))):
            self._world.at(self._random.random() * busy_s * 1.2, self._step)

    def _step(self) -> None:
        self.steps += 1
        coordinators = [clock for clock in self._clocks if clock.name.startswith("coordinator")]
        self._random.choice(coordinators if self._random.random() < 0.4 else self._clocks).step()
