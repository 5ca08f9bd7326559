# The head of a request; FORMAT.md, "Bookie protocol", describes it.

cdef enum:
    REQUEST_BYTES = 48
    AT_FLAGS = 1
    AT_RUN = 2
    AT_STEP = 3
    AT_LEDGER = 8
    AT_FIRST = 16
    AT_LAST = 24
    AT_KEY = 32
    KEY_BYTES = 16
    KIND_ADD = 1
    FLAG_UNSYNCED = 4
