"""Automatic failover among the nodes of a group that share a metadata store.

Who holds the lease of the key `master` is to be master, and says there where it is reached; the others follow it. The
lease only says whose turn it is: an election decides who may, and terms keep a former master from acknowledging
anything. So a lease that two believe in, a paused process or a clock that jumps lose nothing.
"""

from __future__ import annotations

import json
import logging
import random as _random
import threading
from collections.abc import Callable
from time import monotonic
from typing import TYPE_CHECKING

from pyreplog.errors import InvalidArgumentError, KeyExistsError, LeaseLostError, ReplogError
from pyreplog.handles import Handle
from pyreplog.metadata.lease import Lease
from pyreplog.metadata.store import MetadataStore
from pyreplog.metadata.watching import Watch
from pyreplog.net.sockets import weakly

if TYPE_CHECKING:
    from pyreplog.ha.node import Node

logger = logging.getLogger(__name__)

LEASE_S = 6.0
_LOOK_S = 1.0


class Failover(Handle):
    """Keeps one node in its role: it follows whoever holds the lease, and tries to be master when nobody does.

    store: shared by all nodes of the group, closed by the caller behind this. group: its name there. lease_s: after
    about that long without its master a group looks for another. random: a number from 0 to 1, so that not all try at
    once.
    """

    def __init__(
        self,
        node: Node,
        store: MetadataStore,
        group: str,
        *,
        lease_s: float = LEASE_S,
        random: Callable[[], float] = _random.random,
    ) -> None:
        self._node, self._store, self._root = node, store, f"/ha/{group}"
        self._lease_s, self._random = lease_s, random
        self._wake = threading.Event()
        self._stopped = threading.Event()
        self._lease: Lease | None = None
        self._registered: Lease | None = None
        self._shown: tuple[str, str] | None = None
        self._was_replica = False
        self._awaits_until = 0.0  # the lease of another, while this node is master
        self._held_by = ""  # the lease, when it was held last
        self._term, self._promised_s = node.term, 0.0  # the last that it promised, and when that was noticed
        super().__init__(f"failover of {node.name}")
        self._watches: list[Watch] = [
            store.watch(f"{self._root}/master", lambda _: self._wake.set()),
            store.watch(f"{self._root}/nodes", weakly(self._moved)),
        ]
        self._thread = threading.Thread(target=self._run, name="pyreplog-failover", daemon=True)
        self._thread.start()

    # ---- one look -------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stopped.is_set():
            try:
                self._look()
            except (ReplogError, OSError) as error:
                logger.warning("%s: %s", self._what, error)
            self._wake.wait(_LOOK_S)
            self._wake.clear()

    def _look(self) -> None:
        self._register()
        self._learn()
        if self._node.term != self._term:
            self._term, self._promised_s = self._node.term, monotonic()
        holder = self._holder()
        self._held_by = self._held_by if holder is None else holder[0]
        if holder is None:
            self._stand()
        elif holder[0] == self._node.name:
            self._keep()
        elif not self._is_promoted():
            self._give_up_lease()
            if self._shown != holder or self._node.role != "replica":
                # It may be about to be master, by command: whether it is shows when its role does not change any more.
                self._node.follow(holder[1], unless=self._is_promoted)
                self._shown = holder
        if self._node.role != "candidate":
            self._was_replica = self._node.role == "replica"

    def _is_promoted(self) -> bool:
        """Whether this node was elected by command: whoever holds the lease is deposed by that, and gives it up. For as
        long as a lease lasts that is waited for."""
        if self._node.role == "master" and self._was_replica:
            self._awaits_until = monotonic() + self._lease_s
        return self._node.role == "master" and monotonic() < self._awaits_until

    def _moved(self, _: str) -> None:
        """Nodes came or went: an election that runs meanwhile asks them where they are now."""
        try:
            self._learn()
        except ReplogError as error:
            logger.info("%s: %s", self._what, error)  # the next look does
        self._wake.set()

    def _register(self) -> None:
        """Others find this node here; elections ask it."""
        if self._registered is not None:
            return
        lease = self._store.lease(self._lease_s, self._unregistered)
        try:
            lease.create(f"{self._root}/nodes/{self._node.name}", self._node.address.encode())
        except BaseException:  # that of an earlier life goes with its lease
            lease.close()
            raise
        self._registered = lease

    def _unregistered(self) -> None:
        self._registered = None
        self._wake.set()

    def _learn(self) -> None:
        for name in self._store.list(f"{self._root}/nodes"):
            there = self._store.get(f"{self._root}/nodes/{name}")
            if there is None or name == self._node.name:
                continue
            try:
                self._node.learn_peers({name: there.value.decode("utf-8", "replace")})
            except InvalidArgumentError as error:
                logger.error("%s/nodes/%s: %s", self._root, name, error)

    def _holder(self) -> tuple[str, str] | None:
        """(name, address) of who holds the lease."""
        there = self._store.get(f"{self._root}/master")
        if there is None:
            return None
        try:
            name, address = json.loads(there.value)
        except (ValueError, TypeError):
            logger.error("%s/master: expected a name and an address, found %r", self._root, there.value[:80])
            return None
        return str(name), str(address)

    # ---- being master ---------------------------------------------------------------------------------------

    def _stand(self) -> None:
        """Nobody is master: wait a moment, take the lease, be elected; or give it to another."""
        self._shown = None
        if not self._node.is_eligible or self._has_promised_another():
            return
        if self._node.role != "master" and self._stopped.wait(self._random() * self._lease_s / 4):
            return
        if self._node.term != self._term:  # it has promised another meanwhile, or follows one
            self._wake.set()
            return
        lease = self._store.lease(self._lease_s, self._lost)
        try:
            lease.create(f"{self._root}/master", json.dumps([self._node.name, self._node.address]).encode())
        except (KeyExistsError, LeaseLostError):
            lease.close()
            return
        except BaseException:  # whether it was made is unknown: it must not stay
            lease.close()
            raise
        self._lease = lease
        try:
            if self._node.role != "master":
                self._node.promote()
        except (ReplogError, OSError) as error:
            logger.warning("%s: not elected: %s", self._what, error)
            self._give_up_lease()

    def _has_promised_another(self) -> bool:
        """Just now, one that did not have the lease: it is about to be master, by command, and takes the lease then; if
        not, it has had its time."""
        is_known = self._term.master in (self._node.name, self._held_by)
        return not is_known and monotonic() < self._promised_s + self._lease_s

    def _keep(self) -> None:
        """It is this node's turn; a lease of an earlier life ends by itself."""
        if self._lease is not None and (self._node.role != "master" or not self._node.is_eligible):
            logger.warning("%s: deposed, or its disk failed, while it held the lease", self._what)
            self._give_up_lease()

    def _lost(self) -> None:
        """Somebody else may be elected now: this node waits for whoever is."""
        self._lease = None
        self._wake.set()
        if self._node.role == "master" and not self._stopped.is_set():
            logger.warning("%s: the lease is lost", self._what)
            self._node.follow(None)

    def _give_up_lease(self) -> None:
        lease, self._lease = self._lease, None
        if lease is not None:
            lease.close()

    # ---- the end --------------------------------------------------------------------------------------------

    def _let_go(self) -> None:
        """The node stays as it is."""
        self._stopped.set()
        self._wake.set()
        self._thread.join()
        for watch in self._watches:
            watch.close()
        self._give_up_lease()
        if self._registered is not None:
            self._registered.close()
