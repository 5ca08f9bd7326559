"""Records and messages as Arrow columns.

| file | holds |
|---|---|
| arrow_columns, arrow_messages | records and messages as Arrow columns |
| column_runs | tests whether all rows of a column are equal, and sums over runs of rows |
"""
