"""Automatic failover among the nodes of a group that share a metadata store.

The node that holds the lease of the key `master` is to be master, and writes its address there; the others follow it.
The lease only says which node tries: the election decides, and terms keep a former master from acknowledging
anything. So a lease that two believe in, a paused process or a clock that jumps lose nothing.

That is why nobody waits for a lease to end. A replica whose master is silent, or whose connection is lost, asks the
others; if none of them hears from the master either, and enough promise, it is elected. The winner takes the
key from its holder, by compare and set; a master that finds its key taken follows the one that took it.
"""

from __future__ import annotations

import json
import logging
import random as _random
import threading
from collections.abc import Callable
from contextlib import suppress
from time import monotonic
from typing import TYPE_CHECKING

from pyreplog.arguments import as_int
from pyreplog.errors import (
    InvalidArgumentError,
    KeyExistsError,
    LeaseLostError,
    NoSuchKeyError,
    ReplogError,
    VersionConflictError,
)
from pyreplog.handles import Handle
from pyreplog.metadata.lease import Lease
from pyreplog.metadata.store import MetadataStore, Versioned
from pyreplog.metadata.watching import Watch
from pyreplog.net.sockets import weak_callback

if TYPE_CHECKING:
    from pyreplog.ha.node import Node

logger = logging.getLogger(__name__)

LEASE_MS = 6_000
_CHECK_S = 1.0

_SILENCE, _SILENCE_LEAST_S = 1 / 5, 0.8
"""A master that is connected is missed after such a part of a lease, and a few of its beats."""

_PATIENCE = 1 / 10
"""One that is missed, and may be stopped, has such a part of a lease to say that it lives."""

_END_S = 0.1
"""Between looks whether an election was begun behind the end."""

_SPREAD = 1 / 16
"""Candidates begin within such a part of a lease, so that not all try at once."""

_RESTS_MOST = 8
"""A candidate that is refused, for others hear from the master, doubles its pause at each try, up to this factor."""


class Failover(Handle):
    """Keep one node in its role: it follows the node that holds the lease, and stands for election when none does.

    Close it, or use `with`, before the node and the store. Any thread may call it. Guide: docs/ha.md, "By itself".

    Args:
        node: the node that this keeps.
        store: shared by all nodes of the group (`pyreplog.metadata.open_store`); the caller closes it, after this.
        group: the group's name in the store.
        lease_ms: milliseconds; after about that long without its master a group looks for another one.
        random: gives a number from 0 to 1, so that not all nodes stand for election at once.

    Raises:
        ClosedError: the store was closed.
    """

    def __init__(
        self,
        node: Node,
        store: MetadataStore,
        group: str,
        *,
        lease_ms: int = LEASE_MS,
        random: Callable[[], float] = _random.random,
    ) -> None:
        self._node, self._store, self._root = node, store, f"/ha/{group}"
        self._lease_s, self._random = as_int("lease_ms", lease_ms) / 1000, random
        self._wake = threading.Event()
        self._stopped = threading.Event()
        self._lease: Lease | None = None
        self._registered: Lease | None = None
        self._shown: tuple[str, str] | None = None
        self._was_replica = node.role != "master"  # it may be elected before the first look at it
        self._missed_at: float | None = None  # since when the master is missed
        self._tries = 0
        self._begins_s = 0.0  # so long after that this node is a candidate
        self._taken_s = 0.0  # when it got the lease
        self._waits_until = 0.0  # for one that has removed the key
        self._yields_until = 0.0  # to others, for it could commit nothing
        self._held_by = ""  # the lease, when it was held last
        self.looks = 0
        """How many looks at the store have ended, failed ones included. For tests and for operators."""
        self._term, self._promised_s = node.term, 0.0  # the last that it promised, and when that was noticed
        super().__init__(f"failover of {node.name}")
        self._watches: list[Watch] = [
            store.watch(f"{self._root}/master", lambda _: self._wake.set()),
            store.watch(f"{self._root}/nodes", weak_callback(self._moved)),
        ]
        self._thread = threading.Thread(target=self._run, name="pyreplog-failover", daemon=True)
        self._thread.start()

    def look_soon(self) -> None:
        """Read the store at once, in place of within a second."""
        self._wake.set()

    # ---- one look -------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stopped.is_set():
            try:
                self._look()
            except (ReplogError, OSError) as error:
                logger.warning("%s: %s", self._label, error)
            self.looks += 1
            next_s = monotonic() + _CHECK_S
            while (left_s := next_s - monotonic()) > 0 and not self._is_to_challenge():
                if self._wake.wait(min(left_s, self._lease_s * _SPREAD / 4)):
                    break
            self._wake.clear()

    def _look(self) -> None:
        self._register()
        self._learn()
        if self._node.term != self._term:
            self._term, self._promised_s = self._node.term, monotonic()
        held = self._held()
        holder = None if held is None else self._parse(held)
        self._held_by = self._held_by if holder is None else holder[0]
        if self._is_promoted() and held is not None and self._lease is None:
            self._claim(held)
        elif holder is None:
            self._stand()
        elif holder[0] == self._node.name:
            self._keep()
        else:
            self._follow(holder)
        if self._node.role == "replica":
            self._was_replica = True
        elif self._lease is not None:
            self._was_replica = False

    def _follow(self, holder: tuple[str, str]) -> None:
        """Somebody else is master, unless it is lost, or this node is being promoted."""
        if self._lease is not None:
            logger.warning("%s: %s has taken the lease", self._label, holder[0])
            self._give_up_lease()
        if self._shown != holder or self._node.role != "replica":
            # It may be about to be master, by command: whether it is shows when its role does not change any more.
            self._node.follow(holder[1], unless=self._is_promoted)
            self._shown, self._was_replica = holder, True  # also if it is elected before this look ends
        if self._is_to_challenge():
            self._challenge(holder[0])

    def _is_promoted(self) -> bool:
        """Return whether the node was elected since it was a replica. That deposes the node that holds the lease."""
        return self._node.is_leading and self._was_replica

    # ---- a master that is lost ------------------------------------------------------------------------------

    def _is_to_challenge(self) -> bool:
        """Whether the master that holds the lease has been missed for so long that this node is a candidate."""
        node, now_s = self._node, monotonic()
        silence_s = max(self._lease_s * _SILENCE, _SILENCE_LEAST_S)
        if self._shown is None or node.role != "replica" or node.hears_master(silence_s):
            self._missed_at = None
            return False
        if self._missed_at is None:
            self._missed_at, self._begins_s = now_s, self._random() * self._lease_s * _SPREAD
            self._tries = 0
            logger.warning("%s: the master, %s, is missed", self._label, self._shown[0])
        return now_s >= self._missed_at + self._begins_s

    def _challenge(self, holder: str) -> None:
        """Be elected in its place, if nobody else hears from it."""
        rest_s = (1 + self._random()) * self._lease_s * _SPREAD * min(1 << self._tries, _RESTS_MOST)
        self._tries, self._begins_s = self._tries + 1, monotonic() + rest_s - (self._missed_at or 0.0)
        if not self._node.is_eligible or self._has_promised_another():
            return
        try:
            self._node.take_over(holder, self._lease_s * _PATIENCE)
        except (ReplogError, OSError) as error:
            logger.debug("%s: not elected in the place of %s: %s", self._label, holder, error)
        self._wake.set()

    def _claim(self, held: Versioned) -> None:
        """Take the lease: this node was elected. The node that held it cannot acknowledge anything any more."""
        logger.info("%s: takes the lease from %s", self._label, self._held_by or "nobody")
        with suppress(VersionConflictError, NoSuchKeyError):
            self._store.delete(f"{self._root}/master", held.version)
        if not self._take_lease():  # another one was faster: it may be of a higher term
            self._was_replica = False

    def _moved(self, _: str) -> None:
        """Nodes came or went: an election that runs meanwhile asks them where they are now."""
        try:
            self._learn()
        except ReplogError as error:
            logger.info("%s: %s", self._label, error)  # the next look does
        self._wake.set()

    def _register(self) -> None:
        """Others find this node here; elections ask it."""
        if self._registered is not None:
            return
        key = f"{self._root}/nodes/{self._node.name}"
        stored = self._store.get(key)
        if stored is not None:  # of an earlier life, which ended without a word
            with suppress(VersionConflictError, NoSuchKeyError):
                self._store.delete(key, stored.version)
        lease = self._registered = self._store.lease(self._lease_s, self._unregistered)
        try:
            lease.create(key, self._node.address.encode())  # noted before: the lease may be lost as soon as this ends
        except BaseException:
            self._registered = None
            lease.close()
            raise

    def _unregistered(self) -> None:
        """The lease of the address was lost: the next look makes another one."""
        lease, self._registered = self._registered, None
        self._wake.set()
        if lease is not None:
            lease.close()

    def _learn(self) -> None:
        for name in self._store.list(f"{self._root}/nodes"):
            registered = self._store.get(f"{self._root}/nodes/{name}")
            if registered is None or name == self._node.name:
                continue
            try:
                self._node.learn_peers({name: registered.value.decode("utf-8", "replace")})
            except InvalidArgumentError as error:
                logger.error("%s/nodes/%s: %s", self._root, name, error)

    def _held(self) -> Versioned | None:
        return self._store.get(f"{self._root}/master")

    def _parse(self, held: Versioned) -> tuple[str, str] | None:
        """Return (name, address) of the node that holds the lease; None: the value is malformed."""
        try:
            name, address, *_ = json.loads(held.value)  # a newer version may say more
        except (ValueError, TypeError):
            logger.error("%s/master: expected a name and an address, found %r", self._root, held.value[:80])
            return None
        return str(name), str(address)

    # ---- being master ---------------------------------------------------------------------------------------

    def _stand(self) -> None:
        """Nobody is master: wait a moment, take the lease, be elected; or give it to another."""
        self._shown = None
        if self._lease is not None:  # somebody was elected, has removed the key, and is about to make its own
            self._give_up_lease()
            self._waits_until = monotonic() + self._lease_s / 4
        if not self._node.is_eligible or self._has_promised_another() or self._yields():
            return
        if self._node.role != "master" and self._stopped.wait(self._random() * self._lease_s * _SPREAD):
            return
        if self._node.term != self._term:  # it has promised another meanwhile, or follows one
            self._wake.set()
            return
        if not self._take_lease():
            return
        try:
            if self._node.role != "master":
                self._node.promote()
        except (ReplogError, OSError) as error:
            logger.warning("%s: not elected: %s", self._label, error)
            self._give_up_lease()

    def _take_lease(self) -> bool:
        """Whether it was free."""
        lease = self._store.lease(self._lease_s, self._lost)
        try:
            lease.create(f"{self._root}/master", json.dumps([self._node.name, self._node.address]).encode())
        except (KeyExistsError, LeaseLostError):
            lease.close()
            return False
        except BaseException:  # whether it was made is unknown: it must not stay
            lease.close()
            raise
        self._lease, self._taken_s = lease, monotonic()
        return True

    def _yields(self) -> bool:
        """Whether another one may try first: it has removed the key, or as master this node could commit nothing, and
        still cannot."""
        if monotonic() < self._waits_until:
            return True
        return monotonic() < self._yields_until and (self._node.role != "master" or self._node.stalled_s > 0)

    def _has_promised_another(self) -> bool:
        """Just now, one that did not have the lease: it is about to be master, by command, and takes the lease then; if
        not, it has had its time."""
        is_known = self._term.master in (self._node.name, self._held_by)
        return not is_known and monotonic() < self._promised_s + self._lease_s

    def _keep(self) -> None:
        """It is this node's turn; a lease of an earlier life ends by itself."""
        if self._lease is not None and (self._node.role != "master" or not self._node.is_eligible):
            logger.warning("%s: deposed, or its disk failed, while it held the lease", self._label)
            self._give_up_lease()
        elif self._lease is not None and min(self._node.stalled_s, monotonic() - self._taken_s) >= self._lease_s:
            logger.warning(
                "%s: gives the lease up: nothing was committed for %.1f s", self._label, self._node.stalled_s
            )
            self._yields_until = monotonic() + 2 * self._lease_s
            self._give_up_lease()

    def _lost(self) -> None:
        """Another node may be elected now: this node waits until one is."""
        lease, self._lease = self._lease, None
        self._wake.set()
        try:
            if self._node.role == "master" and not self._stopped.is_set():
                logger.warning("%s: the lease is lost", self._label)
                self._node.follow(None)
                self._was_replica = True
        finally:
            if lease is not None:
                lease.close()

    def _give_up_lease(self) -> None:
        lease, self._lease = self._lease, None
        if lease is not None:
            lease.close()

    # ---- the end --------------------------------------------------------------------------------------------

    def _do_close(self) -> None:
        """The node stays as it is."""
        self._stopped.set()
        self._wake.set()
        while self._thread.is_alive():
            self._node.end_candidacy()
            self._thread.join(_END_S)
        for watch in self._watches:
            watch.close()
        self._give_up_lease()
        if self._registered is not None:
            self._registered.close()
