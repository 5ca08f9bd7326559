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
"""

from pyreplog.kafka.config import KafkaConfig
from pyreplog.kafka.embedded import EmbeddedKafka
from pyreplog.kafka.sasl import SaslUsers
from pyreplog.kafka.server import KafkaServer as Server

__all__ = ["EmbeddedKafka", "KafkaConfig", "SaslUsers", "Server"]
