"""Sealed segments of a log on object storage, or on a shared file system. docs/spark.md shows their use.

| module | holds |
|---|---|
| `copying` | `offload`: what is sealed and not there yet, copied; then the manifest |
| `manifest` | which objects there are, and what they hold |
| `index` | where records begin in a segment and when they were appended, as an object |
| `storage`, `localfiles` | objects below a URL, through fsspec; files, durably |
| `windows` | a stretch of a segment, fetched piece by piece, for the scans of segment files |

FORMAT.md tells names and bytes. fsspec is imported when a URL is opened.
"""
