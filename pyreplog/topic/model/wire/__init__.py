"""The protocol between topic servers and their clients, as bytes (see FORMAT.md, "Topics' wire").

| module | what it holds |
|---|---|
| `protocol` | every request and reply |
| `fields` | the fields that they consist of |
| `batches` | messages inside them |
| `error_codec` | errors by number |
| `stats_codec`, `start_codec` | statistics; places to begin at |
"""
