"""The cache of image features and finished tasks: list what it holds, and remove what is no longer needed.

python -m fpp_sweep.cache list
python -m fpp_sweep.cache prune --older-than 30d --yes
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence

from fpp_sweep.cli import Parser, parser, run
from fpp_sweep.space.work import to_seconds
from fpp_sweep.spec.errors import InputError
from fpp_sweep.spec.files import default_cache, user_path
from fpp_sweep.spec.messages import printable, readable_size
from fpp_sweep.spec.validation import at_key

PRUNE = "Finished tasks are removed one by one, by their own age; a sweep keeps its own copies."


def main(argv: Sequence[str] | None = None) -> None:
    args = parse(argv)
    from fpp_sweep.checks import cache_entries  # loads numpy, which --help does without

    root = args.cache or default_cache()
    entries = cache_entries.find_entries(root)
    if args.command == "list":
        print(cache_entries.entry_table(root, entries))
        return
    selected = cache_entries.unused_parts(entries, -math.inf if args.all else args.older_than)
    for entry in selected:
        print(f"{readable_size(entry.size):>9}  {printable(entry.folder)}")
    print(f"{len(selected)} to remove, {readable_size(sum(entry.size for entry in selected))}")
    if selected and is_agreed(args.yes):
        cache_entries.remove_entries(selected)


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    options = parser("fpp_sweep.cache", __doc__ or "")
    commands = options.add_subparsers(dest="command", required=True)
    shared = Parser(add_help=False)
    folder = "folder of the cache; default: $FPP_SWEEP_CACHE, or ~/.cache/fpp_sweep"
    shared.add_argument("--cache", type=user_path, metavar="DIR", help=folder)
    commands.add_parser("list", parents=[shared], help="show entries, sizes and ages")
    prune = commands.add_parser(
        "prune", parents=[shared], help="remove entries; runs that read them continue", description=PRUNE
    )
    which = prune.add_mutually_exclusive_group(required=True)
    which.add_argument("--older-than", metavar="AGE", help="not used for this long, such as 12h or 30d")
    which.add_argument("--all", action="store_true", help="every entry")
    prune.add_argument("--yes", action="store_true", help="remove without asking; required without a terminal")
    args = options.parse_args(argv)
    with at_key("--older-than"):
        if args.command == "prune" and args.older_than is not None:
            args.older_than = to_seconds(args.older_than)
    return args


def is_agreed(yes: bool) -> bool:
    """Return whether to remove: as the command line says, or as the user answers; raise InputError without either."""
    if yes:
        return True
    if not sys.stdin.isatty():
        raise InputError("prune: removes nothing without a terminal to ask on; repeat with --yes")
    return input("remove them? [y/N] ").strip().lower() in ("y", "yes")


if __name__ == "__main__":
    run(main)
