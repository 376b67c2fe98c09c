"""What every command shares: bad input is one line and exit 2, an interrupt is exit 130."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import re
import resource
import shlex
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NoReturn

from fpp_sweep.errors import InputError, escaped

NOTIFY = "search.notify="  # how a setting begins that may hold a secret
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


def masked(text: str) -> str:
    """Without what addresses in it hide: what stands before the last @, or behind a question mark.

    What a page is told behind a # is no secret.

    >>> masked("postgresql://me:secret@db/mlflow?sslpassword=secret"), masked("http://me:secret@host/#/runs?view=1")
    ('postgresql://***@db/mlflow?***', 'http://***@host/#/runs?view=1')
    """
    for hidden, shown in ((r"://[^?#]*\?.*@.*", "://***"), (r"://.*@", "://***@"), (r"(://[^?#]*)\?.*", r"\1?***")):
        text = re.sub(rf"(?s)(?<!sqlite){hidden}", shown, text)  # a file has no secret
    return text


def printable(text: object) -> str:
    """One line that anybody may see, whatever it is made from."""
    return masked(escaped(str(text)))


def command_line(module: str, words: Iterable[str]) -> str:
    """A command as it is printed and recorded.

    >>> command_line("fpp_sweep.tune", ["--set", "search.notify=curl https://hooks/secret"])
    "python -m fpp_sweep.tune --set 'search.notify=***'"
    """
    shown = (f"{NOTIFY}***" if word.startswith(NOTIFY) else masked(word) for word in words)
    return shlex.join(["python", "-m", module, *shown])


def sleep_when_idle() -> None:
    """Let no threads spin, and numpy have none of its own; to be called before torch and numpy are loaded.

    Spinning threads fight with whatever else runs: a pretraining of the embedded model, on two shared cores, took 71 s
    of wall time and 23 CPU-seconds with them and 17 s and 3.5 without. The page of 1,000 trials, whose intervals are
    many small products, took 19 CPU-seconds with two threads and 8 with one.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


def cores() -> int:
    """What this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def readers(share: float = 1.0) -> int:
    """Processes that read images beside one that computes: as this share of the machine's cores allows, up to four."""
    return max(1, min(4, int(cores() * share) - 1))


def memory() -> tuple[int, int]:
    """Bytes that this process may still take, and may ever have: the machine's, unless a limit is nearer."""
    page = os.sysconf("SC_PAGE_SIZE")
    total = page * os.sysconf("SC_PHYS_PAGES")
    known = [(total, total)]
    if (told := Path("/proc/meminfo")).is_file():
        known += [(1024 * int(line.split()[1]), total) for line in told.read_text().splitlines() if "MemAvail" in line]
        pages = [page * int(count) for count in Path("/proc/self/statm").read_text().split()]
        held = ((resource.RLIMIT_AS, pages[0]), (resource.RLIMIT_DATA, pages[5]))
        limits = [(resource.getrlimit(kind)[0], size) for kind, size in held]
        known += [(limit - size, limit) for limit, size in limits if limit != resource.RLIM_INFINITY]
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            known += _of_group(line.split(":", 2)[2].strip("/"))
    return max(0, min(free for free, _ in known)), min(whole for _, whole in known)


def _of_group(group: str) -> Iterator[tuple[int, int]]:
    """What a container or a job, and those around it, may still take and may have; files' pages can be had back."""
    for root, limit, used in (
        ("/sys/fs/cgroup", "memory.max", "memory.current"),
        ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes"),
    ):
        for folder in (Path(root, group), *Path(root, group).parents):
            with suppress(OSError, ValueError):  # no such group, or no limit: `max`
                whole = int((folder / limit).read_text())
                stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
                yield whole - int((folder / used).read_text()) + int(stat.get("inactive_file", 0)), whole


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


def plural(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def stage(text: object) -> None:
    """What begins now and may take long."""
    print(f"{printable(text)} ...", file=sys.stderr, flush=True)


def note(text: object) -> None:
    """A line beside the results."""
    print(f"note: {printable(text)}", file=sys.stderr)


def run(main: Callable[[], None]) -> NoReturn:
    """Run a command's main and turn what happens into an exit status; a bug still shows its traceback."""
    try:
        main()
    except InputError as error:
        print(f"error: {printable(error)}", file=sys.stderr)
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
    except (FloatingPointError, MemoryError, OSError) as error:  # a number that would spoil a result; a full disk
        print(f"error: {printable(error) or 'out of memory'}", file=sys.stderr)
        sys.exit(1)
    sys.exit(0)
