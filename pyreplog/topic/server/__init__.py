"""Serves the topics that this process owns to clients elsewhere.

| module | what it holds |
|---|---|
| `topic_server` | `TopicServer`, which a process runs |
| `service`, `client_session` | what connections ask; one connection |
| `producer_session`, `consumer_session` | stand for a client's producer and consumer |
| `admin_calls` | rare requests by name |
"""
