"""Extension modules; everything else is in pyproject.toml.

PYREPLOG_SANITIZE=1 builds with AddressSanitizer and UndefinedBehaviorSanitizer (see `make sanitize`).
"""

import os

from Cython.Build import cythonize
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

NATIVE = "pyreplog/_native"
HEADERS = [
    f"{NATIVE}/{name}.h" for name in ("layout", "crc32c", "crc32c_streams", "crc32c_clmul", "populate", "pwrite")
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
    COMPILE = ["-O1", "-g", "-fno-strict-aliasing", *SANITIZERS]
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
    """checksums: it links the CRC-32C kernels."""
    if checksums:
        CHECKSUMMING.add(f"pyreplog._native.{name}")
    return Extension(
        f"pyreplog._native.{name}",
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
            extension("checksum", checksums=True),
            extension("status", checksums=True),
            extension("attributes"),
            extension("record", checksums=True),
            extension("batch", checksums=True),
            extension("mapfile"),
            extension("sparse", checksums=True),
            extension("segmentheader", checksums=True),
            extension("segment", checksums=True),
            extension("tail"),
            extension("reader", checksums=True),
            extension("place", checksums=True),
            extension("parts"),
            extension("groupbuffer", checksums=True),
            extension("appender", checksums=True),
            extension("pump"),
            extension("polling"),
            extension("blocks"),
            extension("disk"),
            extension("ack"),
            extension("submitted"),
            extension("gate"),
            extension("leading"),
            extension("parking"),
            extension("looprounds"),
            extension("interrupts"),
            extension("rounds"),
            extension("frame"),
            extension("mark"),
            extension("reports"),
            extension("committing"),
            extension("progress"),
            extension("quorum"),
            extension("acktracker"),
            extension("answers"),
            extension("effects"),
            extension("turns"),
            extension("driving"),
            extension("mutex"),
            extension("outbox"),
            extension("nextframe"),
            extension("arrivals"),
            extension("asking"),
            extension("remotes"),
            extension("stripe"),
            extension("extents"),
            extension("indexfile", checksums=True),
            extension("ledgerrows", checksums=True),
            extension("index", checksums=True),
            extension("sealed", checksums=True),
            extension("entries", checksums=True),
            extension("pushing", checksums=True),
            extension("writing", checksums=True),
            extension("staging"),
            extension("appending", checksums=True),
            extension("peek", checksums=True),
            extension("ledgerstate"),
            extension("histogram"),
            extension("plainadd", checksums=True),
            extension("answering"),
            extension("intake", checksums=True),
            extension("landing", checksums=True),
            extension("lending", checksums=True),
            extension("rows"),
            extension("ranges"),
            extension("varint"),
            extension("rangeset"),
            extension("ackstate"),
            extension("ackset"),
            extension("arrowcolumns", checksums=True),
            extension("messageentry", checksums=True),
            extension("message", checksums=True),
            extension("messagecolumns", checksums=True),
            extension("messageiterator", checksums=True),
            extension("messages", checksums=True),
            extension("handout", checksums=True),
            extension("arrowmessages", checksums=True),
            extension("messagefields"),
            extension("messageencoder", checksums=True),
            extension("spread"),
            extension("stretches"),
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
