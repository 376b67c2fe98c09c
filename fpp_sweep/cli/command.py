"""What every command shares: bad input is one line and exit 2, an interrupt is exit 130."""

from __future__ import annotations

import argparse
import multiprocessing
import sys
from collections.abc import Callable
from typing import NoReturn

from fpp_sweep.spec.errors import InputError
from fpp_sweep.spec.messages import printable

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
