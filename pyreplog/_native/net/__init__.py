"""Frames, and their way into and out of sockets.

| file | holds |
|---|---|
| socket_io | bytes into and out of sockets, the GIL released around what takes long |
| reactor_base | one round of a reactor: how long it sleeps, and which callbacks it calls |
| frame | offset + size frames, and the parser that takes any cut of a stream |
| add_replies | plain OKs of bookies, from their frames to the ack tracker |
| send_queue | buffers on their way into a socket |
| frame_feed_base | what was just appended, from the log to the socket of a replica |
| fast_path_receiver | requests that are answered at once: received, handed over, answered in one step |
| pending_requests_base | requests that leave at once: numbered, noted and sent in one step |
| request_head | the places of the fields in the head of a request to a bookie |
"""
