"""State machines of geo-replication: they take events and return effects, and do no I/O.

| module | what it holds |
|---|---|
| `sender` | `Sender`: sends one topic to one target, and goes on behind the target's last message after a failure |
| `effects` | the effects that a `Sender` returns |
| `origin_stream` | `OriginStream`: the progress of one origin in one session, and its unsent gaps |
| `fair_window` | `FairWindow`: shares the bytes in flight to one cluster among topics |
"""
