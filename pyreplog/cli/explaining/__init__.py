"""Bytes, field by field: of `dump`.

| modules | what they are |
|---|---|
| `layout` | where fields lie |
| `rawsegment` | a segment that is read without being believed |
| `explain` | what is printed of it |
"""
