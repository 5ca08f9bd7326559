"""The registrations of bookies, as a client follows them: who runs, where, how much is free, who is read-only."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Set

from pyreplog.bookie.registration import AVAILABLE, Availability, availability_key
from pyreplog.errors import ClosedError, InvalidMetadataError, ReplogError
from pyreplog.metadata.keys import name_of
from pyreplog.metadata.store import MetadataStore
from pyreplog.metadata.watching import Watch

logger = logging.getLogger(__name__)


class Registrations:
    """Reads the registrations at once and after each change: of their names, and of the value of each.

    on_change: called with the ids of the bookies that came, went or changed, by one thread at a time. again: has a call
    repeated a little later by a thread that may block; for reads that failed. Any thread may call anything.
    """

    def __init__(
        self,
        store: MetadataStore,
        on_change: Callable[[Set[str]], object],
        again: Callable[[Callable[[], None]], object],
    ) -> None:
        self._store, self._on_change, self._again = store, on_change, again
        self._reading = threading.Lock()  # one read follows the other: an older value never replaces a newer one
        self._values: dict[str, Availability] = {}  # by bookie id; replaced as a whole
        self._watches: dict[str, Watch] = {}  # of the values
        self._read = threading.Event()
        self._is_closed = False
        self._names = store.watch(AVAILABLE, lambda _: self._read_names())

    def wait(self, timeout_s: float) -> bool:
        """Wait until they were read once; whether they were."""
        return self._read.wait(timeout_s)

    def get(self, bookie: str) -> Availability | None:
        """What a bookie says of itself; None: it is not registered."""
        return self._values.get(bookie)

    def items(self) -> list[tuple[str, Availability]]:
        """All of them, by id."""
        return sorted(self._values.items())

    def close(self) -> None:
        """Follow them no longer; none is known from then on."""
        self._is_closed = True
        self._names.close()
        with self._reading:
            self._watches_of(frozenset())
            self._values = {}

    # ---- reading --------------------------------------------------------------------------------------------

    def _read_names(self) -> None:
        """Some came or went: read all of them."""
        with self._reading:
            if self._is_closed:
                return
            try:
                names = frozenset(self._store.list(AVAILABLE))
                self._watches_of(names)  # first: no change behind the read is missed
                found = {name: value for name in names if (value := self._value(name)) is not None}
            except ReplogError as error:
                self._failed(error, self._read_names)
                return
            self._replace(found)
            self._read.set()

    def _read_value(self, key: str) -> None:
        """The registration of one may have changed."""
        with self._reading:
            bookie = name_of(key)
            if bookie not in self._watches:
                return
            try:
                value = self._value(bookie)
            except ReplogError as error:
                self._failed(error, lambda: self._read_value(key))
                return
            found = {name: known for name, known in self._values.items() if name != bookie}
            self._replace(found if value is None else {**found, bookie: value})

    def _watches_of(self, names: Set[str]) -> None:
        for name in self._watches.keys() - names:
            self._watches.pop(name).close()
        for name in names - self._watches.keys():
            self._watches[name] = self._store.watch(availability_key(name), self._read_value)

    def _value(self, bookie: str) -> Availability | None:
        """Errors: those of the store. One that makes no sense is left out."""
        found = self._store.get(availability_key(bookie))
        try:
            return None if found is None else Availability.decode(found.value)
        except InvalidMetadataError as error:
            logger.warning("bookie %s is left out: %s", bookie, error)
            return None

    def _failed(self, error: ReplogError, read: Callable[[], None]) -> None:
        """What was read before stays."""
        if not isinstance(error, ClosedError):
            logger.warning("the registrations of bookies cannot be read, and are read again: %s", error)
            self._again(read)

    def _replace(self, found: dict[str, Availability]) -> None:
        before, self._values = self._values, found
        changed = {name for name in before.keys() | found.keys() if before.get(name) != found.get(name)}
        if changed:
            self._on_change(changed)
