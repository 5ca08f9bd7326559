# Files mapped for reading.
from libc.stdint cimport uint8_t, uint64_t


# The bytes of a file, mapped; `size` is set to how many there are. Whoever maps them unmaps them.
# Errors: OSError; CorruptionError when there are fewer than `least` (at least 1), which hold `what`.
cdef const uint8_t *map_file(object path, uint64_t least, str what, uint64_t *size) except NULL
