"""The Kafka listener: Kafka's clients talk to pyreplog. So far its bytes, which nothing serves yet.

| package | what it holds |
|---|---|
| `wire` | requests and responses, as bytes and as objects |
"""
