"""Serves the topics that this process owns to clients elsewhere.

| module | what it holds |
|---|---|
| `topic_server` | `TopicServer`, and its handling of requests |
| `client_session` | one connection, with sessions of the client's producers and consumers |
| `admin_calls` | rare requests by name |
"""
