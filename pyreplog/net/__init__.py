"""Frames over TCP: what everything that talks to another process is built on.

| module | holds |
|---|---|
| `limits` | `Limits`: sizes, counts and times |
| `reactor` | `Reactor`: epoll, calls, and who drives it (`driver_lock`); `timers`; what wakes him (`wakeup`) |
| `hello` | the first frames of a connection, as bytes |
| `handshake` | both sides of the hello, as state machines without I/O; `Secret`, `Identity`, `Peer` |
| `pending_connection` | a connection that is being made: drives a handshake |
| `pending_connections` | `PendingConnections`: how many of those a server has |
| `connection` | `Connection`: frames in, buffers out; `Handler`; alive or not (`keep_alive`) |
| `fast_path` | what is dealt with at once, from the socket to its handler |
| `server_connection` | `ServerConnection`: requests, replies, and the bytes in between |
| `server` | `Server`: listens, greets, limits, drains |
| `fair_executor` | `FairExecutor`: threads for requests that block |
| `dialer` | connecting; `Link`: a connection for a handler that is made again (`backoff`) when it is lost |
| `client` | `Channel`: requests to one address (`pending_requests`), reconnection |
| `endpoint` | how servers and channels end |
| `credentials` | a client's secret and TLS, by the names of files |
| `tls`, `sockets` | the streams below |

Nothing here knows what a body says. Threads: see `Reactor.drive`. Sockets are Linux's.
"""

from __future__ import annotations
