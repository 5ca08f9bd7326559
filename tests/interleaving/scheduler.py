"""One run of a program of threads, of which one runs at a time, and a strategy says which.

Every task is a thread of the operating system that waits for its baton. At a *point* (a controlled primitive's operation, a
line of a traced file, a place where native code would sleep) the task that runs asks the strategy who goes on, and hands
the baton over. So a run is a function of its choices: the same choices give the same run.

Time is virtual. It passes only when no task can run: then the earliest deadline is over. What had to wait for that is in
`timeouts`: a program that is told of everything it waits for has none there, so a lost wake-up shows itself even where the
product looks again after a while.
"""

from __future__ import annotations

import gc
import logging
import sys
from _thread import allocate_lock, get_ident, start_new_thread
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, Protocol

STEPS_MAX = 50_000
"""Points of one run; more means that its tasks run in circles."""

ABORTS_MAX, ABORTED_STEPS_MAX = 50, 10_000

Label = str | tuple[str, int]


class Aborted(BaseException):
    """Ends what is left of a run; no code of the product catches it for good."""


class FailedRunError(Exception):
    """What went wrong in a run, beside assertions: nobody can go on, or nobody comes to an end."""


class Task:
    """A thread of the run. ready: None while it can run, else says whether what it waits for is there."""

    def __init__(self, number: int, name: str) -> None:
        self.number, self.name = number, name
        self.baton = allocate_lock()
        self.baton.acquire()
        self.ident = 0
        self.ready: Callable[[], bool] | None = None
        self.deadline: float | None = None
        self.is_late = self.is_over = self.gives_way = False
        self.aborts = self.steps_behind = 0  # how often it was ended, and its points since
        self.label: Label = "begins"
        self.thread: Any = None  # what `current_thread` gives
        self.frame: FrameType | None = None
        self.ended = allocate_lock()
        self.ended.acquire()

    def __repr__(self) -> str:
        return f"{self.number} {self.name}"


@dataclass
class Decision:
    """A point at which more than one task could go on. was: the task that ran and could go on; None: it could not."""

    step: int
    options: list[int]
    chosen: int
    was: int | None

    @property
    def default(self) -> int:
        return self.options[0] if self.was is None else self.was


class Strategy(Protocol):
    def choose(self, step: int, options: list[Task], current: Task | None) -> Task:
        """Who goes on, of several. current: one of them who would, if nobody preempted it."""
        ...

    def hurries(self, step: int) -> bool:
        """Whether the earliest deadline is over now, though tasks can run."""
        ...


@dataclass
class Switch:
    step: int
    old: str
    label: Label
    new: str

    def __str__(self) -> str:
        return f"{self.step:6} {self.old:24} {_text(self.label):44} -> {self.new}"


def _text(label: Label) -> str:
    if isinstance(label, str):
        return label
    path, line = label
    return f"{'/'.join(path.split('/')[-3:])}:{line}"


@dataclass
class World:
    """A run. strategy: who goes on. files: paths of the sources whose lines are points. hasty: time-outs may come early."""

    strategy: Strategy
    files: Collection[str] = ()
    hasty: bool = False
    steps_max: int = STEPS_MAX
    now: float = 0.0
    """Seconds that have passed."""
    timeouts: list[str] = field(default_factory=list)
    """Tasks that went on because time had passed when nobody could run, and where they waited."""
    decisions: list[Decision] = field(default_factory=list)
    switches: list[Switch] = field(default_factory=list)
    hurried: list[int] = field(default_factory=list)
    """Steps at which the earliest deadline was over early."""
    failure: BaseException | None = None
    step: int = 0

    def __post_init__(self) -> None:
        self.tasks: list[Task] = []
        self._current: Task | None = None
        self._aborting = self.is_over = False
        self._done = allocate_lock()
        self._done.acquire()
        self._futexes: dict[int, list[Task]] = {}
        self._woken: set[Task] = set()

    # ---- the run --------------------------------------------------------------------------------------------

    def run(self, program: Callable[[World], object]) -> None:
        """Run `program(self)` as the first task, to its end; tasks that are left are ended. `failure` says what went wrong."""
        global active
        if active is not None:
            raise RuntimeError("one world at a time")
        active = self
        log = _Log(self)
        logger = logging.getLogger("pyreplog")
        propagated, logger.propagate = logger.propagate, False
        logger.addHandler(log)
        collects, hook = gc.isenabled(), sys.unraisablehook
        sys.unraisablehook = lambda raised: None if isinstance(raised.exc_value, Aborted) else hook(raised)
        gc.disable()  # finalizers come where references end, not where a collection happens to be due
        try:
            self._begin(lambda: program(self), "main")
            self._current = self.tasks[0]
            self.tasks[0].baton.release()
            self._done.acquire()
            for task in self.tasks:
                task.ended.acquire()
        finally:
            self.is_over, active = True, None
            logger.removeHandler(log)
            logger.propagate, sys.unraisablehook = propagated, hook
            if collects:
                gc.enable()

    def go(self, call: Callable[[], object], name: str) -> Task:
        """Have `call()` run by a task of its own; a point."""
        task = self._begin(call, name)
        self.point("start")
        return task

    def join(self, *tasks: Task, timeout: float | None = None) -> bool:
        """Wait until these tasks have ended."""
        return self.wait(lambda: all(task.is_over for task in tasks), timeout, "join")

    @property
    def current(self) -> Task:
        task = self._current
        if task is None or task.ident != get_ident():
            raise RuntimeError("a thread that the scheduler does not know uses a controlled primitive")
        return task

    def controls(self) -> bool:
        """Whether the calling thread is a task of this run."""
        return self._current is not None and self._current.ident == get_ident() and not self.is_over

    def point(self, label: Label) -> None:
        """Others may go on here."""
        task = self._current
        if task is None or task.ident != get_ident():
            raise RuntimeError("a thread that the scheduler does not know uses a controlled primitive")
        task.label = label
        self._switch(task)

    def give_way(self, label: Label) -> None:
        """A point at which others go on, if any can: for who looks again and again."""
        task = self.current
        task.label, task.gives_way = label, True
        self._switch(task)

    def wait(self, ready: Callable[[], bool], timeout: float | None, label: Label) -> bool:
        """Wait until `ready()`, at most `timeout` seconds; whether it is. Nobody runs between its last look and the return."""
        task = self.current
        self.point(label)
        if ready():
            return True
        if timeout is not None and timeout <= 0:
            return False
        if self._aborting:
            self._abort(task)
        task.ready, task.deadline = ready, None if timeout is None else self.now + timeout
        self._switch(task)
        late, task.is_late = task.is_late, False
        return not late or ready()

    def sleep(self, seconds: float) -> None:
        self.wait(lambda: False, max(seconds, 1e-9), "sleep")

    # ---- native code ----------------------------------------------------------------------------------------

    def wait_while(self, is_so: Callable[[], bool], timeout_us: int) -> bool:
        """Native code is about to sleep while a lock is taken, say. False: this thread is none of ours."""
        if not self.controls():
            return False
        self.wait(lambda: not is_so(), None if timeout_us < 0 else timeout_us / 1e6, "native wait")
        return True

    def park(self, word: int, timeout_us: int) -> bool:
        """Native code is about to sleep on a futex word. False: this thread is none of ours."""
        if not self.controls():
            return False
        task = self.current
        self._futexes.setdefault(word, []).append(task)
        try:
            self.wait(lambda: task in self._woken, None if timeout_us < 0 else timeout_us / 1e6, "futex")
        finally:
            self._woken.discard(task)
            if task in self._futexes.get(word, ()):
                self._futexes[word].remove(task)
        return True

    def unpark(self, word: int, count: int) -> None:
        """Native code wakes so many of those that sleep on a futex word; no point, for it may hold anything."""
        parked = self._futexes.get(word, [])
        self._woken.update(parked[:count])
        del parked[:count]

    def pause(self) -> bool:
        """Native code spins until something happens. False: this thread is none of ours."""
        if not self.controls():
            return False
        self.give_way("spin")
        return True

    # ---- who goes on ----------------------------------------------------------------------------------------

    def _begin(self, call: Callable[[], object], name: str, thread: Any = None) -> Task:
        task = Task(len(self.tasks), name)
        task.thread = thread
        self.tasks.append(task)
        start_new_thread(self._body, (task, call))
        return task

    def _body(self, task: Task, call: Callable[[], object]) -> None:
        task.ident = get_ident()
        task.baton.acquire()
        try:
            if not self._aborting:
                if self.files:
                    sys.settrace(self._traced)
                call()
        except Aborted:
            pass
        except BaseException as error:
            self._fail(error)
        finally:
            sys.settrace(None)
            self._end(task)

    def _end(self, task: Task) -> None:
        task.is_over = True
        self._leave(task)
        task.ended.release()

    def _leave(self, task: Task) -> None:
        if task.number == 0:
            self._aborting = True  # its program has ended: what is left is not needed
        task.label = "ends"
        try:
            chosen = self._next(None)
        except Aborted:  # those that are left cannot go on: they are ended
            chosen = self._next(None)
        if chosen is None:
            self._done.release()
        else:
            self._hand_over(task, chosen)

    def _switch(self, task: Task) -> None:
        if self._aborting:
            task.steps_behind += 1
            if not task.aborts or task.steps_behind > ABORTED_STEPS_MAX:
                self._abort(task)
            return  # it cleans up behind itself
        self.step += 1
        if self.step > self.steps_max:
            self._fail(FailedRunError(f"no end after {self.steps_max} steps\n{self._where()}"))
            raise Aborted
        chosen = self._next(task)
        if chosen is not None and chosen is not task:
            task.frame = sys._getframe(1)
            self._hand_over(task, chosen)
            task.baton.acquire()
            task.frame = None
        if self._aborting:
            self._abort(task)

    def _abort(self, task: Task) -> None:
        """End what a task does. One that goes on again and again is left where it is."""
        task.ready, task.aborts = None, task.aborts + 1
        if task.aborts > ABORTS_MAX:
            self._end(task)
            task.baton.acquire()  # nobody ever hands it over
        raise Aborted

    def _hand_over(self, task: Task, chosen: Task) -> None:
        if len(self.switches) < 100_000:
            self.switches.append(Switch(self.step, repr(task), task.label, repr(chosen)))
        self._current = chosen
        chosen.baton.release()

    def _next(self, task: Task | None) -> Task | None:
        """Who goes on; None: nobody is left."""
        if self._aborting:
            return next((other for other in self.tasks if not other.is_over), None)
        if self.hasty and self.strategy.hurries(self.step):
            self._pass_time(early=True)
        options = self._runnable()
        while not options:
            if not self._pass_time(early=False):
                if all(other.is_over for other in self.tasks):
                    return None
                self._fail(FailedRunError(f"all wait, for ever\n{self._where()}"))
                raise Aborted
            options = self._runnable()
        current = task if task is not None and task in options else None
        if current is not None and current.gives_way:
            current.gives_way = False
            if len(options) > 1:
                options.remove(current)
                current = None
        chosen = options[0]
        if len(options) > 1:
            chosen = self.strategy.choose(self.step, options, current)
            was = None if current is None else current.number
            self.decisions.append(Decision(self.step, [other.number for other in options], chosen.number, was))
        if chosen.ready is not None:
            chosen.ready = chosen.deadline = None
        return chosen

    def _runnable(self) -> list[Task]:
        return [
            task for task in self.tasks if not task.is_over and (task.ready is None or task.is_late or task.ready())
        ]

    def _pass_time(self, *, early: bool) -> bool:
        """Until the earliest deadline. False: there is none."""
        waiting = [task for task in self.tasks if not task.is_over and task.deadline is not None and not task.is_late]
        if not waiting:
            return False
        self.now = max(self.now, min(task.deadline for task in waiting if task.deadline is not None))
        if early:
            self.hurried.append(self.step)
        for task in waiting:
            if task.deadline is not None and task.deadline <= self.now:
                task.is_late = True
                if not early:
                    self.timeouts.append(f"{task.name} at {_text(task.label)}")
        return True

    def _fail(self, error: BaseException) -> None:
        self._aborting = True
        if self.failure is None:
            self.failure = error

    def _where(self) -> str:
        """Where each task is."""
        lines = []
        for task in self.tasks:
            if not task.is_over:
                frames, frame = [], task.frame if task is not self._current else sys._getframe(2)
                while frame is not None:
                    code = frame.f_code
                    if "tests/interleaving/" not in code.co_filename or "/harnesses/" in code.co_filename:
                        frames.append(f"{_text((code.co_filename, frame.f_lineno))} {code.co_name}")
                    frame = frame.f_back
                lines.append(f"  {task}: {_text(task.label)}; " + " < ".join(frames[:6]))
        return "\n".join(lines)

    # ---- lines as points ------------------------------------------------------------------------------------

    def _traced(self, frame: FrameType, event: str, argument: object) -> Any:
        return self._line if frame.f_code.co_filename in self.files else None

    def _line(self, frame: FrameType, event: str, argument: object) -> Any:
        if event == "line":
            self.point((frame.f_code.co_filename, frame.f_lineno))
        return self._line


class _Log(logging.Handler):
    """What the product logs as an error is one."""

    def __init__(self, world: World) -> None:
        super().__init__(logging.ERROR)
        self._world = world

    def createLock(self) -> None:
        self.lock = allocate_lock()  # not one of the product, which would be controlled

    def emit(self, record: logging.LogRecord) -> None:
        if not self._world.controls():
            return
        error = record.exc_info[1] if record.exc_info else None
        if not self._world._aborting and not isinstance(error, Aborted):
            self._world._fail(error or FailedRunError(record.getMessage()))


active: World | None = None
"""The world that runs now."""
