"""Replication of a log's bytes from one node to another, for replica groups and other replicated logs.

| module | what it holds |
|---|---|
| `log_position` | a position in a log, and its entry number |
| `terms` | the history of terms: which leader wrote from which position on |
| `frame_feed` | the next part of a log, cut into frames for one connection |
| `sender`, `rate_limiter` | writes the feed into a connection, as fast as the connection takes it or a limit allows |
| `receiver` | the other end: applies the received frames to a mirror |
| `mirror_log` | a log that holds its leader's bytes at their positions |
| `syncer` | syncs a mirror repeatedly while it grows |
| `tail_watcher` | calls back when a log has grown |
| `fields` | reads and writes the fields of messages and files |
"""
