"""Extension modules; everything else is in pyproject.toml.

PYREPLOG_SANITIZE=1 builds with AddressSanitizer and UndefinedBehaviorSanitizer (see `make sanitize`).
"""

import os

from Cython.Build import cythonize
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

NATIVE = "pyreplog/_native"
HEADERS = [
    f"{NATIVE}/{name}.h"
    for name in ("layout", "crc32c", "crc32c_words", "crc32c_streams", "crc32c_clmul", "populate", "pwrite")
]
COMPILE = [
    "-O3",
    "-g1",
    "-fvisibility=hidden",
    "-fno-strict-aliasing",
    "-Wall",
    "-Wextra",
    "-Wno-unused-parameter",
]
LINK: list[str] = []
CHECKSUMMING: set[str] = set()
if os.environ.get("PYREPLOG_SANITIZE"):
    SANITIZERS = [
        "-fsanitize=address,undefined",
        "-fno-sanitize-recover=undefined",
        "-fno-omit-frame-pointer",
    ]
    # -O0 compiles in a fifth of the time of -O1, and Python takes most of the time of a test. The -fwrapv of Python's
    # own flags would hide signed overflows.
    COMPILE = ["-O0", "-g1", "-fno-strict-aliasing", "-fno-wrapv", *SANITIZERS]
    LINK = SANITIZERS


class Build(build_ext):
    """Compiles what many modules share once, and the modules side by side."""

    def build_extensions(self) -> None:
        self.parallel = self.parallel or os.cpu_count()
        shared = self.compiler.compile(
            [f"{NATIVE}/crc32c.c"], output_dir=self.build_temp, include_dirs=[NATIVE], depends=HEADERS,
            extra_postargs=COMPILE,
        )  # fmt: skip
        for module in self.extensions:
            module.extra_objects = shared if module.name in CHECKSUMMING else []
        super().build_extensions()


def extension(name: str, *, checksums: bool = False) -> Extension:
    """`name` is its path; checksums: it links the CRC-32C kernels."""
    module = f"pyreplog._native.{name.replace('/', '.')}"
    if checksums:
        CHECKSUMMING.add(module)
    return Extension(
        module,
        [f"{NATIVE}/{name}.pyx"],
        depends=[*HEADERS, *([f"{NATIVE}/crc32c.c"] if checksums else [])],
        include_dirs=[NATIVE],
        extra_compile_args=COMPILE,
        extra_link_args=LINK,
    )


setup(
    cmdclass={"build_ext": Build},
    ext_modules=cythonize(
        [
            extension("system/checksum", checksums=True),
            extension("log/status", checksums=True),
            extension("log/attributes"),
            extension("log/record", checksums=True),
            extension("log/batch", checksums=True),
            extension("system/map_file"),
            extension("log/sparse", checksums=True),
            extension("log/segment_header", checksums=True),
            extension("log/segment", checksums=True),
            extension("log/tail_page"),
            extension("log/log_view_base", checksums=True),
            extension("log/log_follower_base", checksums=True),
            extension("log/append_arguments"),
            extension("log/group_buffer", checksums=True),
            extension("log/appender", checksums=True),
            extension("net/socket_io"),
            extension("system/polling"),
            extension("system/blocks"),
            extension("log/disk"),
            extension("log/pwrite"),
            extension("log/future"),
            extension("log/position_waiters"),
            extension("log/gate"),
            extension("log/group_commit_base"),
            extension("ha/parking"),
            extension("ha/loop_batches"),
            extension("system/interrupts"),
            extension("net/reactor_base"),
            extension("net/frame"),
            extension("log/log_position"),
            extension("ha/reports"),
            extension("ha/stream_receiver_base"),
            extension("ha/commit_point"),
            extension("ha/master_base"),
            extension("ha/client_batch", checksums=True),
            extension("ha/slave_offsets"),
            extension("quorum/quorum"),
            extension("quorum/ack_tracker"),
            extension("net/add_replies"),
            extension("machines/effects"),
            extension("machines/named_tuples"),
            extension("machines/serial_executor"),
            extension("machines/event_queue"),
            extension("ledger/driver_base"),
            extension("system/mutex"),
            extension("system/scheduling"),
            extension("net/send_queue"),
            extension("net/frame_feed_base"),
            extension("net/fast_path_receiver"),
            extension("net/pending_requests_base"),
            extension("ledger/remote_runtime_base"),
            extension("quorum/stripe"),
            extension("ledger_log/extents"),
            extension("ledger_log/index_file", checksums=True),
            extension("ledger_log/ledger_rows", checksums=True),
            extension("ledger_log/index", checksums=True),
            extension("ledger_log/sealed", checksums=True),
            extension("ledger_log/entries", checksums=True),
            extension("ledger/pending_adds_base", checksums=True),
            extension("ledger/ledger_writer_base", checksums=True),
            extension("ledger/staging"),
            extension("ledger/ledger_base", checksums=True),
            extension("bookie/inspect_records", checksums=True),
            extension("bookie/ledger_state_base"),
            extension("system/histogram"),
            extension("bookie/fast_add", checksums=True),
            extension("bookie/bookie_service_base"),
            extension("ledger_log/intake", checksums=True),
            extension("log/apply_replicated", checksums=True),
            extension("ledger_log/lending", checksums=True),
            extension("ledger_log/digest", checksums=True),
            extension("ledger_log/verification", checksums=True),
            extension("topic/rows"),
            extension("topic/ranges"),
            extension("topic/varint"),
            extension("topic/wire_fields", checksums=True),
            extension("topic/range_set"),
            extension("topic/ack_state"),
            extension("topic/ack_set"),
            extension("tables/arrow_columns", checksums=True),
            extension("topic/message_entry", checksums=True),
            extension("topic/message", checksums=True),
            extension("topic/message_columns", checksums=True),
            extension("topic/message_iterator", checksums=True),
            extension("topic/messages", checksums=True),
            extension("topic/prefetch_buffer", checksums=True),
            extension("tables/arrow_messages", checksums=True),
            extension("topic/message_fields"),
            extension("topic/message_encoder", checksums=True),
            extension("topic/partitioning"),
            extension("tables/column_runs"),
            extension("kafka/message_codec"),
            extension("kafka/request_parser"),
            extension("kafka/record_batch", checksums=True),
            extension("kafka/record_set", checksums=True),
            extension("kafka/murmur2"),
            extension("kafka/logged_batches", checksums=True),
            extension("kafka/log_cleaner", checksums=True),
            extension("kafka/transcode", checksums=True),
            extension("kafka/fetch_gather", checksums=True),
            extension("machines/purgatory_base"),
            extension("partition/leading_replica_base"),
            extension("partition/replica_role_base"),
            extension("partition/producer_states_base"),
            extension("partition/producer_state_manager_base"),
            extension("partition/partition_log_base", checksums=True),
            extension("partition/partition_base", checksums=True),
        ],
        compiler_directives={
            "language_level": "3",
            "boundscheck": False,
            "wraparound": False,
            "cdivision": True,
            "initializedcheck": False,
            "embedsignature": True,
            "auto_pickle": False,
            "autotestdict": False,
        },
        build_dir="build/cython",
    ),
)
