"""Memory that ends at a page that must not be touched: native code that reads behind a buffer ends its process."""

from __future__ import annotations

import ctypes
import mmap
import subprocess
import sys

PROT_NONE = 0


class GuardedBuffer:
    """Bytes that end where a page without any permission begins.

    Args:
        size: bytes that fit.
    """

    def __init__(self, size: int) -> None:
        self._room = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
        self._memory = mmap.mmap(-1, self._room + mmap.PAGESIZE)
        address = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.mprotect(ctypes.c_void_p(address + self._room), mmap.PAGESIZE, PROT_NONE):
            raise OSError(ctypes.get_errno(), "mprotect")

    def holding(self, data: bytes) -> memoryview:
        """Return a view of the memory, which holds these bytes in place of those before."""
        self._memory[self._room - len(data) : self._room] = data
        return memoryview(self._memory)[self._room - len(data) : self._room]


def run_alone(code: str) -> str:
    """Run code in a process of its own, which it may end, and return what it printed."""
    command = [sys.executable, "-X", "faulthandler", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, f"status {done.returncode}\n{done.stderr}"
    return done.stdout.strip()
