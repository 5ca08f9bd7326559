"""What the machine gives: memory, mapped files, descriptors, threads, the CPU's checksums.

| file | holds |
|---|---|
| checksum | CRC-32C, for Python |
| map_file | index files mapped for reading |
| blocks | large buffers whose memory is used again |
| polling | epoll, with and without sleeping |
| interrupts | Ctrl-C put off while something must not stop half way |
| mutex | a lock that native code takes without a call of Python's |
| scheduling | where native code is about to sleep, a test may decide who runs next |
| histogram | histograms, for metrics |
"""
