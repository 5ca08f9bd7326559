"""Reports on partitioned topics and on consumer groups, of a cluster of brokers.

| modules | what they hold |
|---|---|
| `state_report` | partitions with their ISR and marks; the lag of replicas; how many partitions each broker leads |
| `group_report` | the lag of consumer groups, and whether they catch up |
"""
