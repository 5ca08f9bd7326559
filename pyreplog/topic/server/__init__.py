"""Serves the topics that this process owns to clients elsewhere.

| module | what it holds |
|---|---|
| `topic_server` | `TopicServer`, which a process runs, and what it answers to requests |
| `client_session` | one connection, and what stands for each producer and consumer of the client |
| `admin_calls` | rare requests by name |
"""
