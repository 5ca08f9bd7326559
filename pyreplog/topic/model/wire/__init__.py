"""The protocol between topic servers and their clients, as bytes (see FORMAT.md, "Topics over TCP").

| module | what it holds |
|---|---|
| `protocol` | requests and replies; numbers of errors |
| `fields` | fields of requests and replies |
| `origins` | fields of the requests that replicate an origin into a topic |
| `batches` | messages inside requests and replies |
| `json_codec` | statistics and start positions as JSON |
"""
