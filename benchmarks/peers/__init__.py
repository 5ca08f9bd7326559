"""Other stores of entries that Python can call, doing the same work: one module each."""

from benchmarks.peers.file import PlainFile
from benchmarks.peers.leveldb import LevelDB
from benchmarks.peers.lmdb import Lmdb
from benchmarks.peers.ours import Pyreplog
from benchmarks.peers.peer import Peer, Work, load
from benchmarks.peers.persist_queue import PersistQueue
from benchmarks.peers.redis_streams import RedisStream
from benchmarks.peers.rocksdb import RocksDB
from benchmarks.peers.sqlite import SqliteWal

PEERS: dict[str, type[Peer]] = {
    peer.__name__: peer for peer in (Pyreplog, PlainFile, SqliteWal, Lmdb, RocksDB, LevelDB, PersistQueue, RedisStream)
}

__all__ = ["PEERS", "Peer", "Pyreplog", "Work", "load"]
