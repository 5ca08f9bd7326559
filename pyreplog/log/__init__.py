"""The commit log: a directory of mapped segments, one writer, any number of readers.

| file | holds |
|---|---|
| commit_log | CommitLog: the writer |
| replica | the file that marks a log as a copy of another |
| hole_punch | freeing the space of a segment in the middle of a log |
| reader | LogReader: read-only handle, in any process |
| log_view | LogView, the base class of both: read, follow, lookups by position and time; LogFollower |
| log_cursor | LogCursor: a named place from which on retention keeps entries |
| files | Files: access to the disk, which tests replace |
| disk_reader | DiskReader: reads a file past the page cache, also with bad sectors |
| names | names of the files in a log directory |
| lock | WriterLock: one writer per log |
| headers | reading the header of a segment file |
| tail_page | checks of the tail page |
| checkpoint | Checkpoint: the position up to which a log is known to be on disk |
| startup | opening a log directory for writing |
| recovery | finding the end of a log: torn tail or corruption |
| indexes | index files of sealed segments |
| segments | SegmentPool: preparing and recycling segment files |
| watcher | Watcher: waits of asyncio tasks for entries |
| stats | LogStats: the state of a log |
| opening | `pyreplog.open` |
| commit | GroupCommit: group commit of a synced log |
| tail_listeners | TailListeners: one thread that waits for many logs to grow |
| runtime | LogRuntime: threads that many logs share; the limit of logs with open files |
| housekeeper | Housekeeper: the background threads of a log, and the retries of their tasks |
| unclean_shutdown_marker | UncleanShutdownMarker: whether unsynced records may have been lost at a power cut |
| retention | the rule of retention |
| truncation | crash-safe truncation |
| backup/ | consistent copy of a live log, and restore |
| fsck/ | verification of every byte; explanation and repair of damage |
"""

from pyreplog.log.commit_log import CommitLog
from pyreplog.log.reader import LogReader

__all__ = ["CommitLog", "LogReader"]
