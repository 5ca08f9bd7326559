"""The registrations of bookies, as a client follows them: which ones run, their addresses, space and modes."""

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
    """Reads the registrations of all bookies, and reads them again after each change. Any thread may use it.

    on_change: called with the ids of the bookies that registered, left or changed, by one thread at a time.
    retry: has a read that failed repeated a little later by a thread that may block.
    """

    def __init__(
        self,
        store: MetadataStore,
        on_change: Callable[[Set[str]], object],
        retry: Callable[[Callable[[], None]], object],
    ) -> None:
        self._store, self._on_change, self._retry = store, on_change, retry
        self._reading = threading.Lock()  # held by a read, so that an older value never replaces a newer one
        self._values: dict[str, Availability] = {}  # by bookie id; replaced as a whole
        self._watches: dict[str, Watch] = {}  # by bookie id
        self._read = threading.Event()
        self._is_closed = False
        self._names = store.watch(AVAILABLE, lambda _: self._read_names())

    def wait(self, timeout_s: float) -> bool:
        """Wait until the registrations were read once; return whether they were."""
        return self._read.wait(timeout_s)

    def get(self, bookie: str) -> Availability | None:
        """Return the registration of a bookie; None: it is not registered."""
        return self._values.get(bookie)

    def items(self) -> list[tuple[str, Availability]]:
        """Return all registrations, ordered by bookie id."""
        return sorted(self._values.items())

    def close(self) -> None:
        """Stop following the registrations, and forget all of them."""
        self._is_closed = True
        self._names.close()
        with self._reading:
            self._watches_of(frozenset())
            self._values = {}

    # ---- reading --------------------------------------------------------------------------------------------

    def _read_names(self) -> None:
        """Read all registrations, after bookies registered or left."""
        with self._reading:
            if self._is_closed:
                return
            try:
                names = frozenset(self._store.list(AVAILABLE))
                self._watches_of(names)  # before the reads: a later change is not missed
                registered = {name: value for name in names if (value := self._value(name)) is not None}
            except ReplogError as error:
                self._failed(error, self._read_names)
                return
            self._replace(registered)
            self._read.set()

    def _read_value(self, key: str) -> None:
        """Read the registration of one bookie, after it changed."""
        with self._reading:
            bookie = name_of(key)
            if bookie not in self._watches:
                return
            try:
                value = self._value(bookie)
            except ReplogError as error:
                self._failed(error, lambda: self._read_value(key))
                return
            others = {name: availability for name, availability in self._values.items() if name != bookie}
            self._replace(others if value is None else {**others, bookie: value})

    def _watches_of(self, names: Set[str]) -> None:
        for name in self._watches.keys() - names:
            self._watches.pop(name).close()
        for name in names - self._watches.keys():
            self._watches[name] = self._store.watch(availability_key(name), self._read_value)

    def _value(self, bookie: str) -> Availability | None:
        """Read one registration; None if there is none, or a damaged one. Raises errors of the store."""
        stored = self._store.get(availability_key(bookie))
        try:
            return None if stored is None else Availability.decode(stored.value)
        except InvalidMetadataError as error:
            logger.warning("bookie %s is ignored: its registration cannot be read: %s", bookie, error)
            return None

    def _failed(self, error: ReplogError, read: Callable[[], None]) -> None:
        """Keep the values that were read before, and schedule another read."""
        if not isinstance(error, ClosedError):
            logger.warning("the registrations of bookies cannot be read, another attempt follows: %s", error)
            self._retry(read)

    def _replace(self, registered: dict[str, Availability]) -> None:
        previous, self._values = self._values, registered
        changed = {name for name in previous.keys() | registered.keys() if previous.get(name) != registered.get(name)}
        if changed:
            self._on_change(changed)
