"""Verify every byte of a log directory, explain the damage, and repair it where no entry has to be guessed.

| file | holds |
|---|---|
| check | the verification |
| damage | Damage and FsckReport: the results |
| survey | the state of a log by its headers, checkpoint and marker |
| derived_files, leftovers | checks of index files and checkpoint; files that a crash left |
| locked_segment | mapping a segment so that no writer recycles it |
| repair, rebuild | repair of a log; rebuilding of segment headers |
"""
