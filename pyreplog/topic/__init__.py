"""Topics: chains of ledgers that producers publish to; cursors keep what each subscription has acknowledged.

| package | what it holds |
|---|---|
| `model` | names, settings, positions, the state machines of topics, and their wire; no I/O |
| `client` | what applications hold: producers, consumers, topics of a server, topics with partitions |
| `owner` | the process that owns a topic: its ledgers, cursors, subscriptions, quotas and retention |
| `server` | serves the topics that a process owns to clients elsewhere |

A package imports only those above it in this table. `pyreplog.cluster` builds on `owner`.
"""
