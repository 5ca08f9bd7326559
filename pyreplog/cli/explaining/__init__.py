"""Explains bytes field by field, for `dump`.

| modules | what they hold |
|---|---|
| `layout` | the places of fields |
| `raw_segment` | a segment that is read without trusting its content |
| `explain`, `explain_batch` | explanations of its fields; of those of a Kafka record batch in it |
| `explained` | what is said of one field |
"""
