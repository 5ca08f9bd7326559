"""Verify every byte of a log directory, explain the damage, and repair what can honestly be repaired.

| file | holds |
|---|---|
| check | the verification itself |
| damage | what is reported |
| survey | the files of a directory, as their headers tell |
| derived_files, leftovers | checkpoint, indexes, marker; files that a crash left |
| locked_segment | keeps segments from being recycled while they are looked at |
| repair, rebuild | moving damage aside; making headers again |
"""
