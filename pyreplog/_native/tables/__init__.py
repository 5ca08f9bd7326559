"""Records and messages as Arrow columns.

| file | holds |
|---|---|
| arrowcolumns, arrowmessages | records and messages as Arrow columns |
| stretches | columns most of whose rows are alike, and sums of stretches of them |
"""
