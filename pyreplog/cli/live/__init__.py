"""Parts of `top`.

| modules | what they hold |
|---|---|
| `topwatch` | reading the state of topics and clusters at intervals |
| `topview` | the state as rows |
| `topscreen` | the screen |
"""
