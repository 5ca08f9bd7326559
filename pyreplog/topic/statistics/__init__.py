"""Statistics: what is known of topics, for people and programs.

| modules | what they are |
|---|---|
| `stats` | what is told |
| `report` | gathers it from the parts that know it |
| `subscriptioncounts` | what became of a subscription's messages |
| `metrics` | the same for Prometheus |
"""
