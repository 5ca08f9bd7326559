"""Ports for servers that have to be told theirs, or that come back to the one they had."""

from __future__ import annotations

import os
import random
import socket
from pathlib import Path

_LOWEST = 10_000
_WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:])
_WORKERS = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
"""Each of the test processes has ports of its own: a server may take seconds to listen on the one it was told."""


def free_ports(count: int) -> list[int]:
    """Ports that were free just now; all different. The kernel gives them to nobody who does not ask for them by number:
    they lie below those that it chooses from, if it leaves any."""
    taken = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text()
    candidates = list(range(_LOWEST, int(taken.split()[0])))[_WORKER::_WORKERS]
    random.SystemRandom().shuffle(candidates)
    free: list[int] = []
    for port in candidates:
        if len(free) == count:
            break
        if _is_free(port):
            free.append(port)
    return free if len(free) == count else _any(count)


def _is_free(port: int) -> bool:
    with socket.socket() as new_socket:
        new_socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            new_socket.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _any(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for each_socket in sockets:
        each_socket.bind(("127.0.0.1", 0))
    ports = [socket.getsockname()[1] for socket in sockets]
    for each_socket in sockets:
        each_socket.close()
    return ports
