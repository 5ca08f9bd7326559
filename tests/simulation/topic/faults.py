"""What goes wrong, and when."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .schedule import Schedule


class Faults:
    """Drawn before the run, for the time in which it is busy."""

    def __init__(self, schedule: Schedule) -> None:
        self._schedule, self._world = schedule, schedule.world

    def plan(self) -> None:
        world = self._world
        kinds = (
            self._kill, self._kill, self._lose_lease, self._lose_lease, self._stop, self._cut_off, self._crash_bookie,
            self._cut,
        )  # fmt: skip
        for _ in range(self._schedule.plan.faults):
            world.at(world.random.random() * self._schedule.plan.busy_s, world.random.choice(kinds))

    def _some_owner(self) -> int:
        """Rather somebody who owns the topic."""
        owners = [at for at, process in enumerate(self._schedule.processes) if process.owns]
        return self._world.random.choice(owners or range(len(self._schedule.processes)))

    def _kill(self) -> None:
        place = self._some_owner()
        self._schedule.processes[place].kill()
        self._world.after(self._world.random.random() * 0.5, self._schedule.restart, place)

    def _lose_lease(self) -> None:
        """Another one may take the topic long before its owner knows."""
        process, random = self._schedule.processes[self._some_owner()], self._world.random
        self._world.note(process.name, "loses its lease")
        process.lose_lease(random.choice((0.0, 0.1, 1.0)))

    def _stop(self) -> None:
        """For longer than its lease is held, or not."""
        process, random = self._schedule.processes[self._some_owner()], self._world.random
        seconds = random.choice((0.05, 0.3, 1.0))
        self._world.note(process.name, f"is stopped for {seconds} s")
        process.stop(seconds)
        if random.random() < 0.7:
            process.lose_lease(seconds)

    def _cut_off(self) -> None:
        """From the metadata store."""
        process = self._schedule.processes[self._some_owner()]
        self._world.note(process.name, "is cut off from the metadata")
        process.is_cut_off = True
        self._world.after(self._world.random.random(), setattr, process, "is_cut_off", False)

    def _crash_bookie(self) -> None:
        node = self._world.random.choice(self._schedule.nodes.places)
        node.crash()
        self._world.after(self._world.random.random() * 0.5, node.start)

    def _cut(self) -> None:
        process, random = self._schedule.processes[self._some_owner()], self._world.random
        process.runtime.roads[random.choice(sorted(process.runtime.roads))].cut()

    def end(self) -> None:
        self._world.note("faults end")
        self._world.is_calm = True
        for node in self._schedule.nodes.places:
            node.start()
        for process in self._schedule.processes:
            process.is_cut_off = False
