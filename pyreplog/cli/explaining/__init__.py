"""Explains bytes field by field, for `dump`.

| modules | what they hold |
|---|---|
| `layout` | the places of fields |
| `rawsegment` | a segment that is read without trusting its content |
| `explain` | explanations of its fields |
"""
