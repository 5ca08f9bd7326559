"""Node: a log directory and its role in a replica group."""

from __future__ import annotations

import json
import logging
import os
import ssl
import threading
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from pyreplog.arguments import as_int, as_names, check_bool, check_mapping, check_seconds, check_text, check_type
from pyreplog.clock import Clock, SystemClock
from pyreplog.coroutines import in_thread
from pyreplog.errors import (
    HigherTermError,
    InvalidArgumentError,
    NotMasterError,
    PromotionRefusedError,
    ReplicaError,
    ReplicationError,
    ReplogError,
)
from pyreplog.future import AppendFuture
from pyreplog.ha import logs
from pyreplog.ha.client_requests import Appends, ClientRequests
from pyreplog.ha.commands import Commands
from pyreplog.ha.config import NodeConfig
from pyreplog.ha.election_runner import PATIENCE_S, ElectionRunner, ask_to_stand, end_of
from pyreplog.ha.long_polls import CommitLongPolls
from pyreplog.ha.master import Master
from pyreplog.ha.node_context import NodeContext, ends_of, start_of
from pyreplog.ha.peers import Peers
from pyreplog.ha.protocol.election import Election, ElectionWon, refuse_candidate
from pyreplog.ha.protocol.members import Members, MembersFile
from pyreplog.ha.protocol.messages import (
    NO_UUID,
    Command,
    Message,
    Prepare,
    PreVote,
    Promise,
    StatusReply,
    VoteRejected,
)
from pyreplog.ha.protocol.stats import GroupStats
from pyreplog.ha.replica import Replica, ends_of_replica
from pyreplog.ha.service import Service, Streams
from pyreplog.ha.status import describe_group, describe_members
from pyreplog.handles import Handle
from pyreplog.log import replica as replicas
from pyreplog.log.commit_log import CommitLog
from pyreplog.log.files import Files, RealFiles
from pyreplog.log.opening import as_path
from pyreplog.net.connection import Connection
from pyreplog.net.handshake import Secret
from pyreplog.net.limits import Limits, check_tls
from pyreplog.net.reactor import Reactor
from pyreplog.net.server import Server
from pyreplog.net.server_connection import ServerConnection
from pyreplog.net.sockets import Address, address_text, parse_address
from pyreplog.stream.log_position import ORIGIN, LogPosition
from pyreplog.stream.mirror_log import MirrorLog, canonical
from pyreplog.stream.terms import NO_TERM, Term, Terms, TermsFile
from pyreplog.times import Time

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

logger = logging.getLogger(__name__)

MASTER_ALIVE_US = 800_000
"""Microseconds: a master from which a message arrived within this time is alive. Four heartbeats."""

Role = Literal["master", "replica", "candidate"]

_CHANGE_OVERS = 3
"""Attempts at a planned change-over."""

_RESTORED_S = 5.0
"""Seconds within which a master that was deposed in vain leads again."""


class Node(Handle):
    """A member or an observer of a replica group; made by `open_master` and `open_replica`.

    A node listens while it is open: for replicas that stream from it, for candidates, and for clients. Any thread may
    call any method, and coroutines await the futures of `submit`. Close it, or use `with`.

    Attributes:
        config: settings of the node.

    See docs/ha.md.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        config: NodeConfig,
        *,
        peers: Mapping[str, str] | None = None,
        secret: bytes | Secret | None = None,
        tls_server: ssl.SSLContext | None = None,
        tls_client: ssl.SSLContext | None = None,
        limits: Limits | None = None,
        busy_poll_us: int = 0,
        clock: Clock | None = None,
        files: Files | None = None,
    ) -> None:
        directory, files = as_path(path), files or RealFiles()
        if peers is not None:
            check_mapping("peers", peers)
        shared = Secret.of(secret)
        check_tls("tls_server", tls_server)
        check_tls("tls_client", tls_client)
        if limits is not None:
            check_type("limits", limits, Limits, "Limits")
        as_int("busy_poll_us", busy_poll_us)
        self.config = config
        terms, members = TermsFile(directory, files), MembersFile(directory, files)
        reactor = Reactor(clock=clock, busy_poll_us=busy_poll_us)  # last: an error above would leave it open
        polls = CommitLongPolls(reactor)
        self._context = NodeContext(
            path=directory, config=config, files=files, clock=clock or SystemClock(),
            terms=terms, members=members, limits=limits or Limits(),
            secret=shared, tls=(tls_server, tls_client),
            reactor=reactor, polls=polls,
        )  # fmt: skip
        self._master: Master | None = None
        self._replica: Replica | None = None
        self._candidacy: ElectionRunner | None = None
        self._log: CommitLog | None = None
        self._highest_term: Term = NO_TERM
        self._changing = threading.RLock()  # held while the role changes
        self._commands = Commands(self)
        self.clients = ClientRequests(self, reactor, polls)
        try:
            self._peers = Peers(self._context, peers or {})
            self._server = Server(
                self._context.reactor, Service(self), host=config.host, port=config.port,
                identity=self._context.identity, secret=self._context.secret, tls=tls_server,
                limits=self._context.limits,
            )  # fmt: skip
        except BaseException:
            self._context.reactor.close()
            raise
        super().__init__(f"node {config.name} in {directory}")
        self._context.reactor.start()

    # ---- state ----------------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """Name of the node in the group."""
        return self.config.name

    @property
    def role(self) -> Role:
        """The role now: "master", "replica", or "candidate" while the role changes."""
        return "master" if self._master is not None else "replica" if self._replica is not None else "candidate"

    @property
    def log(self) -> CommitLog:
        """The log, to be read and followed up to the commit point.

        A change of the role closes it; then ask for it again. Raises NotMasterError if this replica has never had a
        master and has no log yet.
        """
        self._check_open()
        log = self._log
        if log is None:
            raise NotMasterError(f"{self.name} has no log yet: it has not found its master; see stats(), trouble")
        return log

    @property
    def address(self) -> str:
        """Address at which other nodes reach this one, "host:port"."""
        if self.config.advertise is not None:
            return self.config.advertise
        return address_text(self._server.address)

    @property
    def term(self) -> Term:
        """The highest term that this node leads, or has promised to follow."""
        return self._context.terms.promised

    @property
    def members(self) -> Members | None:
        """The members of the group, as far as this node knows; None: unknown."""
        return self._context.members.members

    @property
    def is_eligible(self) -> bool:
        """Whether the node may become master.

        It may if its log holds records of the group, its disk has not failed, and it is not an observer.
        """
        log = self._log
        is_sound = log is not None and log.is_usable
        return is_sound and bool(self._context.terms.history.starts) and not self.config.observer

    @property
    def is_leading(self) -> bool:
        """Whether the node is master, and no higher term has fenced it."""
        master = self._master
        return master is not None and master.group.fenced is None

    def hears_master(self, timeout: float) -> bool:
        """Return whether the node is master, or has heard from its master lately.

        Args:
            timeout: how long ago the master may have been heard last, seconds.
        """
        check_seconds("timeout", timeout)
        replica = self._replica
        return replica is None or (replica.is_streaming and replica.silent_us <= timeout * 1e6)

    @property
    def is_streaming(self) -> bool:
        """Whether the node is a replica, and receives the log from its master."""
        replica = self._replica
        return replica is not None and replica.is_streaming

    @property
    def stalled_s(self) -> float:
        """Seconds for which entries of this master have waited without a commit.

        0 if no entry waits, or if the node is not the master.
        """
        master = self._master
        return 0.0 if master is None else master.stalled_us / 1e6

    @property
    def committed(self) -> LogPosition:
        """The commit point, as far as this node knows."""
        master, replica = self._master, self._replica
        if master is not None:
            return master.group.committed
        return replica.following.committed if replica is not None else LogPosition(0, 0)

    def replication(self) -> GroupStats:
        """Return the state of the group.

        Raises:
            NotMasterError: the node is not the master.
        """
        return self._require_master().stats()

    def _require_master(self) -> Master:
        self._check_open()
        master = self._master
        if master is None:
            replica = self._replica
            where = "its role is changing" if replica is None else replica.where()
            raise NotMasterError(f"{self.name} is no master: {where}")
        return master

    # ---- appending ------------------------------------------------------------------------------------------

    def append(
        self,
        value: ReadableBuffer,
        key: ReadableBuffer | None = None,
        *,
        event_time: Time | None = None,
        properties: Mapping[str, str | bytes] | None = None,
    ) -> int:
        """Append one entry, and return when enough replicas have it.

        Any thread may call it; a coroutine uses `submit`. Waits for replicas `NodeConfig.ack_timeout_ms` at most.

        Args:
            value: bytes-like, at most a segment long.
            key: bytes-like, at most 65,535 bytes; None: no key.
            event_time: time of the producer, a datetime with a time zone or microseconds since 1970-01-01 UTC.
            properties: str or bytes by name, at most 65,535 bytes encoded.

        Returns:
            The number of the entry.

        Raises:
            NotMasterError: the node is not the master. Nothing was appended.
            NotEnoughReplicasError: fewer replicas than `min_in_sync` are caught up. Nothing was appended.
            HigherTermError: a newer master exists. Nothing was appended.
            ReplicationTimeoutError: replicas did not answer in time. The outcome is unknown.
            DeposedError: a newer master took over meanwhile. The outcome is unknown.
            ReplogError: as `CommitLog.append`.
        """
        leader = self._master if self._error is None else None
        return (leader or self._require_master()).append(value, key, event_time, properties)

    def append_batch(
        self,
        values: Iterable[ReadableBuffer],
        keys: Iterable[ReadableBuffer | None] | None = None,
        event_times: Iterable[Time | None] | None = None,
    ) -> range:
        """Append several entries in one call, and return when enough replicas have all of them.

        Args:
            values: bytes-like values.
            keys: as many keys, each bytes-like or None; None: no keys.
            event_times: as many times, each as `event_time` of `submit` or None; None: no event times.

        Returns:
            The numbers of the entries.

        Raises:
            ReplogError: as `append`.
        """
        return self._require_master().append_batch(values, keys, event_times)

    def submit(
        self,
        value: ReadableBuffer,
        key: ReadableBuffer | None = None,
        *,
        event_time: Time | None = None,
        properties: Mapping[str, str | bytes] | None = None,
    ) -> AppendFuture[int]:
        """Append one entry without waiting for replicas.

        Any thread and any event loop may call it; the latter awaits `node.log.room()` before.

        Args:
            value: bytes-like, at most a segment long.
            key: bytes-like, at most 65,535 bytes; None: no key.
            event_time: time of the producer, a datetime with a time zone or microseconds since 1970-01-01 UTC.
            properties: str or bytes by name, at most 65,535 bytes encoded.

        Returns:
            An `AppendFuture`. It gives the number of the entry when enough replicas have it; if they do not, it raises
            the errors of `append` about replicas.

        Raises:
            WindowFullError: the entry has to wait for the disk, in an event loop. Nothing was appended.
            ReplogError: as `append`. Nothing was appended.
        """
        leader = self._master if self._error is None else None
        return (leader or self._require_master()).submit(value, key, event_time, properties)

    def submit_batch(
        self,
        values: Iterable[ReadableBuffer],
        keys: Iterable[ReadableBuffer | None] | None = None,
        event_times: Iterable[Time | None] | None = None,
    ) -> AppendFuture[range]:
        """Append several entries in one call without waiting for replicas.

        Args:
            values: bytes-like values.
            keys: as many keys, each bytes-like or None; None: no keys.
            event_times: as many times, each as `event_time` of `submit` or None; None: no event times.

        Returns:
            An `AppendFuture` that gives the numbers of the entries, a range.

        Raises:
            ReplogError: as `append`. Nothing was appended.
        """
        return self._require_master().submit_batch(values, keys, event_times)

    # ---- members --------------------------------------------------------------------------------------------

    def set_members(self, names: Iterable[str], sync_replicas: int, *, force: bool = False) -> None:
        """Begin a change of the members, and of the number of replicas that an append waits for.

        The change uses joint consensus (Raft, §6): until it is complete, the old and the new members must both agree.
        It is complete when `members.former` is None.

        Args:
            names: names of all members, the master included.
            sync_replicas: replicas that an append waits for.
            force: change at once, without the agreement of the old members. Members that cannot be asked may then
                elect a master that lacks acknowledged records.

        Raises:
            NotMasterError: the node is not the master.
            ChangeUnderWayError: another change is not complete.
            HigherTermError: a newer master exists.
            InvalidArgumentError: the master is not among `names`, or `sync_replicas` is too large.
        """
        wanted, count = as_names("names", names), as_int("sync_replicas", sync_replicas)
        self._require_master().change_members(wanted, count, force=check_bool("force", force))

    def add_member(self, name: str, *, force: bool = False) -> None:
        """Begin a change that adds one member.

        Args:
            name: name of the new member.
            force: as in `set_members`.

        Raises:
            ReplogError: as `set_members`.
        """
        check_text("name", name)
        quorum = self._require_master().group.members.quorum
        self.set_members({*quorum.names, name}, quorum.k, force=force)

    def remove_member(self, name: str, *, force: bool = False) -> None:
        """Begin a change that removes one member.

        Args:
            name: name of the member.
            force: as in `set_members`.

        Raises:
            InvalidArgumentError: `name` is not a member.
            ReplogError: as `set_members`.
        """
        check_text("name", name)
        members = self._require_master().group.members
        if name not in members.all_names:
            raise InvalidArgumentError(
                f"name: expected one of the members, found {name!r}; members are {', '.join(members.quorum.names)}"
            )
        names = set(members.quorum.names) - {name}
        self.set_members(names, min(members.quorum.k, len(names) - 1), force=force)

    def set_sync_replicas(self, count: int, *, force: bool = False) -> None:
        """Begin a change of the number of replicas that an append waits for.

        Args:
            count: replicas, besides the master.
            force: as in `set_members`.

        Raises:
            ReplogError: as `set_members`.
        """
        count = as_int("count", count)
        self.set_members(self._require_master().group.members.quorum.names, count, force=force)

    def learn_peers(self, addresses: Mapping[str, str]) -> None:
        """Add addresses of members, or replace those that are known.

        Args:
            addresses: "host:port" by name of the member.

        Raises:
            InvalidArgumentError: an address is malformed.
        """
        self._peers.learn(addresses)

    # ---- changing the role ----------------------------------------------------------------------------------

    def open_as_master(self, members: Iterable[str], sync_replicas: int, *, force: bool = False) -> None:
        """Open the log as master; `open_master` calls this.

        A log that may have lost records needs a new election. Blocks until the log is open.

        Args:
            members: names of the members, in a new group.
            sync_replicas: replicas that an append waits for, in a new group.
            force: become master even if acknowledged records may be missing.

        Raises:
            ReplicaError: the log is a replica.
            PromotionRefusedError: the election was lost.
            ReplogError: as `pyreplog.open`.
        """
        members, sync_replicas = as_names("members", members), as_int("sync_replicas", sync_replicas)
        check_bool("force", force)
        with self._changing:
            self._check_open()
            context, name = self._context, self.name
            if replicas.is_replica(context.path):
                raise ReplicaError(context.path)
            logs.resume_or_resign(context)
            log = self._log = logs.open_log(context)
            if not context.terms.history.starts:
                context.members.store(Members.first({name, *members}, sync_replicas))
                context.terms.begin(Term(1, name), start_of(log), lossless=self.config.lossless)
            elif not context.terms.terms.is_master:
                self._begin_term(self._elect(force=force))
            if context.terms.history.start_of(self.term) == end_of(log):  # a node without records cannot be elected
                logs.mark_term(log, self.term)
            self._begin_master(log, LogPosition(0, 0))

    def follow(self, master: str | None, *, unless: Callable[[], bool] = lambda: False) -> None:
        """Follow a master, and become a replica if this node is the master.

        The log joins that of the new master: entries that the new master does not have are cut, and kept in `aside/`.

        Args:
            master: "host:port"; None: wait until a master is known.
            unless: called when the role can no longer change; if it returns True, a master keeps its role.

        Raises:
            InvalidArgumentError: the address is malformed, or is that of this node.
        """
        address = None if master is None else parse_address(check_text("master", master))
        if address is not None and self._is_own(address):
            raise InvalidArgumentError(
                f"master: expected another node, found {master}: {self.name} cannot follow itself"
            )
        with self._changing:
            self._check_open()
            if (replica := self._replica) is None and not unless():
                mirror = self._log = self._resign()
                self._replica = Replica(self._context, mirror, address, self._on_log_created)
            elif replica is not None and address is not None:
                replica.follow(address)

    def _is_own(self, address: Address) -> bool:
        return address in (self._server.address, parse_address(self.address))

    def address_of(self, member: str) -> str | None:
        """Return the address of another member; None: unknown, or by mistake the address of this node."""
        address = self._peers.addresses.get(member)
        return None if address is None or self._is_own(parse_address(address)) else address

    def _resign(self) -> MirrorLog | None:
        """End the master's role, if any, and open the log as a mirror."""
        context, master = self._context, self._master
        if master is not None:
            try:
                master.close(NotMasterError(f"{self.name} is no master any more"))  # until then candidates can fence it
            finally:
                with context.lock:  # a vote in progress ends before this
                    self._master = None
        if context.terms.terms.is_master:
            context.terms.resign()
        return logs.open_mirror(context)

    def _on_log_created(self, log: MirrorLog) -> None:
        self._log = log

    def promote(self, *, force: bool = False) -> str:
        """Become master.

        A master that this node follows hands over: its appends wait until this node has the whole log. If this node is
        not elected then, the old master goes on. Blocks while the election runs.

        Args:
            force: become master without the votes that rule out a loss.

        Returns:
            What may have been lost: "" without `force`, else a sentence.

        Raises:
            PromotionRefusedError: too few members answered, or one of them has more of the log.
            HigherTermError: another node has been promised a higher term.
            NotMasterError: the node has no log.
        """
        check_bool("force", force)
        with self._changing:
            replica = self._promotable_replica()
            if replica is None:
                return ""
            master = "" if force else replica.leader
            where = replica.master
            if master and where is not None and master not in self._peers.addresses:
                self._peers.learn({master: address_text(where)})
            for tries_left in range(_CHANGE_OVERS - 1, -1, -1):
                term = self.term
                try:
                    return self._be_elected(replica, force=force, master=master)
                except PromotionRefusedError:
                    if not tries_left or not self._is_worth_another_try(replica, master, term):
                        raise
            raise AssertionError("the last try returns or raises")

    follow_async = in_thread(follow)
    promote_async = in_thread(promote)

    def promote_after(self, lost: Term) -> str:
        """Become master after a candidate that members may have promised its term was not elected.

        If this node is the master, it steps down first, because these members do not follow it any more.

        Args:
            lost: term of the candidate.

        Returns:
            "": nothing was lost.

        Raises:
            InvalidArgumentError: no group is at this term.
            ReplogError: as `promote`.
        """
        if lost.is_absurd(self.term):
            raise InvalidArgumentError(f"lost: no group is at term {lost} when {self.term} was promised last")
        self._note_term(lost)
        master = self._master
        if master is not None:
            master.fence(lost)
        return self.promote()

    def _note_term(self, term: Term) -> None:
        """Let later elections of this node be for higher terms than this one."""
        with self._context.lock:
            self._highest_term = max(self._highest_term, term)

    def _is_worth_another_try(self, replica: Replica, master: str, term: Term) -> bool:
        """Return whether to repeat a planned change-over, after the old master leads again.

        A change-over can fail after all members promised, if an append in flight reached the log; then the old master
        is elected again. Waits for that.
        """
        if not master or self.term == term or replica is not self._replica or self._error is not None:
            return False
        return self._context.reactor.drive(lambda: replica.leader == master, _RESTORED_S)

    def take_over(self, master: str, timeout: float) -> None:
        """Become master if `master` is lost. Members that hear from it, and `master` itself, reject the candidacy.

        Args:
            master: name of the master.
            timeout: seconds for which the election waits for the answer of `master`.

        Raises:
            ReplogError: as `promote`.
        """
        with self._changing:
            replica = self._promotable_replica()
            if replica is not None:
                self._be_elected(replica, master=master, if_lost=True, patience_s=timeout)

    def _promotable_replica(self) -> Replica | None:
        """Return the replica to be promoted; None: the node is master. Raises the errors of `promote`."""
        self._check_open()
        master = self._master
        if master is not None and (fenced := master.group.fenced) is not None:
            self.follow(self.address_of(fenced.master))  # as `_rejoin` would do soon
        replica = self._replica
        if replica is None:
            self._require_master()
        elif replica.log is None:
            raise NotMasterError(
                f"{self.name} has no log yet and cannot be promoted: promote a node that has followed the master"
            )
        return replica

    def _be_elected(self, replica: Replica, *, master: str, if_lost: bool = False, **how: Any) -> str:
        won, log = self._elect(master=master, if_lost=if_lost, **how), replica.log
        assert log is not None, "_promotable_replica has checked it"
        try:
            self._change_over(replica, log, won)
        except BaseException:
            self._become_replica_again()
            if master and not if_lost:
                ask_to_stand(self._context, self._peers, master, won.term)
            raise
        return won.possible_loss

    def _elect(
        self, *, force: bool = False, master: str = "", if_lost: bool = False, patience_s: float = PATIENCE_S
    ) -> ElectionWon:
        """Run an election of this node, which has a log. Blocks. Arguments as of `Election`; errors as of `promote`."""
        context, log = self._context, self._log
        assert log is not None, "a node without a log is no candidate"
        election = Election(
            self.name, log.uuid, context.terms.terms, context.members.members, ack=context.config.group.ack,
            above=self._highest_term, force=force, master=master, if_lost=if_lost,
        )  # fmt: skip
        candidacy = self._candidacy = ElectionRunner(
            context, self._peers, election, partial(end_of, log), partial(self._promise_own_term, log), patience_s
        )
        reason = f"{master} seems to be lost" if if_lost else f"{master or 'no node'} is to hand over"
        logger.info("%s stands for election, term %s: %s", self.name, election.term, "by force" if force else reason)
        try:
            won = candidacy.run()
        except ReplogError as error:
            if isinstance(error, HigherTermError):
                self._note_term(Term(*error.term))
            # automatic failover tries again and again, also if only this node has lost the master
            level = logging.INFO if if_lost else logging.WARNING
            logger.log(level, "%s is not elected, term %s: %s", self.name, election.term, error)
            raise
        finally:
            with context.lock:
                self._candidacy = None
        if won.possible_loss:
            logger.error("%s is master of term %s by force: %s", self.name, won.term, won.possible_loss)
        return won

    def _promise_own_term(self, log: CommitLog, term: Term) -> LogPosition:
        """Promise this node its own term, and sync the log; called under the lock."""
        terms = self._context.terms
        if self._replica is not None:
            self._replica.promised(Terms(term, terms.history))
        terms.promise(term)
        log.sync()
        return end_of(log)

    def _change_over(self, replica: Replica, log: MirrorLog, won: ElectionWon) -> None:
        with self._context.lock:  # as in _resign; no vote is given until the node is master
            self._replica = None
        replica.leave()
        self._begin_term(won)
        log.promote()
        opened = self._log = logs.open_log(self._context)
        logs.mark_term(opened, won.term)
        self._begin_master(opened, min(replica.following.committed, won.start))

    def _begin_term(self, won: ElectionWon) -> None:
        self._context.members.store(won.members)
        self._context.terms.begin(won.term, won.start, lossless=self.config.lossless)

    def _become_replica_again(self) -> None:
        """Become a replica again, because the node could not become master."""
        log, self._replica = self._log, None
        try:
            if log is not None:
                log.close()
        finally:
            self.follow(None)

    def _begin_master(self, log: CommitLog, committed: LogPosition) -> None:
        self._master = Master(self._context, log, committed=committed, ask=self._peers.ask, on_fenced=self._on_fenced)
        logger.info("%s is master of term %s, from entry %d on", self.name, self.term, log.tail.end_entry)

    def _on_fenced(self, term: Term) -> None:
        """Note a higher term. Another thread makes this node a replica once no other change of role runs."""
        logger.warning("%s steps down: term %s was promised to %s", self.name, term, term.master)
        self._note_term(term)  # this node may not have promised it, and may be asked to stand if that candidate loses
        threading.Thread(target=self._rejoin, args=(term,), name="pyreplog-rejoin", daemon=True).start()

    def _rejoin(self, term: Term) -> None:
        try:
            with self._changing:
                master = self._master
                if self._error is None and master is not None and master.group.fenced is not None:
                    self.follow(self.address_of(term.master))
        except (ReplogError, OSError):
            logger.exception("%s cannot become a replica", self.name)

    # ---- requests of peers ----------------------------------------------------------------------------------

    @property
    def streams(self) -> Streams | None:
        """The object that serves connected replicas in the present role; None: the role is changing."""
        return self._master if self._master is not None else self._replica

    @property
    def appends(self) -> Appends | None:
        """The master, which takes batches of clients; None: this node is not the master."""
        return self._master if self._error is None else None

    def master_address(self) -> str:
        """Return the address of the master; "": unknown, or this node is the master."""
        master, replica = self._master, self._replica
        if master is not None and (fenced := master.group.fenced) is not None:
            return self.address_of(fenced.master) or ""
        if replica is None or replica.following.observer:
            return ""
        address = replica.master
        return "" if address is None else address_text(address)

    def vote(self, prepare: Prepare) -> Message:
        """Answer a candidate; what the answer promises is durable before this returns.

        Args:
            prepare: the request of the candidate.

        Raises:
            ReplicationError: not now. A node whose log is not open does not know what it holds, and a node that is
                becoming master cannot be fenced.
        """
        context, master = self._context, self._master
        with context.lock:
            rejection = self._rejection_of(prepare)
        if rejection is not None:
            return rejection
        if master is not None:
            _prepare_master(master, prepare)  # it fails waiting appends, which must not happen under the lock
        with context.lock:
            if self._master is not master:
                raise self._role_changing_error()
            rejection = self._rejection_of(prepare)
            if rejection is not None:
                return rejection
            if not prepare.trial:
                self._promise(prepare.term)
                self._follow_candidate(prepare.term.master)
            received, synced = (self._canonical(mark) for mark in self.log_ends())
            history = context.terms.history.up_to(received)
            return Promise(prepare.term, history, received, synced, self.members, bool(prepare.trial))

    def _role_changing_error(self) -> ReplicationError:
        return ReplicationError(f"{self.name} is opening its log, or changes its role: ask again")

    def _rejection_of(self, prepare: Prepare) -> VoteRejected | None:
        if self.role == "candidate" and self._candidacy is None:
            raise self._role_changing_error()
        uuid = NO_UUID if self._log is None else self._log.uuid
        rejection = refuse_candidate(prepare, uuid, self._context.terms.terms, self.members, self._live_master())
        if rejection is not None and not prepare.trial:
            logger.info("%s: no promise for term %s: %s", self.name, prepare.term, rejection.text)
        return rejection

    def _live_master(self) -> str:
        """Return the name of the master that this node is, or hears from; "": none."""
        master, replica = self._master, self._replica
        if master is not None:
            return self.name if master.group.fenced is None else ""
        return replica.leader if replica is not None and replica.silent_us < MASTER_ALIVE_US else ""

    def _promise(self, term: Term) -> None:
        """Promise a term. Even before the promise is durable, records of lower terms are refused."""
        terms = self._context.terms
        if self._replica is not None:
            self._replica.promised(Terms(term, terms.history))
        candidacy = self._candidacy
        if candidacy is not None:
            candidacy.step(lambda: candidacy.election.note_higher_term(term))
        terms.promise(term)
        logger.info("%s: promised term %s: lower terms are fenced", self.name, term)

    def _follow_candidate(self, master: str) -> None:
        """Connect to the candidate, if its address is known: masters of lower terms are not followed any more."""
        address = self.address_of(master)
        if self._replica is not None and address is not None and not self.config.observer:
            self._replica.follow(parse_address(address))

    def _canonical(self, mark: LogPosition) -> LogPosition:
        """Return a position in the form in which the candidate gives the end of its own log."""
        return mark if self._log is None else LogPosition(*canonical(mark, self._log.segment_bytes))

    def log_ends(self) -> tuple[LogPosition, LogPosition]:
        """Return the ends of the log in any role: of the received records, and of those known to be on the disk."""
        log = self._log
        if log is None:
            return ORIGIN, ORIGIN
        return ends_of_replica(log) if isinstance(log, MirrorLog) else ends_of(log)

    def stats(self) -> dict[str, Any]:
        """Describe the node as a dict that JSON can encode.

        Returns:
            name, role, address, term, log (its uuid), start; received, synced, committed (entry number and position);
                unreplicated; members. Of a master also its replicas and counters, of a replica its master and the
                reason why it does not stream.

        Raises:
            ClosedError: the node was closed.
        """
        self._check_open()
        return self._describe()

    def _describe(self) -> dict[str, Any]:
        received, synced = self.log_ends()
        log, members, replica, leading = self._log, self.members, self._replica, self._master
        stats: dict[str, Any] = {
            "name": self.name,
            "role": self.role,
            "address": self.address,
            "log": None if log is None else log.uuid.hex(),
            "term": str(self.term),
            "start": 0 if log is None else log.start,
            "received": received._asdict(),
            "synced": synced._asdict(),
            "committed": self.committed._asdict(),
            "unreplicated": log is not None and log.unreplicated,
            "members": None if members is None else describe_members(members),
        }
        if replica is not None:
            master = replica.master
            stats["master"] = None if master is None else address_text(master)
            stats["streaming"] = replica.is_streaming
            stats["trouble"] = replica.trouble
        if leading is not None:
            stats |= describe_group(leading.stats())
        return stats

    def status(self) -> StatusReply:
        """Return the reply to a request for the node's state: `stats()` as JSON, also of a node that is closed."""
        return StatusReply(json.dumps(self._describe()).encode())

    def command(self, connection: ServerConnection, number: int, command: Command) -> None:
        """Execute a command of a client in another thread, because it may take long.

        Args:
            connection: connection of the client.
            number: number of the request, to be answered.
            command: what the node is to do.
        """
        self._commands.take(connection, number, command)

    def connection_lost(self, connection: Connection) -> None:
        """Forget the requests of a client whose connection has ended.

        Args:
            connection: the connection that has ended.
        """
        self._commands.leave(connection)
        self.clients.leave(connection)

    # ---- closing --------------------------------------------------------------------------------------------

    def end_candidacy(self) -> None:
        """Give up a running election of this node; its caller gets PromotionRefusedError."""
        with self._context.lock:
            candidacy = self._candidacy
        if candidacy is not None:
            candidacy.step(lambda: candidacy.election.abandon(f"{self.name} ends"))

    def _do_close(self) -> None:
        self.end_candidacy()  # an election holds `_changing`; a closed node begins no other one
        with self._changing:
            self._peers.close()
            self._server.close()
            self._commands.close()
            self.clients.close()
            master, replica = self._master, self._replica
            try:
                if replica is not None:
                    replica.close()
                if master is not None:
                    master.close()
                elif replica is None and self._log is not None:
                    self._log.close()
            finally:
                self._context.reactor.close()


def _prepare_master(master: Master, prepare: Prepare) -> None:
    """Apply a PREPARE to the master: fence it, or hold appends back for the candidate, or admit them again."""
    if not prepare.trial:
        master.fence(prepare.term)
    elif prepare.trial == PreVote.HOLD:
        master.hold(prepare.term.master)
    else:
        master.release(prepare.term.master)
