"""The code of the package that can change the bits of a result, as a digest."""

from __future__ import annotations

from pathlib import Path

from fpp_sweep.spec import keys

FOLDERS = "core", "tiny", "trial"
FILES = "spec/catalogue.py", "spec/config.py", "spec/tasks.py"


def code_digest() -> str:
    package = Path(keys.__file__).parents[1]
    texts = [path.read_text() for path in code_files(package)]
    return keys.digest(*texts, length=8)


def code_files(package: Path) -> list[Path]:
    """Return the files of the package whose code can change the bits of a result."""
    files = [package / name for name in FILES]
    for folder in FOLDERS:
        files += sorted((package / folder).rglob("*.py"))
    return files
