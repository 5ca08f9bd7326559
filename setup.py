"""Extension modules; everything else is in pyproject.toml.

PYREPLOG_SANITIZE=1 builds with AddressSanitizer and UndefinedBehaviorSanitizer (see `make sanitize`).
"""

import os

from Cython.Build import cythonize
from setuptools import Extension, setup

NATIVE = "pyreplog/_native"
HEADERS = [f"{NATIVE}/{name}.h" for name in ("layout", "crc32c", "crc32c_streams", "crc32c_clmul", "pwrite")]
COMPILE = [
    "-O3",
    "-g1",
    "-fvisibility=hidden",
    "-fno-strict-aliasing",
    "-Wall",
    "-Wextra",
    "-Wno-unused-parameter",
]
LINK = []
if os.environ.get("PYREPLOG_SANITIZE"):
    SANITIZERS = [
        "-fsanitize=address,undefined",
        "-fno-sanitize-recover=undefined",
        "-fno-omit-frame-pointer",
    ]
    COMPILE = ["-O1", "-g", "-fno-strict-aliasing", *SANITIZERS]
    LINK = SANITIZERS


def extension(name: str, *sources: str) -> Extension:
    return Extension(
        f"pyreplog._native.{name}",
        [f"{NATIVE}/{name}.pyx", *(f"{NATIVE}/{source}" for source in sources)],
        depends=HEADERS,
        include_dirs=[NATIVE],
        extra_compile_args=COMPILE,
        extra_link_args=LINK,
    )


setup(
    ext_modules=cythonize(
        [
            extension("checksum", "crc32c.c"),
            extension("status", "crc32c.c"),
            extension("attributes"),
            extension("record", "crc32c.c"),
            extension("batch", "crc32c.c"),
            extension("mapfile"),
            extension("sparse", "crc32c.c"),
            extension("segment", "crc32c.c"),
            extension("tail"),
            extension("reader", "crc32c.c"),
            extension("place", "crc32c.c"),
            extension("parts"),
            extension("appender", "crc32c.c"),
            extension("pump"),
            extension("blocks"),
            extension("disk"),
            extension("gate"),
            extension("interrupts"),
            extension("frame"),
            extension("quorum"),
            extension("answers"),
            extension("stripe"),
            extension("extents"),
            extension("index", "crc32c.c"),
            extension("sealed", "crc32c.c"),
            extension("entries", "crc32c.c"),
            extension("peek", "crc32c.c"),
            extension("plainadd", "crc32c.c"),
            extension("intake", "crc32c.c"),
            extension("landing", "crc32c.c"),
            extension("lending", "crc32c.c"),
            extension("rows"),
            extension("rangeset"),
            extension("ackstate"),
            extension("ackset"),
            extension("arrowcolumns", "crc32c.c"),
            extension("messageentry", "crc32c.c"),
            extension("message", "crc32c.c"),
            extension("messagecolumns", "crc32c.c"),
            extension("messages", "crc32c.c"),
            extension("handout", "crc32c.c"),
            extension("arrowmessages", "crc32c.c"),
            extension("messageencoder", "crc32c.c"),
            extension("spread"),
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
    )
)
