"""What every command shares: bad input is one line and exit 2, an interrupt is exit 130."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn

from fpp_sweep.errors import InputError

PLUGIN_HELP = "methods, penalties and metrics of your own (docs/plugins.md)"


class Parser(argparse.ArgumentParser):
    """An argument parser whose complaints are one line, like all others."""

    def error(self, message: str) -> NoReturn:
        raise InputError(f"{message} (--help lists the options)")


def parser(module: str, description: str) -> Parser:
    """The parser of `python -m <module>`."""
    return Parser(
        prog=f"python -m {module}", description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )


def sleep_when_idle() -> None:
    """Let torch's threads sleep between two operations instead of spinning; to be called before torch is loaded.

    Spinning threads fight with whatever else runs: a pretraining of the embedded model, on two shared cores, took 71 s
    of wall time and 23 CPU-seconds with them and 17 s and 3.5 without.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def cores() -> int:
    """What this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def terminable() -> Iterator[None]:
    """SIGTERM, which a machine that shuts down or a job system sends, interrupts as Ctrl-C does."""

    def interrupt(*_: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a job system says it twice
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def run(main: Callable[[], None]) -> NoReturn:
    """Run a command's main and turn what happens into an exit status; a bug still shows its traceback."""
    try:
        main()
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        for child in multiprocessing.active_children():  # they have nothing to save, and may be stuck in a read
            child.kill()
            child.join()
        print("interrupted", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:  # the reader of our output went away, as in `... | head`
        sys.stderr.close()
        sys.exit(141)
    except (FloatingPointError, OSError) as error:  # a number that would spoil a result; a full or forbidden disk
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)
    sys.exit(0)
