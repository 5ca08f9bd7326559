"""The Kafka listener: Kafka's clients talk to pyreplog.

| module or package | what it holds |
|---|---|
| `server` | the listener of a broker, public as `pyreplog.kafka.Server` |
| `embedded` | brokers with listeners and metadata in one directory, public as `pyreplog.kafka.EmbeddedKafka` |
| `connection` | one client: requests and answers in their order |
| `apis` | what is answered to which request |
| `config` | settings |
| `sasl` | users, and how they prove who they are |
| `quotas` | how much clients may use, and what they have used |
| `groups`, `coordinators` | groups of consumers; what drives them |
| `auto_topic_creation` | topics that are created because clients ask for them |
| `metrics` | numbers for Prometheus, also of groups and their lag |
| `error_codes`, `node_ids` | Kafka's numbers for errors, and for brokers |
| `wire` | requests and responses, as bytes and as objects |

What a name needs is imported when it is first asked for: commands that show numbers of groups load no server.
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
"""Name: its module, and its name there."""

__all__ = ["EmbeddedKafka", "KafkaConfig", "SaslUsers", "Server"]


if not TYPE_CHECKING:  # else every name would be one of this module

    def __getattr__(name: str) -> Any:
        if name not in _LATER:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        module, own_name = _LATER[name]
        value = getattr(import_module(f"pyreplog.kafka.{module}"), own_name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
