"""Single requests of a client, as bytes."""

from __future__ import annotations

from pyreplog._native.ha.client_batch import encode_records
from pyreplog.errors import ReplogError
from pyreplog.future import AppendFuture, set_exception, set_result
from pyreplog.ha.node_context import SERVICE
from pyreplog.ha.protocol.client_messages import (
    CLIENT_VERSION,
    Appended,
    CommittedEntries,
    Read,
    Refused,
    decode_reply,
    encode_append,
    encode_read,
)
from pyreplog.handles import Closeable
from pyreplog.net.channel import Channel
from pyreplog.net.handshake import NodeIdentity
from pyreplog.net.reactor import Reactor
from pyreplog.net.sockets import parse_address
from tests.waiting import PATIENCE_S


class Wire(Closeable):
    """A connection to a node, over which a test sends single requests. version: that of the hello."""

    def __init__(self, address: str, version: int = CLIENT_VERSION) -> None:
        self._reactor = Reactor()
        self._channel = Channel(
            self._reactor, parse_address(address), expected=NodeIdentity(service=SERVICE),
            identity=NodeIdentity(service=SERVICE, version=version),
        )  # fmt: skip

    def begin(self, *body: bytes) -> AppendFuture[bytes]:
        answer: AppendFuture[bytes] = AppendFuture()

        def replied(reply: memoryview | ReplogError) -> None:
            if isinstance(reply, ReplogError):
                set_exception(answer, reply)
            else:
                set_result(answer, bytes(reply))

        self._channel.request(*body, on_reply=replied, timeout=PATIENCE_S)
        return answer

    def end(self, answer: AppendFuture[bytes]) -> Appended | CommittedEntries | Refused:
        return decode_reply(self._reactor.wait(answer))

    def append(self, client: bytes, sequence: int, values: list[bytes]) -> Appended | CommittedEntries | Refused:
        data, count = encode_records(values)
        return self.end(self.begin(encode_append(client, sequence, count), data))

    def read(
        self, first: int, end: int = -1, limit: int = 1 << 20, wait_ms: int = 0
    ) -> Appended | CommittedEntries | Refused:
        return self.end(self.begin(encode_read(Read(first, end, limit, wait_ms))))

    def close(self) -> None:
        self._channel.close()
        self._reactor.close()
