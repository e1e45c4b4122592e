"""The launcher of the sandbox landlock: a small program that confines itself, then the command.

It runs without perdure, site-packages and the environment. Its first argument names the descriptor
of its settings; the second one takes its error. When the command starts, both are closed.
"""

import ctypes
import errno
import sys
from typing import Final

CREATE_RULESET: Final = 444  # on every processor
VERSION_FLAG: Final = 1

LAUNCHER: Final = """
import base64, ctypes, json, os, sys
settings_fd, error_fd = map(int, sys.argv[1:])
libc = ctypes.CDLL(None, use_errno=True)

def check(result, name):
    if result < 0:
        raise OSError(ctypes.get_errno(), f"{name}: {os.strerror(ctypes.get_errno())}")
    return result

def call(number, name, *arguments):
    return check(libc.syscall(number, *arguments), name)

def drop_root(uid, gid):
    if os.geteuid() == 0:
        os.setgroups([])
        os.setresgid(gid, gid, gid)
        os.setresuid(uid, uid, uid)

def restrict_files(abi, readable, writable):
    every = (1 << 13) - 1 | (1 << 13 if abi >= 2 else 0) | (1 << 14 if abi >= 3 else 0)
    every |= 1 << 15 if abi >= 5 else 0
    of_files = 1 | 2 | 4 | every & (1 << 14 | 1 << 15)
    read = 1 | 4 | 8  # execute, read files, list folders
    attributes = (ctypes.c_uint64 * 3)(every, 0, 3 if abi >= 6 else 0)
    size = 24 if abi >= 6 else 16 if abi >= 4 else 8
    ruleset = call(444, "landlock_create_ruleset", attributes, ctypes.c_size_t(size), 0)
    for paths, rights in ((readable, read), (writable, every)):
        for path in paths:
            try:
                place = os.open(path, os.O_PATH | os.O_CLOEXEC)
            except FileNotFoundError:
                continue
            allowed = rights if os.path.isdir(path) else rights & of_files
            rule = allowed.to_bytes(8, sys.byteorder) + place.to_bytes(4, sys.byteorder)
            call(445, "landlock_add_rule", ruleset, 1, ctypes.create_string_buffer(rule), 0)
            os.close(place)
    call(446, "landlock_restrict_self", ruleset, 0)
    os.close(ruleset)

def filter_calls(code):
    class Program(ctypes.Structure):
        _fields_ = [("size", ctypes.c_ushort), ("code", ctypes.c_void_p)]
    buffer = ctypes.create_string_buffer(code, len(code))
    program = Program(len(code) // 8, ctypes.addressof(buffer))
    check(libc.prctl(22, 2, ctypes.byref(program), 0, 0), "seccomp")

try:
    os.set_inheritable(error_fd, False)
    with os.fdopen(settings_fd, "rb") as file:
        settings = json.load(file)
    drop_root(settings["uid"], settings["gid"])
    check(libc.prctl(1, 9, 0, 0, 0), "prctl")  # PR_SET_PDEATHSIG, SIGKILL
    if os.getppid() != settings["parent"]:
        raise OSError("the runtime has ended")
    check(libc.prctl(38, 1, 0, 0, 0), "prctl")  # PR_SET_NO_NEW_PRIVS
    os.chdir(settings["workspace"])
    restrict_files(settings["abi"], settings["readable"], settings["writable"])
    filter_calls(base64.b64decode(settings["filter"]))
    os.execve(settings["argv"][0], settings["argv"], settings["env"])
except BaseException as error:
    os.write(error_fd, str(error).encode())
    os._exit(126)
"""


def abi_version() -> int:
    """Return the version of Landlock in this kernel; 0 if it has none, or does not use it."""
    if sys.platform != "linux":
        return 0
    libc = ctypes.CDLL(None, use_errno=True)
    version = int(libc.syscall(CREATE_RULESET, None, ctypes.c_size_t(0), VERSION_FLAG))
    if version < 0 and ctypes.get_errno() not in (errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM):
        raise OSError(ctypes.get_errno(), "landlock_create_ruleset")
    return max(version, 0)
