"""Frames over TCP: the base of everything that talks to another process.

| module | holds |
|---|---|
| `limits` | `Limits`: sizes, counts and times |
| `reactor` | `Reactor`: epoll, calls, and the thread that drives it (`driver_lock`); `timers`; its `wakeup` |
| `hello` | the first frames of a connection, as bytes |
| `handshake` | both sides of the hello, as state machines without I/O; `Secret`, `NodeIdentity`, `Peer` |
| `pending_connection` | a connection whose hello is not complete: drives a handshake |
| `pending_connections` | `PendingConnections`: limits their number on a server |
| `connection` | `Connection`: receives frames, sends buffers; `Handler`; liveness (`keep_alive`) |
| `fast_path` | requests that are answered between the socket and the handler, without the steps in between |
| `server_connection` | `ServerConnection`: requests, replies, and the bytes in flight |
| `listener` | `Listener`: accepts the connections of a port |
| `server` | `Server`: limits connections and drains them |
| `fair_executor` | `FairExecutor`: threads for requests that block |
| `dialer` | connecting; `ReconnectingConnection`, which connects again (`backoff`) when the connection is lost |
| `channel` | `Channel`: requests to one address (`pending_requests`), reconnection |
| `endpoint` | closing of servers and channels |
| `credentials` | a client's secret and TLS, by the names of files |
| `tls`, `sockets` | the streams below |

Nothing here interprets a body. Threads: see `Reactor.drive`. Sockets are those of Linux.
"""

from __future__ import annotations
