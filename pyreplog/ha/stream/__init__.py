"""The bytes of a log from one node to others: what is sent when, and how it lands.

| modules | what they are |
|---|---|
| `feed`, `sender`, `throttle` | what goes over a connection next; as much as it takes; how fast it may |
| `follower`, `chain` | one replica of a master; replicas of a replica |
| `receiver` | a replica's end |
| `growth`, `syncer` | learning that a log has grown; syncing it while it grows |
"""
