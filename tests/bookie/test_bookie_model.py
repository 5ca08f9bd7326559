"""A Bookie against a dict: what was acknowledged is there, what a fence was answered for is fenced, across power cuts."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from pyreplog.bookie.holdings import Holdings
from pyreplog.bookie.protocol import Flag, Reply, ReplyStatus, Request, RequestKind
from tests.bookie.asking import KEY, Node, add, entries_in, last, read, set_lac, wait_lac

LEDGERS = st.integers(1, 2)
ENTRIES = st.integers(0, 12)
PROOF = b"p" * 16


class BookieMachine(RuleBasedStateMachine):
    """promised: entries that must be here. possible: entries that may be. lax: those whose writer wants no sync. All by
    ledger."""

    @initialize(staged=st.booleans(), kept=st.integers(1, 2))
    def begin(self, staged: bool, kept: int) -> None:
        """kept: of the two ledgers, at most so many are in memory when nothing of them waits."""
        self.node = Node(staged=staged, ledger_states_max=kept)
        self.promised: dict[int, set[int]] = {1: set(), 2: set()}
        self.possible: dict[int, set[int]] = {1: set(), 2: set()}
        self.lax: dict[int, set[int]] = {1: set(), 2: set()}
        self.fenced: set[int] = set()  # answered
        self.fencing: set[int] = set()  # asked for
        self.lac = {1: -1, 2: -1}
        self.lac_most = dict(self.lac)  # when what waits to be looked at is taken
        self.waiting: list[tuple[Request, list[Reply]]] = []

    # ---- requests -------------------------------------------------------------------------------------------

    def send(self, request: Request) -> list[Reply]:
        replies = self.node.send(request)
        if replies:
            self.answered(request, replies[0])
        else:
            self.waiting.append((request, replies))
        return replies

    @rule(
        ledger=LEDGERS,
        entries=st.sets(ENTRIES, min_size=1, max_size=5),
        flags=st.sampled_from([Flag.NONE, Flag.RECOVERY, Flag.UNSYNCED, Flag.COPY]),
    )
    def add(self, ledger: int, entries: set[int], flags: Flag) -> None:
        request = add(*sorted(entries), ledger=ledger, flags=flags, key=PROOF if flags & Flag.COPY else KEY)
        replies = self.send(request)
        if ledger in self.fenced | self.fencing and not flags & (Flag.RECOVERY | Flag.COPY):
            assert replies[0].status == ReplyStatus.FENCED
        else:
            assert not replies or replies[0].status == ReplyStatus.OK
            self.possible[ledger] |= entries
            self.lax[ledger] |= entries if flags & Flag.UNSYNCED else set()
            self.lac_most[ledger] = max(self.lac_most[ledger], max(entries) - 1)
            if replies or self.node.bookie._group.waiting[-1].request is None:  # else it is looked at after the commit
                self.lac[ledger] = max(self.lac[ledger], max(entries) - 1)

    @rule(
        ledger=LEDGERS,
        first=ENTRIES,
        count=st.integers(0, 8),
        step=st.integers(1, 3),
        fence=st.booleans(),
        limit=st.sampled_from([0, 1, 300]),
    )
    def read(self, ledger: int, first: int, count: int, step: int, fence: bool, limit: int) -> None:
        self.fencing |= {ledger} if fence else set()
        flags = Flag.FENCE if fence else Flag.NONE
        self.send(read(first, first + count, ledger=ledger, flags=flags, step=step, limit=limit))

    @rule(
        ledger=LEDGERS,
        first=ENTRIES,
        count=st.integers(0, 8),
        step=st.integers(1, 3),
        limit=st.sampled_from([0, 1, 300]),
    )
    def holdings(self, ledger: int, first: int, count: int, step: int, limit: int) -> None:
        self.send(read(first, first + count, ledger=ledger, step=step, limit=limit)._replace(kind=RequestKind.HOLDINGS))

    @rule(ledger=LEDGERS, fence=st.booleans())
    def last(self, ledger: int, fence: bool) -> None:
        self.fencing |= {ledger} if fence else set()
        self.send(last(ledger=ledger, fence=fence))

    @rule(ledger=LEDGERS, lac=ENTRIES)
    def set_lac(self, ledger: int, lac: int) -> None:
        replies = self.send(set_lac(lac, ledger=ledger))
        if replies[0].status == ReplyStatus.OK:
            self.lac[ledger] = max(self.lac[ledger], lac)
            self.lac_most[ledger] = max(self.lac_most[ledger], lac)

    @rule(ledger=LEDGERS, above=ENTRIES)
    def wait_lac(self, ledger: int, above: int) -> None:
        replies = self.node.send(wait_lac(above, ledger=ledger))
        assert replies if self.lac[ledger] > above else not replies or self.lac_most[ledger] > above

    # ---- commits and crashes --------------------------------------------------------------------------------

    @rule(between=st.sampled_from([None, 1, 2]))
    def commit(self, between: int | None) -> None:
        """Perhaps with reads and an add before the sync."""
        bookie = self.node.bookie
        before = self.waiting
        self.waiting = []
        group = bookie.begin_commit()
        assert len(group) >= len(before)  # nobody may wait, too, for states to be let go
        if not group:
            return
        if between is not None:
            self.read(between, 0, 9, 1, False, 0)
            self.read(between, 3, 9, 1, False, 0)
        error = bookie.sync()
        if between is not None and between not in self.fencing | self.fenced:
            self.add(between, {3}, Flag.NONE)
        bookie.end_commit(group, error)
        for request, replies in before:
            if replies:
                self.answered(request, replies[0])
            else:
                self.waiting.append((request, replies))

    @rule(kept=st.integers(0, 6))
    def crash(self, kept: int) -> None:
        """What was not answered may be lost."""
        self.node = self.node.crash(kept)
        self.waiting = []
        for ledger in (1, 2):
            here = set(entries_in(self.node.ask(read(0, 99, ledger=ledger))))
            assert self.promised[ledger] <= here <= self.possible[ledger]
            self.possible[ledger] = here
            self.lac[ledger] = self.lac_most[ledger] = self.node.ask(last(ledger=ledger)).lac
            status = self.node.ask(add(99, ledger=ledger)).status
            assert status == ReplyStatus.FENCED or ledger not in self.fenced
            assert status == ReplyStatus.OK or ledger in self.fencing | self.fenced
            if status == ReplyStatus.FENCED:
                self.fenced.add(ledger)
            else:
                self.promised[ledger].add(99)
                self.possible[ledger].add(99)
                self.lac[ledger] = self.lac_most[ledger] = 98
        self.fencing = set()

    # ---- answers --------------------------------------------------------------------------------------------

    def answered(self, request: Request, reply: Reply) -> None:
        if reply.status == ReplyStatus.FENCED:
            return
        assert reply.status == ReplyStatus.OK, bytes(reply.body)
        ledger = request.ledger
        if request.flags & Flag.FENCE:
            self.fenced.add(ledger)
        if request.records:
            asked = {
                entry
                for entry in self.possible[ledger]
                if bytes(add(entry, ledger=ledger).records) in bytes(request.records)
            }
            durable = not request.flags & Flag.UNSYNCED or self.node.log.staged
            self.promised[ledger] |= asked if durable else set()
            self.lac[ledger] = max(self.lac[ledger], request.last - 1)
        elif request.kind == read(0, 0).kind:
            got, asked = set(entries_in(reply)), set(range(request.first, reply.last + 1, request.step))
            durable = {item.entry for item in self.node.log.stored[: self.node.log.synced] if item.ledger == ledger}
            assert got <= durable | self.lax[ledger]
            assert self.promised[ledger] & asked <= got <= self.possible[ledger] & asked
            assert reply.first == request.first <= reply.last <= request.last
        elif request.kind == RequestKind.HOLDINGS:
            got = set(Holdings.decode(request, reply).entries(request).tolist())
            asked = set(range(request.first, reply.last + 1, request.step))
            durable = {item.entry for item in self.node.log.stored[: self.node.log.synced] if item.ledger == ledger}
            assert got <= durable, "whatever its writer was promised"
            assert self.promised[ledger] & asked <= got <= self.possible[ledger] & asked
        elif request.kind == last().kind:
            assert max(self.promised[ledger], default=-1) <= reply.last <= max(self.possible[ledger], default=-1)
            assert reply.lac <= self.lac_most[ledger]

    @invariant()
    def lac_never_goes_back(self) -> None:
        for ledger in (1, 2):
            state = self.node.bookie._ledgers.peek(ledger)
            assert state is None or self.lac[ledger] <= state.lac <= self.lac_most[ledger]


BookieMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestBookieMachine = BookieMachine.TestCase
