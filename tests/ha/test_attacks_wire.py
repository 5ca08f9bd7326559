"""Malformed and hostile messages, at the port of a node and from the server that a replica takes for its master."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from random import Random
from typing import Any

import pytest

from pyreplog._native.net.frame import CONTROL_OFFSET, FrameBatch, encode
from pyreplog.errors import ReplogError
from pyreplog.ha.node import Node
from pyreplog.ha.node_context import SERVICE
from pyreplog.ha.protocol import messages
from pyreplog.ha.protocol.members import Members
from pyreplog.ha.protocol.messages import (
    NO_UUID,
    Accept,
    AskStatus,
    Command,
    Commit,
    Join,
    MembershipUpdate,
    MembersStored,
    Message,
    Prepare,
    ProgressReport,
    Promise,
    Refuse,
    StatusReply,
    VoteRejected,
)
from pyreplog.net.connection import Connection
from pyreplog.net.dialer import ReconnectingConnection
from pyreplog.net.handshake import NodeIdentity
from pyreplog.net.reactor import Reactor
from pyreplog.net.server import Server
from pyreplog.net.sockets import parse_address
from pyreplog.stream.log_position import ORIGIN, LogPosition
from pyreplog.stream.terms import NO_TERM, History, Term, TermStart
from tests.ha.inside import context_of, followers_of, peers_of, replica_of
from tests.ha.nodes import Lab, assert_same_files, level, until, values


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    with ExitStack() as stack:
        yield Lab(tmp_path, stack)


@pytest.fixture
def reactor() -> Iterator[Reactor]:
    with Reactor() as reactor:
        reactor.start()
        yield reactor


class Stranger:
    """Sends a valid hello, and then any bytes that the test passes."""

    def __init__(self, reactor: Reactor, address: str, name: str = "c") -> None:
        self.connections: list[Connection] = []
        self.received: list[tuple[int, bytes]] = []
        self.ended: list[ReplogError] = []
        self._master_connection = ReconnectingConnection(
            reactor, parse_address(address), self, identity=NodeIdentity(node=name, service=SERVICE),
            expected=NodeIdentity(service=SERVICE),
        )  # fmt: skip
        until(lambda: self.connections)

    def say(self, *bodies: bytes, number: int = CONTROL_OFFSET) -> None:
        self.raw(b"".join(encode(number, body) for body in bodies))

    def raw(self, data: bytes) -> None:
        self.connections[0].send(data)

    def __enter__(self) -> Stranger:
        return self

    def __exit__(self, *_: object) -> None:
        self._master_connection.close()

    def opened(self, connection: Connection) -> None:
        self.connections.append(connection)

    def frames(self, connection: Connection, batch: FrameBatch) -> None:
        self.received += [(number, bytes(body)) for number, body in batch if body]

    def drained(self, connection: Connection) -> None:
        """Do nothing: the test does not wait for the send queue."""

    def closed(self, connection: Connection, error: ReplogError) -> None:
        self.ended.append(error)


def join(node: Node, name: str = "c", **changed: Any) -> Join:
    return Join(NO_UUID, 0, name, False, ORIGIN, ORIGIN, NO_TERM, History())._replace(**changed)


def everything(node: Node) -> list[Message]:
    members, term = node.members, Term(1, "a")
    assert members is not None
    uuid = node.log.uuid
    history = History((TermStart(term, ORIGIN),))
    far = LogPosition(1 << 40, 1 << 30)
    return [
        join(node), join(node, "z"), join(node, observer=True), join(node, uuid=uuid, segment_bytes=64 << 10),
        join(node, uuid=uuid, segment_bytes=64 << 10, received=far, synced=far, history=history, promised=term),
        ProgressReport(ORIGIN, ORIGIN), ProgressReport(far, far), ProgressReport(far, ORIGIN), MembersStored(1), MembersStored(1 << 63),
        Accept(uuid, 64 << 10, term, history, ORIGIN, ORIGIN), Refuse(1, "no"), Commit(far, 0, False), MembershipUpdate(members),
        Prepare(Term(0, "c"), uuid, members.stamp), Prepare(Term(1, "a"), uuid, members.stamp, trial=True),
        Promise(term, history, far, far, members), VoteRejected(1, term, "no", members), AskStatus(), StatusReply(b"{}"),
        Command(b"{}"), Command(b"not JSON"), Command(b"[" * 5000), Command(b'{"command": "follow", "master": 7}'),
        Command(json.dumps({"command": "x" * 100_000}).encode()),
        Command(b'{"command": "sync-replicas", "count": 1e999}'), Command(b'{"command": "peers", "addresses": {"b": ""}}'),
        Command(b'{"command": "promote", "lost": 7}'), Command(b'{"command": "promote", "lost": [true, "b"]}'),
        Command(b'{"command": "promote", "lost": [1099511627776, "b"]}'),
    ]  # fmt: skip


def test_random_messages_do_not_disturb_a_group(lab: Lab, reactor: Reactor, seed: int) -> None:
    a = lab.master(sync_replicas=1)
    b = lab.replica("b", a)
    a.append(b"before")
    rng = Random(seed)
    bodies = [messages.encode(message) for message in everything(a)]
    for node in (a, b):
        for _ in range(60):
            with Stranger(reactor, node.address) as stranger:
                chosen = [rng.choice(bodies) for _ in range(rng.randrange(1, 6))]
                if rng.random() < 0.5:
                    at = rng.randrange(len(chosen))
                    # not a bit of CANDIDATES: a candidate of a higher term gets its promise
                    chosen[at] = _damaged(chosen[at], rng)
                for body in chosen:
                    stranger.say(body, number=rng.choice([CONTROL_OFFSET, 1, 1, rng.randrange(1 << 40)]))
                if rng.random() < 0.3:
                    stranger.raw(rng.randbytes(rng.randrange(1, 500)))
    assert a.role == "master" and b.role == "replica"
    a.append(b"after")
    level(a, b)
    assert values(a) == values(b) == [b"before", b"after"]
    assert str(a.term) == "1 of a"
    assert_same_files(a, b)


CANDIDATES = (messages.MessageKind.JOIN, messages.MessageKind.PREPARE)


def _damaged(body: bytes, rng: Random) -> bytes:
    kind = rng.randrange(4)
    if kind == 0:
        return body[: rng.randrange(1, len(body) + 1)]
    if kind == 1:
        return body + rng.randbytes(rng.randrange(1, 20))
    if kind == 2 and body[0] not in CANDIDATES:
        at = rng.randrange(len(body))
        return body[:at] + bytes([body[at] ^ (1 << rng.randrange(8))]) + body[at + 1 :]
    return body[:1] + rng.randbytes(4 << 20)


def test_a_command_that_is_garbage_is_answered(lab: Lab, reactor: Reactor) -> None:
    a = lab.master(members="a", sync_replicas=0)
    with Stranger(reactor, a.address) as stranger:
        for number, text in enumerate(
            [b"", b"\xff", b"[" * 100_000, json.dumps({"command": "x" * 2_000_000}).encode()]
        ):
            stranger.say(messages.encode(Command(text)), number=number)
        until(lambda: len(stranger.received) == 4)
    for _, body in stranger.received:
        answer = messages.decode(body)
        assert isinstance(answer, StatusReply)
        assert "error" in json.loads(answer.json)
        assert len(body) < 4096


def test_unexpected_replies_close_the_connection(lab: Lab, reactor: Reactor) -> None:
    a = lab.master(members="a", sync_replicas=0)
    with Stranger(reactor, a.address) as stranger:
        stranger.say(messages.encode(StatusReply(b"{}")), number=5)
        until(lambda: stranger.ended)


def test_a_second_join_is_refused(lab: Lab, reactor: Reactor) -> None:
    a = lab.master(members="ac", sync_replicas=0)
    with Stranger(reactor, a.address) as stranger:
        stranger.say(messages.encode(join(a)))
        until(lambda: stranger.received)
        stranger.say(messages.encode(join(a)))
        until(lambda: stranger.ended)
    until(lambda: a.replication().replicas[0].state == "gone")
    until(lambda: not followers_of(a))


def test_a_refusal_arrives_before_the_connection_ends(lab: Lab, reactor: Reactor) -> None:
    """The refusal is sent, also if the request arrived together with another message."""
    a = lab.master(members="ab", sync_replicas=0)
    with Stranger(reactor, a.address, "z") as stranger:
        stranger.say(messages.encode(join(a, "z")), messages.encode(ProgressReport(ORIGIN, ORIGIN)))
        until(lambda: stranger.ended)
    refusal = messages.decode(stranger.received[0][1])
    assert isinstance(refusal, Refuse) and refusal.code == messages.RefusalCode.NOT_A_MEMBER


def test_progress_from_the_future_is_not_counted(lab: Lab, reactor: Reactor) -> None:
    a = lab.master(members="ac", sync_replicas=1, ack_timeout_ms=50)
    with Stranger(reactor, a.address) as stranger:
        stranger.say(messages.encode(join(a)))
        until(lambda: stranger.received)
        future = a.submit(b"never acknowledged")
        stranger.say(messages.encode(ProgressReport(LogPosition(1 << 40, 1 << 30), LogPosition(1 << 40, 1 << 30))))
        until(lambda: stranger.ended)
        assert future.exception(60) is not None
    assert a.committed == ORIGIN


def test_a_node_cannot_send_messages_of_another_one(lab: Lab, reactor: Reactor) -> None:
    """A process that was given the wrong name or directory must not count in place of another one."""
    a = lab.master(members="abc", sync_replicas=1)
    for message in (join(a, "b"), prepare(a, "b")):
        with Stranger(reactor, a.address, "c") as stranger:
            stranger.say(messages.encode(message), number=CONTROL_OFFSET if isinstance(message, Join) else 1)
            until(lambda stranger=stranger: stranger.ended)  # type: ignore[misc]
    assert a.replication().replicas == ()
    assert str(a.term) == "1 of a"


def prepare(node: Node, name: str) -> Prepare:
    members = node.members
    assert members is not None
    return Prepare(Term(7, name), node.log.uuid, members.stamp)


def test_a_replica_that_follows_another_master_ignores_a_late_refusal(lab: Lab) -> None:
    a = lab.master(members="ab", sync_replicas=0)
    b = lab.replica("b", a)
    level(a, b)
    replica = replica_of(b)
    done: list[bool] = []

    def both() -> None:
        replica.follow(("127.0.0.1", 1))
        replica._on_control(messages.encode(Refuse(messages.RefusalCode.FOREIGN, "not you")))
        done.append(True)

    context_of(b).reactor.call_soon(both)
    until(lambda: done)
    assert replica.master == ("127.0.0.1", 1)
    b.follow(a.address)
    a.append(b"more")
    level(a, b)


def test_a_replica_that_never_reads_costs_nothing_but_itself(lab: Lab, reactor: Reactor) -> None:
    a = lab.master(sync_replicas=1)
    b = lab.replica("b", a)
    with Stranger(reactor, a.address) as stranger:
        stranger.say(messages.encode(join(a)))
        until(lambda: stranger.received)
        stranger.connections[0].pause()
        for _ in range(20):
            a.append_batch([b"." * 30_000] * 40)
        level(a, b)
        queued = [connection.queued_bytes for connection in list(followers_of(a))]
        assert max(queued) < 5 << 20  # the batch that is sent at once, and the frame that exceeds it
        a.append(b"still")
    level(a, b)


class Liar:
    """A server that answers each JOIN with the messages that the test passes."""

    def __init__(self, reactor: Reactor, replies: list[bytes]) -> None:
        self.joins = 0
        self._replies = replies
        self._server = Server(reactor, self, identity=NodeIdentity(node="a", service=SERVICE))
        host, port = self._server.address
        self.address = f"{host}:{port}"

    def __enter__(self) -> Liar:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.close()

    def opened(self, connection: Connection) -> None:
        """Do nothing: the client sends its JOIN first."""

    def frames(self, connection: Connection, batch: FrameBatch) -> None:
        for _, body in batch:
            if body and isinstance(messages.decode(body), Join):
                self.joins += 1
                for reply in self._replies:
                    connection.send(reply)

    def drained(self, connection: Connection) -> None:
        """Do nothing: all messages were sent."""

    def closed(self, connection: Connection, error: ReplogError) -> None:
        """Do nothing: the client connects again."""


def control(message: Message) -> bytes:
    return encode(CONTROL_OFFSET, messages.encode(message))


def test_invalid_messages_of_a_master_change_no_log(lab: Lab, reactor: Reactor) -> None:
    a = lab.master(members="ab", sync_replicas=1)
    b = lab.replica("b", a)
    a.append_batch([b"%d" % i for i in range(10)])
    level(a, b)
    uuid, far = b.log.uuid, LogPosition(1 << 40, 1 << 30)
    end = LogPosition(*b.log.received_mark)  # type: ignore[attr-defined]
    term, zombie = Term(1, "a"), Term(9, "zombie")
    mine = History((TermStart(term, ORIGIN),))
    foreign = History((TermStart(zombie, ORIGIN),))
    accept = Accept(uuid, 64 << 10, term, mine, ORIGIN, end)
    scripts: list[list[bytes]] = [
        [encode(end.position, b"x" * 100)],
        [control(Commit(far, 0, False))],
        [control(MembershipUpdate(Members.first(["z"], 0)))],
        [control(accept), control(accept)],
        [control(accept._replace(resume=far))],
        [control(accept._replace(resume=ORIGIN))],
        [control(accept._replace(uuid=bytes(16)))],
        [control(accept._replace(segment_bytes=1 << 31))],
        [control(accept._replace(term=zombie))],
        [control(accept._replace(term=zombie, history=foreign))],
        [control(accept._replace(history=History()))],
        [control(accept), encode(-7, b"negative")],
        [control(accept), encode(end.position, b"\xff" * 5000)],
        [control(accept), encode(0, b"\xff" * 64)],
        [control(accept), encode(64 << 10, b"\xff" * 63)],
        [control(accept), struct.pack(">qi", end.position, -5)],
        [control(accept), struct.pack(">qi", end.position, 1 << 30)],
        [control(Refuse(99, "so what"))],
    ]
    for script in scripts:
        with Liar(reactor, script) as liar:
            b.follow(liar.address)
            until(lambda liar=liar: liar.joins)  # type: ignore[misc]
            until(lambda: not b.stats()["streaming"])
        assert b.members == a.members, script
        assert b.term == term, script
    b.follow(a.address)
    a.append(b"after")
    level(a, b)
    assert values(b) == values(a)
    assert_same_files(a, b)


SURROGATE = "\ud800"
"""Half of a surrogate pair, which JSON can encode and UTF-8 cannot."""


def obeyed(node: Node, stranger: Stranger, number: int, text: bytes) -> str:
    """Return the error with which a command is refused, or an empty string."""
    stranger.say(messages.encode(Command(text)), number=number)
    body = until(lambda: next((body for of, body in list(stranger.received) if of == number), None))
    answer = messages.decode(body)
    assert isinstance(answer, StatusReply)
    return str(json.loads(answer.json).get("error", ""))


def test_malformed_texts_are_refused_without_a_traceback(
    lab: Lab, reactor: Reactor, caplog: pytest.LogCaptureFixture
) -> None:
    """Each of these texts caused a traceback, in this command or when the next replica was done the master's address."""
    a = lab.master(sync_replicas=0)
    b = lab.replica("b", a)
    level(a, b)
    commands: list[tuple[str, object]] = [
        ("add-member", {"name": SURROGATE}),
        ("add-member", {"name": "x" * 256}),
        *(("peers", {"addresses": {name: "127.0.0.1:1"}}) for name in ("", SURROGATE, "x" * 256)),
        *(
            ("peers", {"addresses": {"c": address}})
            for address in (f"{SURROGATE}:1", "\0:1", "[]:1", ":1", "[:1", "h" * 256 + ":1", "h:" + "9" * 5000, "h:0")
        ),
        *(
            ("promote", {"lost": lost})
            for lost in ([2, SURROGATE], [2, "x" * 256], [2, ""], [True, "c"], [1 << 40, "c"], 7)
        ),
        *(("follow", {"master": address}) for address in (f"{SURROGATE}:1", "\0:1", "[]:1")),
    ]
    texts = [json.dumps({"command": command, **given}).encode() for command, given in commands]  # type: ignore[dict-item]
    nested = [b'{"command": "follow", "master": ' + b"[" * depth + b"]" * depth + b"}" for depth in range(900, 1000, 3)]
    for node in (a, b):
        with Stranger(reactor, node.address, "z") as stranger:
            for number, text in enumerate([*texts, *nested, b"[" * 100_000]):
                refused = obeyed(node, stranger, number, text)
                assert refused in ("InvalidArgumentError", "InvalidMessageError", "NotMasterError"), text[:80]
    with Stranger(reactor, b.address, "z") as stranger:
        stranger.say(messages.encode(join(b, "z")))
        until(lambda: stranger.ended)
    assert isinstance(messages.decode(stranger.received[0][1]), Refuse)
    assert [record.getMessage() for record in caplog.records if record.exc_info] == []


def test_addresses_of_any_number_of_members_are_not_kept(lab: Lab, reactor: Reactor) -> None:
    a = lab.master(members="a", sync_replicas=0)
    with Stranger(reactor, a.address, "z") as stranger:
        for number in range(5):
            addresses = {f"{number}-{i}": "127.0.0.1:1" for i in range(500)}
            text = json.dumps({"command": "peers", "addresses": addresses}).encode()
            assert obeyed(a, stranger, number, text) == ("" if number < 2 else "InvalidArgumentError")
    assert len(peers_of(a).addresses) == 1000
    a.learn_peers({"0-0": "127.0.0.1:2"})  # the address of a known member is replaced
    assert peers_of(a).addresses["0-0"] == "127.0.0.1:2"


def test_a_refusal_may_quote_any_text(lab: Lab) -> None:
    body = messages.encode(Refuse(messages.RefusalCode.NOT_MASTER, f"its log is in {SURROGATE}"))
    refusal = messages.decode(body)
    assert isinstance(refusal, Refuse) and refusal.text == "its log is in ?"


def test_a_deposed_master_follows_though_the_new_ones_address_is_wrong(
    lab: Lab, reactor: Reactor, caplog: pytest.LogCaptureFixture
) -> None:
    """The address in its list was its own. It cannot follow itself, and remained a deposed master that could not be
    promoted."""
    a = lab.master(sync_replicas=1)
    b = lab.replica("b", a)
    a.append(b"one")
    level(a, b)
    a.learn_peers({"c": a.address})
    with Stranger(reactor, a.address, "c") as stranger:
        stranger.say(messages.encode(prepare(a, "c")), number=1)
        until(lambda: stranger.received)
    until(lambda: a.role == "replica")
    assert [record.getMessage() for record in caplog.records if record.exc_info] == []
    a.promote()
    b.follow(a.address)
    a.append(b"two")
    level(a, b)
    assert values(b) == [b"one", b"two"]
