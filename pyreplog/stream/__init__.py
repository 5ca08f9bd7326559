"""The bytes of a log from one node to another: what replica groups and other replicated logs have in common.

| module | what it holds |
|---|---|
| `log_position` | a place in a log: byte position and entry number |
| `terms` | the history of terms: which leader wrote from which place on |
| `frame_feed` | the next part of a log, cut into frames for one connection |
| `sender`, `throttle` | writes the feed into a connection as fast as it takes it, or as fast as it may |
| `receiver` | the other end: checks the frames and applies them to a mirror |
| `mirrorlog` | a log that holds its leader's bytes at their positions |
| `syncer` | syncs a mirror over and over while it grows |
| `tail_watcher` | tells when a log has grown |
| `fields` | reads and writes the fields of messages and files |
"""
