"""Attacks on a sandbox, run inside it by a plain python3: each one in a process of its own.

Usage: python3 attack_program.py TARGETS.json. Prints one JSON line per attack: its name, `ran`, and
`breach` with what it reached, or `stopped` with the error that stopped it. Nothing here writes to a
setting of the host: such files are opened for append and closed again.
"""

import ctypes
import errno
import json
import mmap
import os
import platform
import resource
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

TARGETS = json.loads(open(sys.argv[1]).read())
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
X86 = platform.machine() == "x86_64"
NUMBERS = {
    "bpf": 321 if X86 else 280,
    "perf_event_open": 298 if X86 else 241,
    "io_uring_setup": 425,
    "userfaultfd": 323 if X86 else 282,
    "keyctl": 250 if X86 else 219,
    "clone3": 435,
    "ptrace": 101 if X86 else 117,
    "process_vm_readv": 310 if X86 else 270,
    "process_vm_writev": 311 if X86 else 271,
    "unshare": 272 if X86 else 97,
    "setns": 308 if X86 else 268,
    "shmget": 29 if X86 else 194,
    "syslog": 103 if X86 else 116,
    "clone": 56 if X86 else 220,
}
ATTACKS: dict[str, Callable[[], str]] = {}


class Stopped(Exception):
    """The attack was stopped, for this reason."""


def attack(function: Callable[[], str]) -> Callable[[], str]:
    ATTACKS[function.__name__] = function
    return function


def syscall(name: str, *arguments: Any) -> int:
    """Make a raw system call. Raises OSError."""
    result = libc.syscall(NUMBERS[name], *arguments)
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return int(result)


def each(attempts: Iterable[Callable[[], str]]) -> str:
    """Run every attempt: any success is a breach, all failures together are the reason."""
    reasons = []
    for attempt in attempts:
        try:
            return attempt()
        except (OSError, Stopped) as error:
            reasons.append(reason(error))
    raise Stopped(", ".join(dict.fromkeys(reasons)))


def reason(error: BaseException) -> str:
    return errno.errorcode.get(getattr(error, "errno", None) or -1, str(error))


def read(path: str) -> str:
    with open(path, "rb") as file:
        return "read " + file.read(64).decode(errors="replace")


def append(path: str) -> str:
    with open(path, "ab"):
        return f"opened {path} for writing"


def create(path: str) -> str:
    with open(path, "w") as file:
        file.write("x")
    os.unlink(path)
    return f"created {path}"


# ---- Files ---------------------------------------------------------------------------------------


@attack
def see_shadow() -> str:
    os.stat("/etc/shadow")
    return "sees /etc/shadow"


@attack
def read_host_file() -> str:
    return read(TARGETS["file"])


@attack
def read_sibling_workspace() -> str:
    return read(TARGETS["sibling"] + "/file")


@attack
def write_sibling_workspace() -> str:
    return create(TARGETS["sibling"] + "/new")


@attack
def delete_in_sibling_workspace() -> str:
    os.unlink(TARGETS["sibling"] + "/victim")
    return "deleted a file of a sibling"


@attack
def write_outside() -> str:
    folders = ["/usr", "/etc", "/", "/usr/local/bin", "/var", "/run", TARGETS["folder"]]
    return each(partial(create, f"{folder}/perdure-x") for folder in folders)


@attack
def follow_link_out() -> str:
    link = "link-out"
    if not os.path.lexists(link):
        os.symlink(TARGETS["file"], link)
    return each([lambda: read(link), lambda: append(link)])


@attack
def link_outside_file() -> str:
    os.link(TARGETS["file"], "hard-link")
    os.unlink("hard-link")
    return "made a hard link"


@attack
def change_mode_outside() -> str:
    os.chmod(TARGETS["file"], 0o644)
    os.utime(TARGETS["file"])
    return "changed mode and times"


@attack
def ask_for_existence() -> str:
    os.stat(TARGETS["file"])
    return "learned that it exists"


@attack
def escape_by_path() -> str:
    file = TARGETS["file"]
    prefixes = ["../" * 30, "/proc/self/root", "/proc/self/cwd/" + "../" * 30]
    prefixes += [f"/proc/{pid}/root" for pid in (1, os.getppid(), TARGETS["pid"])]
    prefixes += [f"/proc/{TARGETS['pid']}/cwd/" + "../" * 30]
    return each(partial(read, prefix + file) for prefix in prefixes)


@attack
def open_by_handle() -> str:
    """Look for the decoy by numbers of inodes, as a handle can be guessed."""
    buffer = ctypes.create_string_buffer(struct.pack("II", 128, 0) + bytes(128))
    mount = ctypes.c_int()
    if libc.name_to_handle_at(-100, b"/", buffer, ctypes.byref(mount), 0):
        raise OSError(ctypes.get_errno(), "name_to_handle_at")
    return "got a file handle"


# ---- Processes -----------------------------------------------------------------------------------


@attack
def read_environments() -> str:
    for name in os.listdir("/proc"):
        try:
            if name.isdigit() and b"decoy-secret" in open(f"/proc/{name}/environ", "rb").read():
                return "read the environment of a host process"
        except OSError:
            pass
    if any("decoy-secret" in value for value in os.environ.values()):
        return "inherited a variable"
    raise Stopped("no secret")


@attack
def use_inherited_descriptor() -> str:
    for name in os.listdir("/proc/self/fd"):
        try:
            if int(name) > 2 and b"decoy" in os.pread(int(name), 64, 0):
                return f"read descriptor {name}"
        except OSError:
            pass
    raise Stopped("no descriptor")


@attack
def read_memory_of_host_process() -> str:
    pid, address = TARGETS["pid"], TARGETS["address"]

    def by_ptrace() -> str:
        syscall("ptrace", 0x4206, pid, 0, 0)  # PTRACE_SEIZE
        return "seized a host process"

    def by_file() -> str:
        with open(f"/proc/{pid}/mem", "rb") as file:
            file.seek(address)
            return "read memory " + file.read(12).decode()

    def by_vm_read() -> str:
        buffer = ctypes.create_string_buffer(12)
        local = (ctypes.c_ulong * 2)(ctypes.addressof(buffer), 12)
        remote = (ctypes.c_ulong * 2)(address, 12)
        syscall(
            "process_vm_readv",
            pid,
            local,
            ctypes.c_long(1),
            remote,
            ctypes.c_long(1),
            ctypes.c_long(0),
        )
        return "read memory " + buffer.raw.decode()

    return each([by_ptrace, by_file, by_vm_read])


@attack
def control_first_process() -> str:
    """Process 1 could be made to outlive the runtime."""

    def by_ptrace() -> str:
        syscall("ptrace", 0x4206, 1, 0, 0)
        return "seized process 1"

    def by_vm_write() -> str:
        buffer = ctypes.create_string_buffer(8)
        local = (ctypes.c_ulong * 2)(ctypes.addressof(buffer), 1)
        nowhere = (ctypes.c_ulong * 2)(0, 1)
        return reached(
            "process_vm_writev", 1, local, *(ctypes.c_long(1), nowhere), *map(ctypes.c_long, (1, 0))
        )

    return each([by_ptrace, by_vm_write, lambda: append("/proc/1/mem")])


@attack
def signal_host_process() -> str:
    os.kill(TARGETS["pid"], signal.SIGUSR1)
    return "signaled a host process"


@attack
def use_sysv_memory() -> str:
    syscall("shmget", TARGETS["shm_key"], ctypes.c_long(0), 0)
    return "found a shared memory segment of the host"


# ---- Privileges ----------------------------------------------------------------------------------


@attack
def mount_file_system() -> str:
    def mount(source: bytes | None, target: bytes, kind: bytes | None, flags: int) -> str:
        if libc.mount(source, target, kind, ctypes.c_ulong(flags), None):
            raise OSError(ctypes.get_errno(), "mount")
        return f"mounted {target.decode()}"

    return each(
        [
            lambda: mount(b"none", b"/tmp", b"tmpfs", 0),
            lambda: mount(None, b"/", None, 32),  # MS_REMOUNT, read-write
            lambda: mount(None, b"/usr", None, 32 | 4096),
        ]
    )


@attack
def create_user_namespace() -> str:
    def by_clone(name: str, *arguments: Any) -> str:
        pid = syscall(name, *arguments)
        if pid == 0:
            os._exit(0)
        os.waitpid(pid, 0)
        return f"{name} made a namespace"

    flags = 0x10000000 | signal.SIGCHLD
    clone3 = (ctypes.c_uint64 * 11)(0x10000000, 0, 0, 0, signal.SIGCHLD)

    def by_unshare() -> str:
        syscall("unshare", 0x10000000)
        return "unshare made a namespace"

    return each(
        [
            by_unshare,
            lambda: by_clone("clone", ctypes.c_ulong(flags), 0, 0, 0, 0),
            lambda: by_clone("clone3", clone3, ctypes.c_ulong(88)),
        ]
    )


@attack
def make_device() -> str:
    os.mknod("device", 0o660 | 0o060000, os.makedev(7, 0))
    return "made a block device"


@attack
def gain_privileges() -> str:
    status = open("/proc/self/status").read()
    if TARGETS["setuid"]:
        out = subprocess.run([TARGETS["setuid"], "-u"], capture_output=True, text=True, check=True)
        if out.stdout.strip() == "0":
            return "a setuid program ran as root"
    if "NoNewPrivs:\t1" not in status:
        return "may gain privileges"
    raise Stopped("no gain")


@attack
def keep_capabilities() -> str:
    status = open("/proc/self/status").read()
    if "CapBnd:\t0000000000000000" not in status:
        return "has a bounding set"
    raise Stopped("no capability")


# ---- Network -------------------------------------------------------------------------------------


@attack
def connect_tcp() -> str:
    addresses = [("127.0.0.1", TARGETS["tcp"]), ("localhost", TARGETS["tcp"])]
    addresses += [(address, TARGETS["tcp"]) for address in TARGETS["addresses"]]

    def connect(address: tuple[str, int]) -> str:
        with socket.create_connection(address, 3) as connection:
            return "connected, and got " + connection.recv(16).decode()

    return each(partial(connect, address) for address in addresses)


@attack
def send_udp() -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.settimeout(1)
        sender.sendto(b"hello", ("127.0.0.1", TARGETS["udp"]))
        return "sent, and got " + sender.recv(16).decode()


@attack
def connect_abstract_socket() -> str:
    with socket.socket(socket.AF_UNIX) as client:
        client.connect("\0" + TARGETS["abstract"])
        return "connected to an abstract socket"


@attack
def connect_path_socket() -> str:
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(TARGETS["socket"])
        return "connected to a socket of the host"


@attack
def open_socket_family() -> str:
    families = {"netlink": (16, 3, 0), "packet": (17, 2, 0), "vsock": (40, 1, 0), "alg": (38, 5, 0)}

    def open_socket(name: str) -> str:
        socket.socket(*families[name]).close()
        return f"opened a {name} socket"

    return each(partial(open_socket, name) for name in families)


@attack
def load_protocol_module() -> str:
    """Other protocols than those of the web make the kernel load modules."""
    attempts = [(2, 1, 132), (2, 6, 33), (2, 5, 132), (2, 2, 136), (2, 1, 262)]
    reasons = []
    for family, kind, protocol in attempts:
        try:
            socket.socket(family, kind, protocol).close()
        except OSError as error:
            reasons.append(reason(error))
        else:
            return f"opened protocol {protocol}"
    raise Stopped(", ".join(dict.fromkeys(reasons)))


# ---- Kernel --------------------------------------------------------------------------------------


def reached(name: str, *arguments: Any) -> str:
    """A call that the filter does not stop gets to the check of its arguments."""
    try:
        syscall(name, *arguments)
    except OSError as error:
        if error.errno in (errno.EPERM, errno.ENOSYS, errno.EACCES):
            raise
        return f"{name} reached the kernel: {reason(error)}"
    return f"{name} works"


@attack
def call_bpf() -> str:
    return reached("bpf", 0, ctypes.create_string_buffer(8192), ctypes.c_uint(8192))


@attack
def call_perf() -> str:
    return reached("perf_event_open", None, 0, -1, -1, 0)


@attack
def call_io_uring() -> str:
    return reached("io_uring_setup", 1, None)


@attack
def call_userfaultfd() -> str:
    return reached("userfaultfd", 1)


@attack
def call_keyctl() -> str:
    return reached("keyctl", 0, ctypes.c_long(-3), 1)


@attack
def call_newer() -> str:
    return each(partial(newer, number) for number in (470, 471, 480, 1000))


def newer(number: int) -> str:
    if libc.syscall(number, 0, 0, 0, 0, 0, 0) >= 0 or ctypes.get_errno() != errno.ENOSYS:
        return f"call {number} exists"
    raise Stopped("ENOSYS")


def run_code(code: bytes) -> int:
    """Run machine code in a process of its own, and return how it ended."""
    pid = os.fork()
    if pid == 0:
        page = mmap.mmap(-1, 4096, prot=7)
        page.write(code)
        address = ctypes.addressof(ctypes.c_char.from_buffer(page))
        os._exit(0 if ctypes.CFUNCTYPE(ctypes.c_int)(address)() > 0 else 1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@attack
def call_32_bit() -> str:
    if not X86:
        raise Stopped("not an x86 processor")
    end = run_code(b"\xb8\x14\x00\x00\x00\xcd\x80\xc3")  # mov eax, 20 (getpid); int 0x80; ret
    if end == 0:
        return "the 32-bit interface works"
    raise Stopped("SIGSYS" if end == -signal.SIGSYS else f"ended with {end}")


@attack
def call_x32() -> str:
    if not X86:
        raise Stopped("not an x86 processor")
    pid = os.fork()
    if pid == 0:
        libc.syscall(0x40000000 | 39)
        os._exit(1 if ctypes.get_errno() == errno.ENOSYS else 0)
    end = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if end >= 0:
        return "the x32 interface reached the kernel"
    raise Stopped("SIGSYS")


@attack
def open_host_setting() -> str:
    """Opened for append only, and never written."""
    paths = ["/proc/sys/kernel/core_pattern", "/proc/sysrq-trigger", "/proc/sys/vm/drop_caches"]
    paths += ["/sys/kernel/uevent_helper", "/dev/kmsg", "/proc/sys/kernel/modprobe", "/dev/mem"]
    return each(partial(append, path) for path in paths)


@attack
def open_own_setting() -> str:
    for folder, _, names in os.walk("/proc/sys"):
        for name in names:
            try:
                return append(os.path.join(folder, name))
            except OSError:
                pass
    raise Stopped("none can be opened")


@attack
def read_kernel_log() -> str:
    buffer = ctypes.create_string_buffer(16)
    syscall("syslog", 3, buffer, 16)
    return "read the kernel log"


@attack
def set_host_name() -> str:
    name = socket.gethostname().encode()
    if libc.sethostname(name, ctypes.c_size_t(len(name))):
        raise OSError(ctypes.get_errno(), "sethostname")
    return "set the host name"


@attack
def push_terminal_input() -> str:
    """TIOCSTI on a terminal of our own: whether the call gets to the kernel."""
    _, terminal = os.openpty()
    pid = os.fork()
    if pid == 0:
        import fcntl

        os.setsid()
        try:
            fcntl.ioctl(terminal, 0x540E, 0)  # TIOCSCTTY
            fcntl.ioctl(terminal, 0x5412, b"x")  # TIOCSTI
        except OSError as error:
            os._exit(error.errno or 1)
        os._exit(0)
    end = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if end != errno.EPERM:
        return f"TIOCSTI reached the kernel: {errno.errorcode.get(end, end)}"
    raise Stopped("EPERM")


@attack
def open_terminal() -> str:
    return append("/dev/tty")


# ---- Limits --------------------------------------------------------------------------------------


@attack
def fork_bomb() -> str:
    pids: list[int] = []
    try:
        while len(pids) < 600:
            pid = os.fork()
            if pid == 0:
                signal.pause()
                os._exit(0)
            pids.append(pid)
    except OSError as error:
        raise Stopped(f"{reason(error)} at {len(pids)}") from None
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        for pid in pids:
            os.waitpid(pid, 0)
    return "made 600 processes"


@attack
def raise_limits() -> str:
    for kind in (resource.RLIMIT_NPROC, resource.RLIMIT_NOFILE, resource.RLIMIT_FSIZE):
        _, most = resource.getrlimit(kind)
        if most == resource.RLIM_INFINITY:
            return "has no limit"
        try:
            resource.setrlimit(kind, (most + 1, most + 1))
        except (OSError, ValueError):
            continue
        return "raised a limit"
    raise Stopped("EPERM")


@attack
def open_many_files() -> str:
    files: list[Any] = []
    try:
        while len(files) < 3000:
            files.append(open("/dev/null"))
    except OSError as error:
        raise Stopped(f"{reason(error)} at {len(files)}") from None
    return "opened 3000 files"


@attack
def map_memory() -> str:
    try:
        mmap.mmap(-1, 3 << 30).close()  # not touched
    except OSError as error:
        raise Stopped(reason(error)) from None
    return "mapped 3 GB"


@attack
def write_large_file() -> str:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        with open("large", "wb", buffering=0) as file:
            file.writelines([bytes(1 << 20)] * 40)
    finally:
        os.unlink("large")
    return "wrote 40 MB into one file"


@attack
def fill_memory_disks() -> str:
    """Fill what is not the workspace: each place must end before 40 MB."""
    for folder in ("/tmp", "/dev/shm", "/dev", "/run", "/var", "/", "/etc", "/dev/pts"):
        names = []
        try:
            for index in range(4):
                names.append(f"{folder}/fill-{index}")
                with open(names[-1], "wb", buffering=0) as file:
                    file.writelines([bytes(1 << 20)] * 10)
        except OSError:
            continue
        finally:
            for name in names:
                if os.path.exists(name):
                    os.unlink(name)
        return f"wrote 40 MB into {folder}"
    raise Stopped("ENOSPC or EROFS")


# ---- Runner --------------------------------------------------------------------------------------


def run(name: str) -> None:
    """Run an attack in a process of its own and report about it."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            report = {"breach": ATTACKS[name]()}
        except (OSError, Stopped) as error:
            report = {"stopped": reason(error)}
        except BaseException as error:  # noqa: BLE001
            report = {"error": repr(error)}
        os.write(writer, json.dumps({"name": name, "ran": True, **report}).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as file:
        text = file.read()
    end = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if not text:
        text = json.dumps({"name": name, "ran": True, "stopped": f"ended with {end}"}).encode()
    print(text.decode(), flush=True)


for name in TARGETS.get("only") or ATTACKS:
    run(name)
