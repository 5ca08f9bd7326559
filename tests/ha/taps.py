"""Sessions at a node's port: recorded as bytes, changed or cut, and sent again."""

from __future__ import annotations

import socket
import struct
import threading
from contextlib import suppress
from random import Random

from pyreplog._native.net.frame import HEADER_SIZE, FrameParser, encode
from pyreplog.ha.node import Node
from pyreplog.ha.protocol import messages
from pyreplog.ha.protocol.messages import Join, MessageKind, Prepare, ProgressReport
from pyreplog.net.sockets import parse_address
from pyreplog.stream.terms import Term
from tests.ha.inside import context_of

HEADER = struct.Struct(">qi")
assert HEADER.size == HEADER_SIZE
EXTREMES = (
    -(1 << 63), -2, -1, 0, 1, 2, (1 << 24) - 1, (1 << 24) + 1, (1 << 31) - 1, (1 << 32) - 1, 1 << 62, (1 << 63) - 1,
)  # fmt: skip
Frame = tuple[int, bytes]


class Tap:
    """A proxy in front of a node, which records the bytes of each client."""

    def __init__(self, address: str) -> None:
        self.sessions: list[bytearray] = []
        self._node = parse_address(address)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._sockets: list[socket.socket] = []
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                node = socket.create_connection(self._node)
                self._sockets += [client, node]
                self.sessions.append(bytearray())
                for source, target, kept in ((client, node, self.sessions[-1]), (node, client, None)):
                    self._threads.append(threading.Thread(target=self._pass_on, args=(source, target, kept)))
                    self._threads[-1].start()

    def _pass_on(self, source: socket.socket, target: socket.socket, kept: bytearray | None) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                if kept is not None:
                    kept += data
                target.sendall(data)
        for end in (source, target):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        for sock in (self._listener, *self._sockets):
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        for sock in (self._listener, *self._sockets):
            sock.close()

    def __enter__(self) -> Tap:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def frames_of(session: bytes | bytearray) -> list[Frame]:
    """Return the complete frames of a session without heartbeats, whose number depends on the machine's speed."""
    batch = FrameParser(max_body=1 << 26).feed(bytes(session))
    assert batch.error is None
    return [(offset, bytes(body)) for offset, body in batch if body]


def brought_up_to_date(frames: list[Frame], node: Node, rng: Random) -> list[Frame]:
    """Rewrite a session as its client would send it now.

    A replica has what the node has, and half of the candidates ask for a newer term: old requests would be refused at
    the first
    frame.
    """
    end, synced = node.log_ends()
    terms, changed = context_of(node).terms, []
    for offset, body in frames:
        if body[0] == MessageKind.JOIN:
            join = messages.decode(body)
            assert isinstance(join, Join)
            log = node._log
            if not join.observer and log is not None:
                uuid, size, history = log.uuid, log.segment_bytes, terms.history.up_to(end)
                join = Join(uuid, size, join.member, False, end, end, terms.promised, history)
            body = messages.encode(join)
        elif body[0] == MessageKind.PROGRESS:
            body = messages.encode(ProgressReport(end, synced))
        elif body[0] == MessageKind.PREPARE and rng.random() < 0.5:
            prepare, members = messages.decode(body), node.members
            assert isinstance(prepare, Prepare) and members is not None
            term = Term(terms.promised.number + 1, prepare.term.master)
            body = messages.encode(prepare._replace(term=term, stamp=members.stamp))
        changed.append((offset, body))
    return changed


def mutated(frames: list[Frame], others: list[Frame], hellos: int, rng: Random) -> bytes:
    """Return the session with one to four changes of bytes, numbers, lengths, order or its end.

    others: frames of other sessions, which may be inserted. hellos: frames of the hello, which are mostly left
    unchanged.
    """
    first = 0 if rng.random() < 0.15 else min(hellos, len(frames))
    frames = list(frames)
    parts = [encode(offset, body) for offset, body in frames]
    for _ in range(rng.randint(1, 4)):
        if len(parts) <= first:
            break
        at = rng.randrange(first, len(parts))
        part = bytearray(parts[at])
        kind = rng.randrange(10) if part else 9  # an earlier change has left nothing of this frame
        if kind == 0:
            part[rng.randrange(len(part))] ^= 1 << rng.randrange(8)
        elif kind == 1 and len(part) >= HEADER_SIZE + 9:
            struct.pack_into(">q", part, rng.randrange(HEADER_SIZE + 1, len(part) - 7), rng.choice(EXTREMES))
        elif kind == 2 and len(part) >= HEADER_SIZE:
            offset, size = HEADER.unpack_from(part)
            size = rng.choice((-1, 0, 1, size - 1, size + 1, size + 100, 4 << 20, (4 << 20) + 1, (1 << 31) - 1))
            HEADER.pack_into(part, 0, offset, min(size, (1 << 31) - 1))
        elif kind == 3 and len(part) >= HEADER_SIZE:
            struct.pack_into(">q", part, 0, rng.choice((*EXTREMES, 3, 4)))
        elif kind == 4:
            # the header keeps the length, so that the following bytes become part of this frame
            del part[rng.randrange(len(part)) :]
        elif kind == 5:
            body = bytearray(part[HEADER_SIZE:])
            body[rng.randrange(len(body) + 1) :] = rng.randbytes(rng.randrange(20))
            part = bytearray(encode(HEADER.unpack_from(part)[0] if len(part) >= HEADER_SIZE else -1, body))
        elif kind == 6 and len(part) > HEADER_SIZE:
            body = part[HEADER_SIZE:]
            where = rng.randrange(len(body))
            body[where:where] = rng.choice((b"\\ud800", b"\xff", b"[" * 2000, b'"', b":", b"9" * 5000))
            part = bytearray(encode(HEADER.unpack_from(part)[0], body))
        elif kind == 7:
            parts.insert(rng.randrange(first, len(parts) + 1), bytes(part))
        elif kind == 8:
            other = rng.randrange(first, len(parts))
            parts[at], parts[other] = parts[other], parts[at]
            continue
        else:
            parts.insert(at, encode(*rng.choice(others)))
            continue
        parts[at] = bytes(part)
    data = b"".join(parts)
    return data[: rng.randrange(len(data) + 1)] if rng.random() < 0.3 else data


def play(address: str, data: bytes, rng: Random, patience_s: float) -> bool:
    """Send the data in pieces, then wait until the node ends the connection, or break it; return whether the node ended
    it."""
    with socket.create_connection(parse_address(address), timeout=patience_s) as sock:
        try:
            if rng.random() < 0.5:
                sock.recv(1 << 16)  # at least the hello of the node
            at = 0
            while at < len(data):
                size = rng.choice((1, 7, 100, 1 << 20))
                sock.sendall(data[at : at + size])
                at += size
            if rng.random() < 0.2:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                return False
            sock.shutdown(socket.SHUT_WR)
            while sock.recv(1 << 16):
                continue
        except TimeoutError:
            raise
        except OSError:  # the node ended the connection first
            pass
        return True
