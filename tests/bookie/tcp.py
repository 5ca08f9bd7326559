"""A client of one bookie over TCP: asks one thing after the other, or many at a time."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self

from pyreplog.bookie.protocol import Reply, Request, decode_reply, encode_request
from pyreplog.errors import ReplogError
from pyreplog.net.channel import Channel
from pyreplog.net.reactor import Reactor

WAIT_S = 60.0


class Client:
    """Requests are answered by a Reply or by the error of the connection."""

    def __init__(self, address: str, **settings: Any) -> None:
        host, _, port = address.rpartition(":")
        self.reactor = Reactor()
        self.channel = Channel(self.reactor, (host, int(port)), **settings)

    def send(self, *requests: Request) -> list[Reply | ReplogError]:
        """The list fills as answers come."""
        answers: list[Reply | ReplogError] = []
        for request in requests:
            self.channel.request(
                encode_request(request),
                request.records,
                on_reply=lambda body: answers.append(_decode(body)),
                timeout=WAIT_S,
            )
        return answers

    def wait(self, answers: list[Reply | ReplogError], count: int) -> list[Reply | ReplogError]:
        assert self.reactor.drive(lambda: len(answers) >= count, WAIT_S), "no answer"
        return answers

    def ask(self, request: Request) -> Reply:
        (answer,) = self.wait(self.send(request), 1)
        if isinstance(answer, ReplogError):
            raise answer
        return answer

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.channel.close()
        self.reactor.close()


def _decode(body: memoryview | ReplogError) -> Reply | ReplogError:
    if isinstance(body, ReplogError):
        return body
    reply = decode_reply(body)
    return reply._replace(body=bytes(reply.body))
