"""Tests run as root, who may read and write everything; here they give that up for a while."""

import contextlib
import ctypes


class Header(ctypes.Structure):
    _fields_ = [("version", ctypes.c_uint32), ("pid", ctypes.c_int)]


class Capabilities(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint32) for name in ("effective", "permitted", "inheritable")]


@contextlib.contextmanager
def without_root_rights():
    """Remove root's right to read and write everything within the block."""
    libc = ctypes.CDLL(None, use_errno=True)
    header, both = Header(0x20080522, 0), (Capabilities * 2)()
    libc.capget(ctypes.byref(header), both)
    before = both[0].effective
    both[0].effective &= ~0b110  # CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH
    libc.capset(ctypes.byref(header), both)
    try:
        yield
    finally:
        both[0].effective = before
        libc.capset(ctypes.byref(header), both)
