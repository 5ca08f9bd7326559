"""Parts of `top`.

| modules | what they hold |
|---|---|
| `top_watch` | reading the state of topics and clusters at intervals |
| `partitions_watch` | reading partitions, brokers and consumer groups for it |
| `top_view` | the state as rows |
| `top_screen` | the screen |
"""
