"""Topics of a server, over TCP.

| module | what it holds |
|---|---|
| `client` | `connect`, and the `Client` that it returns |
| `connection_pool` | connections to servers, and which server owns which topic |
| `remote_topic` | `RemoteTopic`, `RemotePartitionedTopic` |
| `sender` | sends entries to the owner, again after a lost connection |
| `remote_subscription` | the subscription of a consumer at the owner; attached again after a lost connection |
"""
