"""Compiled: what is done for every entry. Kernels take bytes and numbers; of protocols only the steps that every append
takes are here, as bases of Python classes that have the rest. FORMAT.md says what every byte means.

| here | holds |
|---|---|
| layout.h | structures and constants, compared with FORMAT.md by a test |
| crc32c.* | CRC-32C, the fastest kernel of this CPU |
| populate.h, pwrite.h | pages made ready, and whole writes |
| system/ | what the machine gives: memory, mapped files, descriptors, threads, the CPU's checksums |
| machines/ | what state machines and those who run them share |
| log/ | the commit log: records, segments, appending, reading, waiting |
| ledger_log/ | entries of many ledgers in one log, and the way from (ledger, entry) to a record |
| quorum/ | write sets, what bookies have acked of them, and what of a batch goes to whom |
| net/ | frames, and their way into and out of sockets |
| bookie/ | what a bookie does for every entry that is added |
| ledger/ | what a ledger's writer and its driver do for every append: bases of the Python classes that have the rest |
| ha/ | what a master and its replicas do for every append |
| topic/ | messages in entries, and what subscriptions have acknowledged |
| tables/ | records and messages as Arrow columns |
| kafka/ | requests, responses and record batches of Kafka's protocol |
| partition/ | what a broker does for every append to a partition |
"""

import sys

import pyreplog._native.system.scheduling  # noqa: F401  a free-threaded CPython turns the GIL on for the first module

if not getattr(sys, "_is_gil_enabled", lambda: True)():
    raise ImportError(
        "pyreplog: expected an interpreter with the GIL, found one without: remove PYTHON_GIL=0 or -X gil=0, with which"
        " logs would be damaged (docs/free_threading.md)"
    )
