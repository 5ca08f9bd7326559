"""The protocol between topic servers and their clients, as bytes (see FORMAT.md, "Topics' wire").

| module | what it holds |
|---|---|
| `protocol` | every request and reply; errors by number |
| `fields` | the fields that they consist of |
| `batches` | messages inside them |
| `json_codec` | statistics and start positions as JSON |
"""
