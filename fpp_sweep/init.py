"""Write a commented search space and a dataset file, to be changed: `python -m fpp_sweep.init [FOLDER]`.

The space runs as it is, on the embedded model and its datasets. The dataset file is for your own images.

    python -m fpp_sweep.init mine
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from fpp_sweep.cli import parser, run
from fpp_sweep.space.reading import shipped_folder
from fpp_sweep.spec.errors import InputError, is_full_disk
from fpp_sweep.spec.files import user_path, written_whole
from fpp_sweep.spec.messages import command_line, runnable

TEMPLATES = Path(__file__).parent / "templates"
SPACE, DATASETS = "space.yaml", "datasets.yaml"


def main(argv: Sequence[str] | None = None) -> None:
    """Write the files and print the commands that use them."""
    args = parse(argv)
    write_templates(args.folder)
    space = ["--space", str(args.folder / SPACE)]
    datasets = ["--dataset-file", str(args.folder / DATASETS)]
    print(f"wrote       {args.folder / SPACE} and {args.folder / DATASETS}")
    print(f"try it      {runnable(command_line('tune', [*space, '--dry-run']))}")
    print(f"your images {runnable(command_line('tune', [*space, *datasets]))}")


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    options = parser("fpp_sweep.init", __doc__ or "", usage="[FOLDER]")
    folder = f"where {SPACE} and {DATASETS} are written; default: the current folder"
    options.add_argument("folder", nargs="?", type=user_path, default=Path(), metavar="FOLDER", help=folder)
    return options.parse_args(argv)


def write_templates(folder: Path) -> None:
    """Write both files or none; raise InputError if one of them exists, or the folder cannot be written."""
    for name in (SPACE, DATASETS):
        if os.path.lexists(folder / name):
            raise InputError(f"{folder / name}: exists, and is not overwritten; give another folder")
    try:
        with ExitStack() as files:  # at its end, both files take their names
            for name in (SPACE, DATASETS):
                partial = files.enter_context(written_whole(folder / name))
                partial.write_text(filled_template(name), encoding="utf-8")
    except OSError as error:
        if is_full_disk(error):
            raise
        raise InputError(f"{folder}: cannot be written ({error.strerror}); give another folder") from error


def filled_template(name: str) -> str:
    """Return the text of a template; the schema is that of this installation."""
    text = (TEMPLATES / name).read_text(encoding="utf-8")
    return text.replace("$schema=schema.json", f"$schema={shipped_folder() / 'schema.json'}")


if __name__ == "__main__":
    run(main)
