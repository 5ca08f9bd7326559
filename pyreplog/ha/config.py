"""Configuration of a node of a replica group: one frozen dataclass, units in the names, validated when it is made."""

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
    """Settings of a node, whatever its role is: it may become another one.

    name: of the member, 1 to 255 bytes. log: of its log. group: what it does as a master; with ack="synced" the log's
    durability has to be "synced", too.
    host, port: where it listens; port 0: a free one. advertise: "host:port" as others reach it; None: where it listens.
    transfer_bytes: of the log in one frame at most. throttle_bytes_per_s: of the log to one replica; None: no limit.
    ack_timeout_ms: how long an append waits for replicas; then its outcome is unknown.
    election_timeout_ms: how long members may take for an answer in an election.
    observer: a replica that is streamed to and never counted, for reading, or for others to be streamed from.
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
        """Whether a master of these settings sends nothing that is not on its disk."""
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
