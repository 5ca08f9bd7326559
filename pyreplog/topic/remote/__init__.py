"""Topics over TCP: servers that own them, and clients in other processes and on other machines.

| module | holds |
|---|---|
| `protocol` | requests and replies as bytes, of `fields`; `error_codec`: errors; `batches`: messages; `statscodec` |
| `topic_server` | `TopicServer`: what a process runs |
| `service` | what its connections ask; `client_session`: one of them; `admin_calls`: what is rare |
| `producer_session` | where entries of a client come in |
| `consumer_session` | what stands for a client's consumer |
| `client` | `connect`, `Client` |
| `remotetopic`, `remotepartitioned` | `RemoteTopic`; `RemotePartitionedTopic` |
| `connection_pool` | connections to servers, and which one has which topic |
| `sender` | entries on their way to the owner, again when need be; `sequence_allocator` of named producers |
| `remote_subscription` | a consumer's subscription at the owner, attached again when need be |
| `unconfirmed_acks` | the acknowledgements that it repeats then |
"""

from __future__ import annotations
