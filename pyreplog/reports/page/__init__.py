"""A page of reports: one HTML file.

| modules | what they hold |
|---|---|
| `page` | the page |
| `names`, `cells` | names of rows; values as people read them |
| `summary`, `findings`, `copies`, `recovery`, `partitions`, `geo`, `sentences` | the summary at the top |
| `plots`, `drawings`, `svg` | the drawings |
"""
