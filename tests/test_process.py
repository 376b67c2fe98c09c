"""Settings of the driver's process that only another process can show."""

import subprocess
import sys

import pytest

from fpp_sweep.spec.process import MAX_ARENAS
from tests.kit.processes import environment

THREADS = 8
PROGRAM = """
import ctypes, sys, threading
from fpp_sweep.spec.process import limit_arenas

file_name, is_limited, threads = sys.argv[1], sys.argv[2] == "True", int(sys.argv[3])
if is_limited:
    limit_arenas()
library = ctypes.CDLL(None)
library.malloc.restype = ctypes.c_void_p
library.fopen.restype = ctypes.c_void_p
everyone = threading.Barrier(threads + 1)

def allocate():
    library.malloc(1000)
    everyone.wait()  # a thread that has ended would give its arena to the next
    everyone.wait()

for _ in range(threads):
    threading.Thread(target=allocate).start()
everyone.wait()
file = ctypes.c_void_p(library.fopen(file_name.encode(), b"w"))
library.malloc_info(0, file)
library.fclose(file)
everyone.wait()
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's allocator")
@pytest.mark.parametrize(
    ("is_limited", "variable", "fewest", "most"),
    [(True, None, MAX_ARENAS, MAX_ARENAS), (True, "3", 3, 3), (False, None, MAX_ARENAS + 1, THREADS + 1)],
)
def test_the_threads_of_a_driver_share_two_arenas_unless_the_user_sets_their_number(
    tmp_path, is_limited, variable, fewest, most
):
    variables = environment(tmp_path)
    variables.pop("MALLOC_ARENA_MAX", None)
    if variable is not None:
        variables["MALLOC_ARENA_MAX"] = variable
    file = tmp_path / "malloc.xml"
    command = [sys.executable, "-c", PROGRAM, str(file), str(is_limited), str(THREADS)]
    subprocess.run(command, env=variables, check=True)
    assert fewest <= file.read_text().count("<heap nr=") <= most
