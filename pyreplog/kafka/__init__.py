"""The Kafka listener: Kafka's clients talk to pyreplog. So far its bytes and the coordinator of groups, which nothing
serves yet.

| package | what it holds |
|---|---|
| `groups` | the coordinator of consumer groups, and the offsets that they commit |
| `wire` | requests, responses and record batches, as bytes and as objects |
"""
