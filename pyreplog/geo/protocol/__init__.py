"""State machines of geo-replication: they take events and return effects, and do no I/O.

| module | what it holds |
|---|---|
| `sending` | `Sender`: sends one topic to one target, and goes on from what the target has after any failure |
| `effects` | what a `Sender` wants done |
| `stream` | `Stream`: what of one origin was sent, and the gaps that are still to be told |
| `fairness` | `FairWindow`: shares the bytes on their way to one cluster among topics |
"""
