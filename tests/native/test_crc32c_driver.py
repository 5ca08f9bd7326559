"""crc32c.c in the C program crc32c_driver.c: on this CPU, under sanitizers, for 64-bit ARM in QEMU,
and its AVX-512 kernel with these instructions told in C."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from pyreplog._native.system import checksum

HERE = Path(__file__).parent
NATIVE = HERE.parents[1] / "pyreplog" / "_native"
WARNINGS = ["-Wall", "-Wextra", "-Werror"]


def run_driver(program: Path, compiler: list[str], emulator: list[str]) -> list[str]:
    """Compiles the driver to `program`, runs it, and returns the names of the kernels that are correct."""
    sources = [HERE / "crc32c_driver.c", NATIVE / "crc32c.c"]
    subprocess.run([*compiler, *WARNINGS, f"-I{NATIVE}", "-o", program, *sources], check=True)
    done = subprocess.run([*emulator, program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return [line.removesuffix(" ok") for line in done.stdout.splitlines()]


@pytest.mark.parametrize(
    "flags",
    [
        pytest.param(["-O3"], id="optimised"),
        pytest.param(["-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover"], id="sanitized"),
    ],
)
def test_crc32c_is_right_on_this_cpu(tmp_path: Path, flags: list[str]) -> None:
    tested = run_driver(tmp_path / "driver", ["gcc", *flags], [])
    assert sorted(tested) == sorted(checksum.kernels())


@pytest.mark.skipif("avx2" not in checksum.kernels(), reason="the shim is made of AVX2")
@pytest.mark.parametrize("flags", [["-O2"], ["-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover"]])
def test_crc32c_with_avx512_is_right_on_any_cpu(tmp_path: Path, flags: list[str]) -> None:
    """The widest kernel, its instructions told in C: few CPUs have them, and no emulator does."""
    compiler = ["gcc", *flags, "-Wno-psabi", "-include", str(HERE / "avx512_shim.h")]
    assert "avx512" in run_driver(tmp_path / "driver", compiler, [])


def test_crc32c_is_right_on_64_bit_arm(tmp_path: Path) -> None:
    compiler = ["aarch64-linux-gnu-gcc", "-O3", "-static"]
    assert run_driver(tmp_path / "driver", compiler, ["qemu-aarch64-static"]) == ["armv8", "portable"]


def test_driver_notices_a_wrong_kernel(tmp_path: Path) -> None:
    """A driver that could not fail would prove nothing: it must refuse kernels with another polynomial."""
    source = (NATIVE / "crc32c_words.h").read_text()
    assert "0x82f63b78u" in source
    (tmp_path / "crc32c_words.h").write_text(source.replace("0x82f63b78u", "0xedb88320u"))
    spoiled = shutil.copy(NATIVE / "crc32c.c", tmp_path)  # which finds the header beside it first
    program = tmp_path / "driver"
    sources = [HERE / "crc32c_driver.c", spoiled]
    subprocess.run(["gcc", "-O1", f"-I{NATIVE}", "-o", program, *sources], check=True)
    done = subprocess.run([program], capture_output=True, text=True)
    assert done.returncode == 1
    assert "wrong" in done.stderr
