"""Records and messages as Arrow columns.

| file | holds |
|---|---|
| arrowcolumns, arrowmessages | records and messages as Arrow columns |
| column_runs | tests whether all rows of a column are equal, and sums over runs of rows |
"""
