"""Of `top`.

| modules | what they are |
|---|---|
| `topwatch` | what looks again and again |
| `topview` | what was seen, as rows |
| `topscreen` | the screen |
"""
