"""The seccomp filter: kernel calls that a command does not need are refused.

Namespaces do not cover everything: without a filter a command could open vsock and netlink sockets,
use io_uring, bpf, keyrings and the 32-bit interface, and take control of the first process of its
pid namespace. The filter is assembled here as classic BPF, for x86_64 and aarch64.
"""

import errno
import platform
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final

# Opcodes of classic BPF.
LOAD: Final = 0x20  # BPF_LD | BPF_W | BPF_ABS
IF_EQUAL: Final = 0x15  # BPF_JMP | BPF_JEQ | BPF_K
IF_GREATER: Final = 0x25  # BPF_JMP | BPF_JGT | BPF_K
IF_ANY_BIT: Final = 0x45  # BPF_JMP | BPF_JSET | BPF_K
RETURN: Final = 0x06  # BPF_RET | BPF_K

ALLOW: Final = 0x7FFF0000
KILL_PROCESS: Final = 0x80000000

# Offsets in struct seccomp_data; of an argument, the lower half on a little-endian processor.
NUMBER: Final = 0
ARCHITECTURE: Final = 4

NAMESPACE_FLAGS: Final = 0x7E020000  # CLONE_NEWNS, CGROUP, UTS, IPC, USER, PID and NET
FAMILIES: Final = (1, 2, 10)  # AF_UNIX, AF_INET, AF_INET6
PROTOCOLS: Final = (0, 1, 6, 17, 58)  # default, ICMP, TCP, UDP, ICMPv6: the rest loads modules
TERMINAL_INPUT: Final = (0x5412, 0x541C)  # TIOCSTI, TIOCLINUX
PERSONALITIES: Final = (0, 0x40000, 0xFFFFFFFF)  # Linux, without randomized addresses, a query
LAST_NUMBER: Final = 469  # newer calls do not exist for a command, until this list knows them

# Numbers of the calls: x86_64, aarch64; None where a processor does not have the call.
REFUSED: Final[dict[str, tuple[int | None, int | None]]] = {
    "acct": (163, 89),
    "add_key": (248, 217),
    "adjtimex": (159, 171),
    "bpf": (321, 280),
    "chroot": (161, 51),
    "clock_adjtime": (305, 266),
    "clock_settime": (227, 112),
    "delete_module": (176, 106),
    "fanotify_init": (300, 262),
    "finit_module": (313, 273),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fsopen": (430, 430),
    "fspick": (433, 433),
    "init_module": (175, 105),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "io_uring_setup": (425, 425),
    "ioperm": (173, None),
    "iopl": (172, None),
    "kexec_file_load": (320, 294),
    "kexec_load": (246, 104),
    "keyctl": (250, 219),
    "lookup_dcookie": (212, 18),
    "modify_ldt": (154, None),
    "mount": (165, 40),
    "mount_setattr": (442, 442),
    "move_mount": (429, 429),
    "name_to_handle_at": (303, 264),
    "nfsservctl": (180, 42),
    "open_by_handle_at": (304, 265),
    "open_tree": (428, 428),
    "open_tree_attr": (467, 467),
    "perf_event_open": (298, 241),
    "pidfd_getfd": (438, 438),
    "pivot_root": (155, 41),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "reboot": (169, 142),
    "request_key": (249, 218),
    "setdomainname": (171, 162),
    "sethostname": (170, 161),
    "setns": (308, 268),
    "settimeofday": (164, 170),
    "swapoff": (168, 225),
    "swapon": (167, 224),
    "syslog": (103, 116),
    "umount2": (166, 39),
    "unshare": (272, 97),
    "uselib": (134, None),
    "userfaultfd": (323, 282),
    "vhangup": (153, 58),
}
# Calls that some arguments are refused for.
CLONE: Final = (56, 220)
CLONE3: Final = (435, 435)
SOCKET: Final = (41, 198)
SOCKETPAIR: Final = (53, 199)
IOCTL: Final = (16, 29)
PERSONALITY: Final = (135, 92)
PTRACE: Final = (101, 117)
PROCESS_VM: Final = ((310, 270), (311, 271))  # process_vm_readv, process_vm_writev

Instruction = tuple[int, int, int, int]  # opcode, jump if true, jump if false, constant


@dataclass(frozen=True, slots=True)
class Processor:
    """An architecture: its audit number, its column in the tables, and its second interface."""

    audit: int
    column: int
    has_x32: bool = False


PROCESSORS: Final = {
    "x86_64": Processor(0xC000003E, 0, has_x32=True),
    "aarch64": Processor(0xC00000B7, 1),
}
X32_BIT: Final = 0x40000000


@cache
def seccomp_filter(
    machine: str | None = None, families: tuple[int, ...] = FAMILIES
) -> bytes | None:
    """Return the filter for a processor, this one by default; None if there is no table for it."""
    processor = PROCESSORS.get(machine or platform.machine())
    if processor is None:
        return None
    program = _program(processor, families)
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in program)


def _program(processor: Processor, families: Sequence[int]) -> list[Instruction]:
    column = processor.column
    program: list[Instruction] = [
        (LOAD, 0, 0, ARCHITECTURE),
        (IF_EQUAL, 1, 0, processor.audit),
        (RETURN, 0, 0, KILL_PROCESS),  # such as the 32-bit interface, with numbers of its own
        (LOAD, 0, 0, NUMBER),
    ]
    if processor.has_x32:
        program += [(IF_ANY_BIT, 0, 1, X32_BIT), (RETURN, 0, 0, KILL_PROCESS)]
    program += [(IF_GREATER, 0, 1, LAST_NUMBER), (RETURN, 0, 0, _error(errno.ENOSYS))]
    for numbers in REFUSED.values():
        if (number := numbers[column]) is not None:
            program += [(IF_EQUAL, 0, 1, number), (RETURN, 0, 0, _error(errno.EPERM))]
    # Its flags are behind a pointer. Without it, libraries use clone.
    program += [(IF_EQUAL, 0, 1, CLONE3[column]), (RETURN, 0, 0, _error(errno.ENOSYS))]
    for call, body in _checks(families):
        program += _on_call(call[column], body)
    return [*program, (RETURN, 0, 0, ALLOW)]


def _checks(families: Sequence[int]) -> Iterable[tuple[tuple[int, int], list[Instruction]]]:
    """Yield the calls whose arguments are checked, with the check."""
    flags: list[Instruction] = [
        (LOAD, 0, 0, _argument(0)),
        (IF_ANY_BIT, 0, 1, NAMESPACE_FLAGS),
        (RETURN, 0, 0, _error(errno.EPERM)),
    ]
    first_process = _refuse(1, (1,), errno.EPERM)
    yield CLONE, flags
    for call in (SOCKET, SOCKETPAIR):
        family = _accept(0, families, errno.EAFNOSUPPORT)
        yield call, [*family, *_accept(2, PROTOCOLS, errno.EPROTONOSUPPORT)]
    yield IOCTL, _refuse(1, TERMINAL_INPUT, errno.EPERM)
    yield PERSONALITY, _accept(0, PERSONALITIES, errno.EPERM)
    # Process 1 of the pid namespace ends the others when the runtime dies: hands off.
    yield PTRACE, first_process
    for call in PROCESS_VM:
        yield call, _refuse(0, (1,), errno.EPERM)


def _on_call(number: int, body: Sequence[Instruction]) -> list[Instruction]:
    """Run `body` for one call; it returns a verdict, or falls through and the call is allowed."""
    return [(IF_EQUAL, 0, len(body) + 1, number), *body, (RETURN, 0, 0, ALLOW)]


def _accept(position: int, values: Sequence[int], error: int) -> list[Instruction]:
    """Refuse the call unless the argument is one of the values."""
    tests = [(IF_EQUAL, len(values) - index, 0, value) for index, value in enumerate(values)]
    return [(LOAD, 0, 0, _argument(position)), *tests, (RETURN, 0, 0, _error(error))]


def _refuse(position: int, values: Sequence[int], error: int) -> list[Instruction]:
    """Refuse the call if the argument is one of the values."""
    program: list[Instruction] = [(LOAD, 0, 0, _argument(position))]
    for value in values:
        program += [(IF_EQUAL, 0, 1, value), (RETURN, 0, 0, _error(error))]
    return program


def _argument(position: int) -> int:
    return 16 + 8 * position


def _error(number: int) -> int:
    return 0x00050000 | number
