"""The bytes of a log from one node to others: what is sent when, and how it lands.

| modules | what they are |
|---|---|
| `frame_feed`, `sender`, `throttle` | what goes over a connection next; as much as it takes; how fast it may |
| `replica_stream`, `cascade` | one replica of a master; replicas of a replica |
| `receiver` | a replica's end |
| `tail_watcher`, `syncer` | learning that a log has grown; syncing it while it grows |
"""
