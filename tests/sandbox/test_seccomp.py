"""Verdicts of the seccomp filter, by an interpreter of classic BPF, for both processors."""

import errno
import re
import struct
from pathlib import Path
from typing import Final

import pytest

from perdure.sandbox.seccomp import ALLOW, KILL_PROCESS, PROCESSORS, REFUSED, seccomp_filter

MACHINES: Final = ("x86_64", "aarch64")
HEADERS: Final = {
    "x86_64": Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h"),
    "aarch64": Path("/usr/include/asm-generic/unistd.h"),
}
NUMBERS: Final = {  # x86_64, aarch64
    "read": (0, 63),
    "clone": (56, 220),
    "clone3": (435, 435),
    "execve": (59, 221),
    "ioctl": (16, 29),
    "openat": (257, 56),
    "personality": (135, 92),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "ptrace": (101, 117),
    "socket": (41, 198),
    "socketpair": (53, 199),
}


def verdict(machine: str, number: int, *arguments: int, audit: int | None = None) -> int:
    """Run the filter on one call, as the kernel does."""
    code = seccomp_filter(machine)
    assert code is not None
    program = list(struct.iter_unpack("=HBBI", code))
    words = [*arguments, *[0] * (6 - len(arguments))]
    data = struct.pack("=iIQ6Q", number, audit or PROCESSORS[machine].audit, 0, *words)
    value = position = 0
    while True:
        opcode, if_true, if_false, constant = program[position]
        position += 1
        match opcode:
            case 0x20:
                (value,) = struct.unpack_from("=I", data, constant)
            case 0x15:
                position += if_true if value == constant else if_false
            case 0x25:
                position += if_true if value > constant else if_false
            case 0x45:
                position += if_true if value & constant else if_false
            case _:
                assert opcode == 0x06
                return int(constant)


def error(number: int) -> int:
    return 0x00050000 | number


def call(machine: str, name: str, *arguments: int) -> int:
    return verdict(machine, NUMBERS[name][MACHINES.index(machine)], *arguments)


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize(
    "name, arguments, expected",
    [
        ("read", (), ALLOW),
        ("execve", (), ALLOW),
        ("openat", (), ALLOW),
        ("clone", (17,), ALLOW),  # a fork
        ("clone", (0x3D0F00,), ALLOW),  # a thread
        ("clone", (0x10000000 | 17,), error(errno.EPERM)),
        ("clone", (0x20000000,), error(errno.EPERM)),
        ("clone", (0x02000000,), error(errno.EPERM)),
        ("clone", (1 << 40 | 0x40000000,), error(errno.EPERM)),
        ("clone3", (), error(errno.ENOSYS)),
        ("socket", (1, 1, 0), ALLOW),
        ("socket", (2, 1, 6), ALLOW),
        ("socket", (10, 2, 17), ALLOW),
        ("socket", (1 << 32 | 16, 3, 0), error(errno.EAFNOSUPPORT)),
        ("socket", (40, 1, 0), error(errno.EAFNOSUPPORT)),
        ("socket", (0xFFFFFFFF, 1, 0), error(errno.EAFNOSUPPORT)),
        ("socket", (2, 1, 132), error(errno.EPROTONOSUPPORT)),
        ("socketpair", (1, 1, 0), ALLOW),
        ("socketpair", (30, 1, 0), error(errno.EAFNOSUPPORT)),
        ("ioctl", (0, 0x5401), ALLOW),
        ("ioctl", (0, 0x5412), error(errno.EPERM)),
        ("ioctl", (0, 1 << 32 | 0x5412), error(errno.EPERM)),  # the kernel takes 32 bits
        ("ioctl", (0, 0x541C), error(errno.EPERM)),
        ("personality", (0xFFFFFFFF,), ALLOW),
        ("personality", (0x0008,), error(errno.EPERM)),
        ("ptrace", (16, 5), ALLOW),
        ("ptrace", (16, 1), error(errno.EPERM)),
        ("process_vm_readv", (5,), ALLOW),
        ("process_vm_readv", (1,), error(errno.EPERM)),
        ("process_vm_writev", (1 << 32 | 1,), error(errno.EPERM)),
    ],
)
def test_a_call_is_judged_by_its_arguments(
    machine: str, name: str, arguments: tuple[int, ...], expected: int
) -> None:
    assert call(machine, name, *arguments) == expected


@pytest.mark.parametrize("machine", MACHINES)
def test_the_listed_calls_are_refused_and_newer_ones_do_not_exist(machine: str) -> None:
    for numbers in REFUSED.values():
        if (number := numbers[MACHINES.index(machine)]) is not None:
            assert verdict(machine, number) == error(errno.EPERM)
    assert verdict(machine, 469) == ALLOW
    assert verdict(machine, 470) == error(errno.ENOSYS)


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("audit", [0x40000003, 0x40000028, 0xC000003E, 0xC00000B7])
def test_calls_of_another_interface_end_the_process(machine: str, audit: int) -> None:
    expected = ALLOW if audit == PROCESSORS[machine].audit else KILL_PROCESS
    assert verdict(machine, NUMBERS["read"][MACHINES.index(machine)], audit=audit) == expected


def test_the_x32_interface_ends_the_process() -> None:
    assert verdict("x86_64", 0x40000000 | 39) == KILL_PROCESS


def test_another_processor_has_no_filter() -> None:
    assert seccomp_filter("riscv64") is None


@pytest.mark.parametrize("machine", MACHINES)
def test_the_numbers_are_those_of_the_kernel(machine: str) -> None:
    if not HEADERS[machine].exists():
        pytest.skip("the headers of the kernel are not installed (Debian: linux-libc-dev)")
    pattern = r"#define __NR(?:3264)?_(\w+)\s+(\d+)"
    numbers = {
        name: int(number) for name, number in re.findall(pattern, HEADERS[machine].read_text())
    }
    column = MACHINES.index(machine)
    listed = {name: pair[column] for name, pair in {**REFUSED, **NUMBERS}.items()}
    wrong = {
        name: number
        for name, number in listed.items()
        if name in numbers and numbers[name] != number
    }
    assert not wrong
    assert len(set(listed) & set(numbers)) > 50
