"""The Kafka listener: lets Kafka clients use pyreplog.

| module or package | what it holds |
|---|---|
| `server` | the listener of a broker, public as `pyreplog.kafka.Server` |
| `embedded` | brokers with listeners and metadata in one directory, public as `pyreplog.kafka.EmbeddedKafka` |
| `connection` | the connection of one client: sends responses in the order of the requests |
| `receive_budget` | bounds the memory of requests that have not arrived whole |
| `apis` | the functions that handle requests |
| `config` | settings |
| `sasl` | users and their authentication |
| `quotas` | quotas of clients, and what the clients have used |
| `groups`, `coordinators` | consumer groups; the driver of their coordinator |
| `ledgers` | topics on ledgers, served beside partitions |
| `auto_topic_creation` | creates topics that clients ask for |
| `metrics` | metrics for Prometheus, also of groups and their lag |
| `error_codes`, `node_ids` | Kafka's error codes, and ids of brokers |
| `wire` | encodes and decodes requests and responses |

The module of a public name is imported at its first use, so that commands that only show groups do not load the server.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from pyreplog.kafka.config import KafkaConfig

if TYPE_CHECKING:
    from pyreplog.kafka.embedded import EmbeddedKafka
    from pyreplog.kafka.sasl import SaslUsers
    from pyreplog.kafka.server import KafkaServer as Server

_LATER = {
    "EmbeddedKafka": ("embedded", "EmbeddedKafka"),
    "SaslUsers": ("sasl", "SaslUsers"),
    "Server": ("server", "KafkaServer"),
}
"""Module and class of each lazily imported name."""

__all__ = ["EmbeddedKafka", "KafkaConfig", "SaslUsers", "Server"]


if not TYPE_CHECKING:  # a type checker would accept every name of the module

    def __getattr__(name: str) -> Any:
        if name not in _LATER:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        module, own_name = _LATER[name]
        value = getattr(import_module(f"pyreplog.kafka.{module}"), own_name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
