"""Settings of a node of a replica group."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Required, TypedDict

from pyreplog._native.net.frame import DEFAULT_MAX_BODY
from pyreplog.config import LogConfig, Settings
from pyreplog.errors import ConfigError
from pyreplog.ha.protocol.master_machine import GroupConfig
from pyreplog.stream.fields import NAME_BYTES_MAX, is_name


@dataclass(frozen=True, kw_only=True)
class NodeConfig(Settings):
    """Settings of a node, for each role that it may have.

    Attributes:
        name: name of the member, 1 to 255 bytes of UTF-8.
        log: settings of its log.
        group: settings for the role of master. `ack="synced"` needs a log of durability "synced".
        host: address to listen at.
        port: port to listen at; 0: any free port.
        advertise: "host:port" at which other nodes reach this one; None: `host` and `port`.
        transfer_bytes: most bytes of log in one frame.
        throttle_bytes_per_s: most bytes of log per second to each replica; None: no limit.
        ack_timeout_ms: milliseconds that an append waits for replicas. Then its outcome is unknown.
        election_timeout_ms: milliseconds that a member may take to answer in an election.
        observer: follow the group without being counted: for reading, or as a source for other observers.

    See docs/ha.md.
    """

    name: str
    log: LogConfig = field(default_factory=LogConfig)
    group: GroupConfig = field(default_factory=lambda: GroupConfig(ack="received"))
    host: str = "127.0.0.1"
    port: int = 0
    advertise: str | None = None
    transfer_bytes: int = 256 << 10
    throttle_bytes_per_s: int | None = None
    ack_timeout_ms: int = 10_000
    election_timeout_ms: int = 5_000
    observer: bool = False

    def __post_init__(self) -> None:
        if not is_name(self.name):
            raise ConfigError(f"name: expected 1 to {NAME_BYTES_MAX} bytes of UTF-8, found {self.name!r}")
        if self.group.ack == "synced" and self.log.durability != "synced":
            raise ConfigError(f'ack="synced" needs a log of durability "synced", found {self.log.durability!r}')
        self._check_int("port", 0, 65535)
        self._check_int("transfer_bytes", 4096, DEFAULT_MAX_BODY)
        self._check_int("throttle_bytes_per_s", 1, 1 << 50, optional=True)
        self._check_int("ack_timeout_ms", 1, 1 << 40)
        self._check_int("election_timeout_ms", 1, 1 << 40)

    @property
    def lossless(self) -> bool:
        """Whether a master with these settings sends only what is on its own disk."""
        return self.log.durability == "synced"


class NodeSettings(TypedDict, total=False):
    """The settings of a NodeConfig, as keywords of `open_master` and `open_replica`."""

    name: Required[str]
    log: LogConfig
    group: GroupConfig
    host: str
    port: int
    advertise: str | None
    transfer_bytes: int
    throttle_bytes_per_s: int | None
    ack_timeout_ms: int
    election_timeout_ms: int
    observer: bool
