"""Parts of `top`.

| modules | what they hold |
|---|---|
| `topwatch` | reading the state of topics and clusters at intervals |
| `partitions_watch` | reading partitions, brokers and consumer groups for it |
| `topview` | the state as rows |
| `topscreen` | the screen |
"""
