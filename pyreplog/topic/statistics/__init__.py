"""Statistics: what is known of topics, for people and programs.

| modules | what they are |
|---|---|
| `stats` | what is told |
| `report` | gathers it from the parts that know it |
| `subscription_counters`, `delayedcount` | what became of a subscription's messages; how many wait for their time |
| `metrics` | the same for Prometheus |
"""
