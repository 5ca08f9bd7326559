"""The words by which a writer wakes sleepers, looked at behind each of its instructions."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import signal
import struct
from pathlib import Path

import pytest

from pyreplog._native.log.tail_page import PAGE, Tail

WAKE = struct.Struct("<II")  # `wake` and `sleepers`, from offset 112
WORDS_AT = 112
TRACE_ME, SINGLE_STEP = 0, 9
STEPS_MAX = 1_000_000
FORBIDDEN = 77


def call_ptrace(request: int, pid: int) -> None:
    call = ctypes.CDLL(None, use_errno=True).ptrace
    call.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    call.restype = ctypes.c_long
    if call(request, pid, None, None) < 0:
        raise OSError(ctypes.get_errno(), "ptrace")


def wake_stepwise(tail: Tail) -> int:
    """Return the pid of a child process that publishes an end, as a writer does; it stops behind each instruction."""
    child = os.fork()
    if not child:
        try:
            call_ptrace(TRACE_ME, 0)
        except OSError:
            os._exit(FORBIDDEN)
        os.kill(os.getpid(), signal.SIGSTOP)
        tail.publish(
            start=0, end=0, end_entry=0, synced_end=0, synced_entry=0, visible=0, visible_entry=0, is_open=True
        )
        os._exit(0)
    return child


def test_wake_up_clears_sleepers_before_it_changes_the_wake_word(tmp_path: Path) -> None:
    """`sleepers` is cleared before `wake` changes: who has read the new `wake` sets it afterwards, and sleeps. The other
    way round it would be cleared behind that, and the next append would find nobody to wake."""
    path = tmp_path / "tail"
    path.write_bytes(bytes(PAGE))
    with path.open("r+b") as file:
        tail, page = Tail(file, writable=True), mmap.mmap(file.fileno(), PAGE)
        WAKE.pack_into(page, WORDS_AT, 7, 1)
        seen, steps, child = [(7, 1)], 0, wake_stepwise(tail)
        try:
            while os.WIFSTOPPED(status := os.waitpid(child, 0)[1]) and steps < STEPS_MAX and seen[-1] != (8, 0):
                call_ptrace(SINGLE_STEP, child)
                steps += 1
                if (words := WAKE.unpack_from(page, WORDS_AT)) != seen[-1]:
                    seen.append(words)
        finally:
            with contextlib.suppress(ProcessLookupError):  # it has ended
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
    if status == FORBIDDEN << 8:
        pytest.skip("this machine forbids ptrace")
    assert seen == [(7, 1), (7, 0), (8, 0)]
