"""Frames, and their way into and out of sockets.

| file | holds |
|---|---|
| pump | bytes into and out of sockets, the GIL released around what takes long |
| rounds | one round of a reactor: until when it sleeps, whom it calls back |
| frame | offset + size frames, and the parser that takes any cut of a stream |
| answers | plain OKs of bookies, from their frames to the ack tracker |
| outbox | buffers on their way into a socket |
| nextframe | what was just appended, from the log to the socket of a replica |
| arrivals | requests that are answered at once: received, handed over, answered in one step |
| asking | requests that leave at once: numbered, noted and sent in one step |
| requesthead | where a request says what |
"""
