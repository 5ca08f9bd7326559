"""Reports on records.

| modules | what they are |
|---|---|
| `streams` | which log or topic records are of |
| `rates`, `sizes` | what was appended per minute; how large it is |
| `keys`, `partitions` | what most of it has in common; how evenly it is spread |
| `duplicates`, `gaps`, `order` | what is there twice, missing, or older than what is before it |
| `runs`, `slots` | numbers as ranges; columns as arrays: in few rows |
"""
