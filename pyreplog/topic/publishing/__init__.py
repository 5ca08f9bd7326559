"""Publishing: from what callers give to entries on their way to a topic's ledgers, each once.

| modules | what they are |
|---|---|
| `publisher` | publishes to one topic |
| `producer`, `sequences` | the same under a name, with numbers |
| `outgoing`, `forwarded` | messages as callers gave them; entries that another process has encoded |
| `delivery_times` | when messages with a delay may be delivered |
| `batcher`, `compression` | messages gathered into entries |
| `dedup`, `dedupcursor`, `producersnapshot` | which messages of named producers were published before |
| `intake` | the order of what is published: what waits for company, what is in doubt, what goes to the ledgers |
| `publish_batch`, `outbox` | what goes together, and who is told; in the order in which it entered |
| `window`, `backlog_gate` | how much may be on its way; what is held while a quota is used up |
"""
