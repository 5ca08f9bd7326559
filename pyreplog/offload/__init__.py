"""Sealed segments of a log on an object store, or on a shared file system. docs/spark.md describes their use.

| module | holds |
|---|---|
| `copying` | `offload`: copies sealed segments that are not yet stored, and then writes the manifest |
| `manifest` | the objects of an offloaded log, and what they hold |
| `index` | the index object of a segment: where records begin, and when they were appended |
| `storage`, `local_files` | objects below a URL, through fsspec; durable files |
| `windows` | a part of a segment that is fetched in pieces, for the scans of segment files |

FORMAT.md describes names and bytes. fsspec is imported when a URL is opened.
"""
