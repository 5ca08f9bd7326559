from __future__ import annotations

import array
import itertools
import mmap
import os
import random
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import crc32c as reference
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyreplog._native.system import checksum
from pyreplog.errors import InvalidArgumentError

LINE = 64
GUARD = b"\xa5" * LINE
LONGEST = 4096
MESSAGE = random.Random(32).randbytes(LONGEST + 2 * LINE)

# Around every place where a kernel changes its way: words, vectors, blocks, streams.
EDGES = [
    0,
    1,
    3,
    4,
    5,
    7,
    8,
    9,
    15,
    16,
    24,
    25,
    32,
    63,
    64,
    65,
    127,
    128,
    129,
    191,
    192,
    193,
    255,
    256,
    257,
    263,
]
EDGES += [300, 511, 512, 513, 1023, 1024, 1025, 1151, 1152, 1535, 1536, 1537, 3071, 3072, 3073]

every_kernel = pytest.mark.parametrize("kernel", checksum.kernels())


def check_copy(kernel: str, data: memoryview, pad: int, value: int, offset: int) -> None:
    crc, runtime = checksum.copy_with(kernel, data, pad, value, offset=offset)
    assert runtime == b"".join([GUARD, data, bytes(pad), GUARD]), (len(data), pad, offset)
    assert crc == reference.crc32c(bytes(pad), reference.crc32c(data, value)), (len(data), pad, offset)


@every_kernel
def test_crc32c_has_known_values(kernel: str) -> None:
    assert checksum.crc32c_with(kernel, b"123456789") == 0xE3069283
    assert checksum.crc32c_with(kernel, b"") == 0
    assert checksum.crc32c_with(kernel, b"", 0xDEADBEEF) == 0xDEADBEEF
    # RFC 3720, B.4: 32 bytes of zeros, of ones, ascending, descending
    assert checksum.crc32c_with(kernel, bytes(32)) == 0x8A9136AA
    assert checksum.crc32c_with(kernel, b"\xff" * 32) == 0x62A8AB43
    assert checksum.crc32c_with(kernel, bytes(range(32))) == 0x46DD794E
    assert checksum.crc32c_with(kernel, bytes(reversed(range(32)))) == 0x113FDB5C


@every_kernel
def test_crc32c_is_right_for_every_length(kernel: str) -> None:
    values = random.Random(1)
    view = memoryview(MESSAGE)
    for length in range(LONGEST + 1):
        value = values.getrandbits(32)
        data = view[length % LINE :][:length]
        assert checksum.crc32c_with(kernel, data, value) == reference.crc32c(data, value), length
        check_copy(kernel, data, length * 5 % 8, value, length * 7 % LINE)


@every_kernel
def test_crc32c_is_right_for_every_alignment(kernel: str) -> None:
    view = memoryview(MESSAGE)
    for length, source in itertools.product(EDGES, range(LINE)):
        data = view[source:][:length]
        assert checksum.crc32c_with(kernel, data) == reference.crc32c(data), (length, source)
        check_copy(kernel, data, (source + length) % 8, length, (7 * source + length) % LINE)


@every_kernel
def test_crc32c_is_right_for_every_padding(kernel: str) -> None:
    view = memoryview(MESSAGE)
    for length, pad in itertools.product(range(300), range(8)):
        check_copy(kernel, view[length % 9 :][:length], pad, length, pad * 9)


@every_kernel
def test_crc32c_is_right_for_large_buffers(kernel: str) -> None:
    source = random.Random(2)
    message = memoryview(source.randbytes(3_000_000))
    for _ in range(6):
        start, pad = source.randrange(LINE), source.randrange(8)
        data = message[start : source.randrange(len(message))]
        value = source.getrandbits(32)
        assert checksum.crc32c_with(kernel, data, value) == reference.crc32c(data, value)
        check_copy(kernel, data, pad, value, source.randrange(LINE))


@given(st.binary(max_size=600), st.binary(max_size=600), st.sampled_from(checksum.kernels()))
def test_crc32c_continues_from_a_former_value(first: bytes, second: bytes, kernel: str) -> None:
    whole = checksum.crc32c(first + second)
    assert checksum.crc32c_with(kernel, second, checksum.crc32c_with(kernel, first)) == whole


def mapped(data: bytes) -> mmap.mmap:
    memory = mmap.mmap(-1, len(data))
    memory[:] = data
    return memory


@pytest.mark.parametrize(
    "buffer",
    [
        bytes,
        bytearray,
        memoryview,
        mapped,
        lambda data: array.array("I", data),
        lambda data: np.frombuffer(data, dtype=np.uint64),
        lambda data: type("Bytes", (bytes,), {})(data),
    ],
)
@pytest.mark.parametrize("length", [96, 100_000])
def test_crc32c_takes_any_buffer(buffer: Callable[[bytes], memoryview], length: int) -> None:
    data = random.Random(3).randbytes(length)
    assert checksum.crc32c(buffer(data), 7) == reference.crc32c(data, 7)


def test_crc32c_is_right_in_parallel_threads() -> None:
    messages = [bytes([i]) * (200_000 + i) for i in range(4)]
    results: dict[int, set[int]] = {i: set() for i in range(4)}

    def repeat(i: int) -> None:
        results[i] = {checksum.crc32c(messages[i]) for _ in range(20)}

    threads = [threading.Thread(target=repeat, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {i: {reference.crc32c(message)} for i, message in enumerate(messages)}


def kernels_with(environment: dict[str, str]) -> list[str]:
    clean = {name: value for name, value in os.environ.items() if name != "PYREPLOG_CRC32C"}
    program = (
        "from pyreplog._native.system import checksum\n"
        "assert checksum.crc32c(b'123456789') == 0xE3069283\n"
        "print(*checksum.kernels())"
    )
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, env=clean | environment, check=True, capture_output=True, text=True)
    return done.stdout.split()


def test_environment_chooses_the_kernel() -> None:
    fastest_first = kernels_with({})
    assert fastest_first[-1] == "portable"
    for kernel in fastest_first:
        others = [other for other in fastest_first if other != kernel]
        assert kernels_with({"PYREPLOG_CRC32C": kernel}) == [kernel, *others]


@pytest.mark.parametrize("name", ["", "AVX512", "itanium"])
def test_environment_with_an_unknown_kernel(name: str) -> None:
    assert kernels_with({"PYREPLOG_CRC32C": name}) == kernels_with({})


@pytest.mark.parametrize("name", ["", "itanium", "portable ", "\N{SNOWMAN}"])
def test_an_unknown_kernel_of_crc32c_is_refused(name: str) -> None:
    with pytest.raises(InvalidArgumentError, match="CRC-32C kernel: expected one of"):
        checksum.crc32c_with(name, b"")
    with pytest.raises(InvalidArgumentError, match="CRC-32C kernel: expected one of"):
        checksum.copy_with(name, b"")


@pytest.mark.parametrize("value", [-1, 1 << 32, 1 << 80])
def test_crc32c_refuses_a_former_value_out_of_range(value: int) -> None:
    with pytest.raises(InvalidArgumentError, match=f"found {value}"):
        checksum.crc32c(b"", value)


@pytest.mark.parametrize(("pad", "offset"), [(-1, 0), (8, 0), (0, -1), (0, 64)])
def test_copy_refuses_padding_out_of_range(pad: int, offset: int) -> None:
    with pytest.raises(InvalidArgumentError, match=f"found {pad} and {offset}"):
        checksum.copy_with("portable", b"", pad, offset=offset)


@pytest.mark.parametrize("arguments", [("text",), (b"", "0"), (b"", 0.5), (None,), ()])
def test_crc32c_refuses_wrong_types(arguments: tuple[Any, ...]) -> None:
    with pytest.raises(TypeError):
        checksum.crc32c(*arguments)
    with pytest.raises(TypeError):
        checksum.crc32c_with("portable", *arguments)


def test_crc32c_refuses_a_buffer_with_gaps() -> None:
    with pytest.raises(BufferError):
        checksum.crc32c(memoryview(bytes(100))[::2])
