"""A process that is killed while it creates MLflow's database: the next one creates it."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
# loads MLflow once, then for every line a process that is killed when it has created so many tables, and tells how it
# ended; at 0 none is killed
CREATE = """
import os, signal, sys
from sqlalchemy import Engine, event
from fpp_sweep.cli.command import run
from fpp_sweep.tracking import check_store
from fpp_sweep.tracking.uri import load
load()
tables = 0

def step(connection, cursor, statement, *_):
    global tables
    tables += "CREATE TABLE" in statement
    if tables == last:
        os.kill(os.getpid(), signal.SIGKILL)

event.listen(Engine, "after_cursor_execute", step)
for line in sys.stdin:
    last = int(line) or -1
    child = os.fork()
    if child == 0:
        run(lambda: check_store(sys.argv[1]))
    print(os.waitpid(child, 0)[1], flush=True)
"""


@pytest.mark.slow
def test_a_kill_while_the_tables_are_created_is_made_good_by_the_next_start(tmp_path):
    with subprocess.Popen(
        [sys.executable, "-c", CREATE, f"sqlite:///{tmp_path}/mlflow.db"],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        out, errors = process.communicate("".join(f"{tables}\n" for tables in KILLED_AT) + "0\n0\n")
    assert out.split() == [*("9" for _ in KILLED_AT), "0", "0"], errors
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {"mlflow.db", ".mlflow.db.lock"}


KILLED_AT = (20, 40)
