"""Reports on topics of partitions and on consumer groups, of a cluster of brokers.

| modules | what they hold |
|---|---|
| `state_report` | partitions with their ISR and marks; the lag of replicas; which broker leads how many |
| `group_report` | how far consumer groups are behind, and whether they catch up |
"""
