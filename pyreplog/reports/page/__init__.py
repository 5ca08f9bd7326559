"""A page of reports: one HTML file.

| modules | what they are |
|---|---|
| `page` | the page |
| `names`, `cells` | what things are called; values as people read them |
| `summary`, `findings`, `copies`, `sentences` | what it begins with |
| `plots`, `drawings`, `svg` | its drawings |
"""
