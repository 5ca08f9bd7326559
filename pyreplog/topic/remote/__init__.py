"""Topics over TCP: servers that own them, and clients in other processes and on other machines.

| module | holds |
|---|---|
| `protocol` | requests and replies as bytes, of `fields`; `faults`: errors; `batches`: messages; `statscodec` |
| `serving` | `TopicServer`: what a process runs |
| `service` | what its connections ask; `session`: one of them; `calls`: what is rare |
| `lane` | where entries of a client come in |
| `outlet` | what stands for a client's consumer |
| `client` | `connect`, `Client` |
| `remotetopic`, `remotepartitioned` | `RemoteTopic`; `RemotePartitionedTopic` |
| `link` | connections to servers, and which one has which topic |
| `sender` | entries on their way to the owner, again when need be; `numbers` of named producers |
| `attachment` | a consumer's subscription at the owner, attached again when need be |
| `unconfirmed` | the acknowledgements that it repeats then |
"""

from __future__ import annotations
