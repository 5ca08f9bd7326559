"""What every queue in the table can do."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator
from pathlib import Path
from typing import ClassVar

from benchmarks.result import Durability

PATIENCE_S = 30.0
"""After so long without a message it counts as lost."""


class QueuePeer(ABC):
    """A queue, in a directory of its own, with one consumer that acknowledges what it takes.

    What is confirmed, messages and acknowledgements, survives the process that keeps it ("appended") or the machine,
    too ("synced").
    """

    title: ClassVar[str]
    served: ClassVar[bool]
    """Whether a server keeps it, for any process; else it is a file of this one."""

    durabilities: ClassVar[frozenset[Durability]] = frozenset({"appended", "synced"})
    waits: ClassVar[bool] = True
    """Whether a consumer can wait for a message."""

    @abstractmethod
    def __init__(self, directory: Path, durability: Durability) -> None: ...

    @staticmethod
    @abstractmethod
    def version() -> str:
        """Of the queue and of its Python package."""

    @abstractmethod
    def start(self) -> None:
        """Forget all messages."""

    @abstractmethod
    def publish(self, value: bytes) -> None:
        """One message, confirmed."""

    @abstractmethod
    def publish_batch(self, values: list[bytes]) -> None:
        """At the queue's best; what it leaves on its way is confirmed by `flush`."""

    def flush(self) -> None:  # noqa: B027 - some leave nothing
        """Wait until all is confirmed that was published."""

    @abstractmethod
    def take(self) -> list[bytes]:
        """The next messages that are there, one or more, and acknowledge them; `settle` confirms that."""

    def settle(self) -> None:  # noqa: B027 - some leave nothing
        """Wait until all acknowledgements are confirmed."""

    @abstractmethod
    def backlog(self) -> int:
        """Messages that are not acknowledged."""

    def arrivals(self) -> Generator[bytes, None, None]:
        """Messages as they come, for a thread of its own; each is acknowledged when the next is asked for, or
        none any more: close it."""
        raise NotImplementedError(f"{self.title}: nobody can wait for a message")

    @abstractmethod
    def close(self) -> None: ...
