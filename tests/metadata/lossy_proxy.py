"""A proxy in front of ZooKeeper at which connections are lost."""

from __future__ import annotations

import socket
import struct
import threading
from contextlib import suppress
from queue import SimpleQueue

from tests.metadata.zookeeper_proxy import ZooKeeperProxy

PATIENCE_S = 60.0
WRITES = {1: "create", 2: "delete", 5: "set", 15: "create"}
"""Requests by their type, in the protocol of ZooKeeper."""


class LossyProxy(ZooKeeperProxy):
    """Loses the connection at the first write of each kind to each path, so that its outcome is unknown.

    port: of ZooKeeper on this machine. is_done: whether ZooKeeper gets the write; its answer is lost then.
    """

    def __init__(self, port: int, *, is_done: bool) -> None:
        self._is_done = is_done
        self._lock = threading.Lock()
        self.lost: list[tuple[str, str]] = []
        """Kind and path of the writes that were lost."""
        super().__init__(port)

    def accepted(self, client: socket.socket) -> None:
        threading.Thread(target=self._relay, args=(client,), daemon=True).start()

    def _relay(self, client: socket.socket) -> None:
        swallowed: SimpleQueue[int] = SimpleQueue()
        is_lost = threading.Event()
        with client, suppress(OSError), socket.create_connection(self.server) as server:
            answers = threading.Thread(target=_answer, args=(server, client, is_lost, swallowed), daemon=True)
            answers.start()
            server.sendall(_frame(client))  # begins the session
            while frame := _frame(client):
                if not self._is_to_be_lost(frame):
                    server.sendall(frame)
                    continue
                if self._is_done:
                    is_lost.set()
                    server.sendall(frame)
                    while swallowed.get(timeout=PATIENCE_S) != _xid(frame):
                        continue
                break
            for connection in (client, server):
                connection.shutdown(socket.SHUT_RDWR)
            answers.join()

    def _is_to_be_lost(self, frame: bytes) -> bool:
        kind, length = struct.unpack_from(">8xii", frame + bytes(8))
        if kind not in WRITES:
            return False
        write = WRITES[kind], frame[16 : 16 + length].decode()
        with self._lock:
            if write in self.lost:
                return False
            self.lost.append(write)
        return True


def _answer(
    server: socket.socket, client: socket.socket, is_lost: threading.Event, swallowed: SimpleQueue[int]
) -> None:
    with suppress(OSError):
        while frame := _frame(server):
            if is_lost.is_set():
                swallowed.put(_xid(frame))
            else:
                client.sendall(frame)
        client.shutdown(socket.SHUT_RDWR)


def _frame(connection: socket.socket) -> bytes:
    """Return the next message with its length in front; empty: the connection has ended."""
    head = _exactly(connection, 4)
    return head and head + _exactly(connection, int.from_bytes(head, "big"))


def _xid(frame: bytes) -> int:
    return int.from_bytes(frame[4:8], "big", signed=True)


def _exactly(connection: socket.socket, count: int) -> bytes:
    received = b""
    while len(received) < count:
        if not (part := connection.recv(count - len(received))):
            return b""
        received += part
    return received
