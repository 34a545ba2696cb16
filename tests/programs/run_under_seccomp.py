"""Installs a seccomp filter and becomes another program: ``run_under_seccomp.py FILTER ARGV…``.

FILTER is a file with the filter's bytes; the word ``none`` installs nothing, as a control does.
"""

import ctypes
import os
import sys

PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 38, 22, 2


class SockFprog(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p)]


def install(program: bytes) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    fprog = SockFprog(len(program) // 8, program)
    for option in ((PR_SET_NO_NEW_PRIVS, 1), (PR_SET_SECCOMP, SECCOMP_MODE_FILTER, fprog)):
        values = [ctypes.byref(v) if v is fprog else ctypes.c_ulong(v) for v in option[1:]]
        zeros = [ctypes.c_ulong(0)] * (4 - len(values))
        if libc.prctl(option[0], *values, *zeros) != 0:
            raise OSError(ctypes.get_errno(), "prctl")


if sys.argv[1] != "none":
    with open(sys.argv[1], "rb") as file:
        filter_bytes = file.read()
    install(filter_bytes)
os.execv(sys.argv[2], sys.argv[2:])
