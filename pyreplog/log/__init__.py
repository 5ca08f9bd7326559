"""The commit log: a directory of mapped segments, one writer, any number of readers.

| file | holds |
|---|---|
| commit_log | CommitLog: the writer |
| replica | the file that marks a log as a copy of another |
| hole_punch | giving back the space of a segment in the middle of a log |
| reader | LogReader: read-only handle, in any process |
| log_view | what both offer: scan, follow, lookups by position and time; Follower |
| log_cursor | LogCursor: a named place from which on retention keeps entries |
| files | the disk, behind a seam that tests replace |
| disk_reader | reading a file past the page cache, also where the disk cannot be read |
| names | names of the files in a log directory |
| lock | the writer's lock |
| headers | reading the first block of a segment's file |
| tail_page | whether what the tail page says can be |
| checkpoint | how far the log is proven to be on disk |
| startup | a log directory brought into a state that can be appended to |
| recovery | what of a log is intact: torn tail or corruption |
| indexes | index files of sealed segments |
| segments | making, preparing and recycling segment files |
| watcher | waiting for entries in asyncio |
| stats | what a log tells of itself |
| opening | `pyreplog.open` |
| commit | group commit of a synced log |
| tail_listeners | TailListeners: one thread that waits for many logs to grow |
| runtime | LogRuntime: threads that many logs share, and how long a log is idle before its files are closed |
| housekeeper | the background threads, and their tasks, which are tried again when they fail |
| unclean_shutdown_marker | whether unsynced records were in memory when the machine went down |
| retention | which segments may go |
| truncation | cutting the end, crash-safe |
| backup/ | consistent copy of a live log, and restore |
| fsck/ | verify every byte, explain and repair damage |
"""

from pyreplog.log.commit_log import CommitLog
from pyreplog.log.reader import LogReader

__all__ = ["CommitLog", "LogReader"]
