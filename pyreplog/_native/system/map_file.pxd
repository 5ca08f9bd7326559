# Maps files for reading.
from libc.stdint cimport uint8_t, uint64_t


# Map a file, return the address, and set `size` to its size. The caller unmaps it. Raise OSError; or CorruptionError if
# the file has fewer than `least` bytes (at least 1), which should hold `what`.
cdef const uint8_t *map_file(object path, uint64_t least, str kind, uint64_t *size) except NULL
