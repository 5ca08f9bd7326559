"""Automatic failover among the nodes of a group that share a metadata store.

The node that holds the lease of the key `master` should be master; the key contains its address, and the other nodes
follow it. The lease only says which node stands for election. The election decides, and terms keep a former master from
acknowledging appends. So no entry is lost if two nodes believe in the lease, a process is paused, or a clock jumps.

Therefore no node waits until the lease expires. A replica that does not hear from its master, or whose connection is
lost, asks the other members. If none of them hears from the master either, and enough promise, the replica is elected.
The winner takes the key from its holder by compare and set; a master that finds its key taken follows the new holder.
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

_SILENCE_PART, _SILENCE_MIN_S = 1 / 5, 0.8
"""A connected master that is silent for this part of a lease, but at least for several heartbeats, counts as silent."""

_PATIENCE_PART = 1 / 10
"""Part of a lease within which a silent master, which may be paused, can still answer a candidate."""

_CLOSE_RETRY_S = 0.1
"""Seconds between attempts of `close` to end an election that the thread may have begun meanwhile."""

_SPREAD_PART = 1 / 16
"""Part of a lease within which candidates begin at random, so that they do not all stand at once."""

_BACKOFF_FACTOR_MAX = 8
"""A candidate that is rejected doubles its pause at each attempt, up to this factor."""


class Failover(Handle):
    """Keeps one node in its role: it follows the holder of the lease, and stands for election if there is none.

    Close it, or use `with`, before the node and the store. Thread-safe. Guide: docs/ha.md, "Automatic failover".

    Args:
        node: the node.
        store: shared by all nodes of the group (`pyreplog.metadata.open_store`); the caller closes it, after this.
        group: the group's name in the store.
        lease_ms: milliseconds; about the time after which a group without master elects another one.
        random: returns a number from 0 to 1, so that nodes stand for election at different times.

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
        self._followed: tuple[str, str] | None = None
        self._was_replica = node.role != "master"  # it may be elected before the first look
        self._silent_since_s: float | None = None  # since when the node does not hear from the master
        self._tries = 0
        self._challenge_after_s = 0.0  # seconds from then until the next challenge
        self._lease_taken_s = 0.0  # when it got the lease
        self._await_winner_until = 0.0  # for the elected node that has removed the key, to take the lease
        self._back_off_until = 0.0  # for other candidates, because this node as master committed nothing
        self._last_holder = ""  # name of the last node that was seen with the lease
        self.checks = 0
        """Number of completed checks of the store, with or without an error. For tests and operators."""
        self._term, self._term_changed_s = node.term, 0.0  # its last term, and when the change to it was noticed
        super().__init__(f"failover of {node.name}")
        self._watches: list[Watch] = [
            store.watch(f"{self._root}/master", lambda _: self._wake.set()),
            store.watch(f"{self._root}/nodes", weak_callback(self._on_nodes_changed)),
        ]
        self._thread = threading.Thread(target=self._run, name="pyreplog-failover", daemon=True)
        self._thread.start()

    def check_soon(self) -> None:
        """Read the store at once, instead of within a second."""
        self._wake.set()

    # ---- the loop -------------------------------------------------------------------------------------------
    # ---- one check -------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stopped.is_set():
            try:
                self._reconcile()
            except (ReplogError, OSError) as error:
                logger.warning("%s: %s", self._label, error)
            self.checks += 1
            next_s = monotonic() + _CHECK_S
            while (left_s := next_s - monotonic()) > 0 and not self._is_challenge_due():
                if self._wake.wait(min(left_s, self._lease_s * _SPREAD_PART / 4)):
                    break
            self._wake.clear()

    def _reconcile(self) -> None:
        self._register()
        self._learn_peers()
        if self._node.term != self._term:
            self._term, self._term_changed_s = self._node.term, monotonic()
        held = self._read_lease()
        holder = None if held is None else self._parse(held)
        self._last_holder = self._last_holder if holder is None else holder[0]
        if self._is_promoted() and held is not None and self._lease is None:
            self._claim_lease(held)
        elif holder is None:
            self._stand_for_election()
        elif holder[0] == self._node.name:
            self._check_own_lease()
        else:
            self._follow(holder)
        if self._node.role == "replica":
            self._was_replica = True
        elif self._lease is not None:
            self._was_replica = False

    def _follow(self, holder: tuple[str, str]) -> None:
        """Follow the holder of the lease, unless this node is being promoted; challenge it if it is lost."""
        if self._lease is not None:
            logger.warning("%s: %s has taken the lease", self._label, holder[0])
            self._give_up_lease()
        if self._followed != holder or self._node.role != "replica":
            # A command may be promoting this node: `unless` is called only once the role cannot change any more.
            self._node.follow(holder[1], unless=self._is_promoted)
            self._followed, self._was_replica = holder, True  # also if the node is elected before this look ends
        if self._is_challenge_due():
            self._challenge(holder[0])

    def _is_promoted(self) -> bool:
        """Return whether the node was elected since it was a replica. That deposes the node that holds the lease."""
        return self._node.is_leading and self._was_replica

    # ---- a lost master --------------------------------------------------------------------------------------

    def _is_challenge_due(self) -> bool:
        """Return whether this node has not heard from the holder of the lease for so long that it stands."""
        node, now_s = self._node, monotonic()
        silence_s = max(self._lease_s * _SILENCE_PART, _SILENCE_MIN_S)
        if self._followed is None or node.role != "replica" or node.hears_master(silence_s):
            self._silent_since_s = None
            return False
        if self._silent_since_s is None:
            self._silent_since_s, self._challenge_after_s = now_s, self._random() * self._lease_s * _SPREAD_PART
            self._tries = 0
            logger.warning("%s: receives nothing from the master, %s", self._label, self._followed[0])
        return now_s >= self._silent_since_s + self._challenge_after_s

    def _challenge(self, holder: str) -> None:
        """Stand for election in place of the holder; members that hear from it reject this node."""
        pause_s = (1 + self._random()) * self._lease_s * _SPREAD_PART * min(1 << self._tries, _BACKOFF_FACTOR_MAX)
        self._tries, self._challenge_after_s = self._tries + 1, monotonic() + pause_s - (self._silent_since_s or 0.0)
        if not self._node.is_eligible or self._has_promised_another():
            return
        try:
            self._node.take_over(holder, self._lease_s * _PATIENCE_PART)
        except (ReplogError, OSError) as error:
            logger.debug("%s: not elected in the place of %s: %s", self._label, holder, error)
        self._wake.set()

    def _claim_lease(self, held: Versioned) -> None:
        """Take the lease after this node was elected. The former holder can no longer acknowledge appends."""
        logger.info("%s: takes the lease from %s", self._label, self._last_holder or "no node")
        with suppress(VersionConflictError, NoSuchKeyError):
            self._store.delete(f"{self._root}/master", held.version)
        if not self._take_lease():  # another node was faster, perhaps one with a higher term
            self._was_replica = False

    def _on_nodes_changed(self, _: str) -> None:
        """Learn the addresses of nodes that registered or left, for elections that run now."""
        try:
            self._learn_peers()
        except ReplogError as error:
            logger.info("%s: %s", self._label, error)  # the next look tries again
        self._wake.set()

    def _register(self) -> None:
        """Store the address of this node, so that the other nodes find it and ask it in elections."""
        if self._registered is not None:
            return
        key = f"{self._root}/nodes/{self._node.name}"
        stored = self._store.get(key)
        if stored is not None:  # of an earlier process of this node, whose lease has not expired
            with suppress(VersionConflictError, NoSuchKeyError):
                self._store.delete(key, stored.version)
        lease = self._registered = self._store.lease(self._lease_s, self._on_registration_lost)
        try:
            # `_registered` is set before, because the lease may be lost as soon as this returns
            lease.create(key, self._node.address.encode())
        except BaseException:
            self._registered = None
            lease.close()
            raise

    def _on_registration_lost(self) -> None:
        """Note that the lease of the address was lost: the next look registers again."""
        lease, self._registered = self._registered, None
        self._wake.set()
        if lease is not None:
            lease.close()

    def _learn_peers(self) -> None:
        for name in self._store.list(f"{self._root}/nodes"):
            registered = self._store.get(f"{self._root}/nodes/{name}")
            if registered is None or name == self._node.name:
                continue
            try:
                self._node.learn_peers({name: registered.value.decode("utf-8", "replace")})
            except InvalidArgumentError as error:
                logger.error("%s/nodes/%s: %s", self._root, name, error)

    def _read_lease(self) -> Versioned | None:
        return self._store.get(f"{self._root}/master")

    def _parse(self, held: Versioned) -> tuple[str, str] | None:
        """Return (name, address) of the node that holds the lease; None: the value is malformed."""
        try:
            name, address, *_ = json.loads(held.value)  # later versions may add fields
        except (ValueError, TypeError):
            logger.error("%s/master: expected a name and an address, found %r", self._root, held.value[:80])
            return None
        return str(name), str(address)

    # ---- being master ---------------------------------------------------------------------------------------

    def _stand_for_election(self) -> None:
        """Stand for election while no node holds the lease: take it after a random pause, then be elected."""
        self._followed = None
        if self._lease is not None:  # an elected node has removed the key, and is about to create its own
            self._give_up_lease()
            self._await_winner_until = monotonic() + self._lease_s / 4
        if not self._node.is_eligible or self._has_promised_another() or self._is_backing_off():
            return
        if self._node.role != "master" and self._stopped.wait(self._random() * self._lease_s * _SPREAD_PART):
            return
        if self._node.term != self._term:  # it has promised another candidate meanwhile, or follows a new master
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
        """Take the lease of the key `master`. Return whether it was free."""
        lease = self._store.lease(self._lease_s, self._on_lease_lost)
        try:
            lease.create(f"{self._root}/master", json.dumps([self._node.name, self._node.address]).encode())
        except (KeyExistsError, LeaseLostError):
            lease.close()
            return False
        except BaseException:  # whether the key exists is unknown, and closing the lease deletes it
            lease.close()
            raise
        self._lease, self._lease_taken_s = lease, monotonic()
        return True

    def _is_backing_off(self) -> bool:
        """Return whether other candidates go first: an elected node has removed the key, or this node committed
        nothing as master, and still cannot."""
        if monotonic() < self._await_winner_until:
            return True
        return monotonic() < self._back_off_until and (self._node.role != "master" or self._node.stalled_s > 0)

    def _has_promised_another(self) -> bool:
        """Return whether this node has lately promised a term to a node that did not hold the lease.

        That node was promoted by a command, and is about to take the lease. After the time of a lease its promise does
        not hold this node back any more.
        """
        is_known = self._term.master in (self._node.name, self._last_holder)
        return not is_known and monotonic() < self._term_changed_s + self._lease_s

    def _check_own_lease(self) -> None:
        """Give up the lease if this node can no longer be master. A lease of an earlier process is left to expire."""
        if self._lease is not None and (self._node.role != "master" or not self._node.is_eligible):
            logger.warning("%s: deposed, or its disk failed, while it held the lease", self._label)
            self._give_up_lease()
        elif self._lease is not None and min(self._node.stalled_s, monotonic() - self._lease_taken_s) >= self._lease_s:
            logger.warning(
                "%s: gives the lease up: nothing was committed for %.1f s", self._label, self._node.stalled_s
            )
            self._back_off_until = monotonic() + 2 * self._lease_s
            self._give_up_lease()

    def _on_lease_lost(self) -> None:
        """Become a replica after the lease was lost, because another node may be elected now."""
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
        """Stop the thread, and give up the leases; the node keeps its role."""
        self._stopped.set()
        self._wake.set()
        while self._thread.is_alive():
            self._node.end_candidacy()
            self._thread.join(_CLOSE_RETRY_S)
        for watch in self._watches:
            watch.close()
        self._give_up_lease()
        if self._registered is not None:
            self._registered.close()
