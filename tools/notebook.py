"""Run docs/first_sweep.ipynb and store the outputs of its cells: `python -m tools.notebook`.

The cells run in one process in a temporary folder, as they would after `pip install` without a clone. The notebook's
metadata hold a digest of the cells and of the engine. `tests/test_notebook.py` compares it and so finds stale outputs.
"""

from __future__ import annotations

import ast
import base64
import contextlib
import hashlib
import io
import json
import os
import re
import sys
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fpp_sweep.spec.keys import ENGINE

NOTEBOOK = Path(__file__).parents[1] / "docs" / "first_sweep.ipynb"
DIGEST = "outputs_of"  # key of the digest in the metadata
LONGEST_OUTPUT = 2000  # number of characters of a cell's output that are kept
# attributes that only web pages need
HTML_ATTRIBUTES = r' (?:class|id|tabindex|role|aria-label|scope|data-[a-z]+)="[^"]*"'


def main() -> None:
    document = json.loads(NOTEBOOK.read_text("utf-8"))
    programs = str(Path(sys.executable).parent)
    # commands are printed as in an activated environment
    os.environ["PATH"] = f"{programs}{os.pathsep}{os.environ['PATH']}"
    started_in = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            run_cells(code_cells(document), Path(folder))
        finally:
            os.chdir(started_in)
    document["metadata"][DIGEST] = digest(document)
    NOTEBOOK.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", "utf-8")


def code_cells(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [cell for cell in document["cells"] if cell["cell_type"] == "code"]


def digest(document: Mapping[str, Any]) -> str:
    """Return a digest of everything that determines the outputs: the code of all cells, and the engine's version."""
    code = "\0".join("".join(cell["source"]) for cell in code_cells(document))
    return hashlib.sha256(f"{ENGINE}\0{code}".encode()).hexdigest()[:16]


def run_cells(cells: Sequence[dict[str, Any]], folder: Path) -> None:
    names: dict[str, Any] = {}
    for number, cell in enumerate(cells, 1):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            value = _run("".join(cell["source"]), names)
        outputs = []
        text = printed.getvalue().replace(str(folder.resolve()), "HERE").replace(str(folder), "HERE")
        if text:
            outputs.append({"output_type": "stream", "name": "stdout", "text": _lines(text[:LONGEST_OUTPUT])})
        if value is not None:
            outputs.append(_result(value, number, folder))
        cell["execution_count"] = number
        cell["outputs"] = outputs


def _run(code: str, names: dict[str, Any]) -> object:
    """Run the code of a cell; return the value of its last line, as a notebook shows it, or None."""
    tree = ast.parse(code)
    last = None
    if tree.body and isinstance(tree.body[-1], ast.Expr):
        last = ast.Expression(tree.body.pop().value)  # type: ignore[attr-defined]
    exec(compile(tree, "<cell>", "exec"), names)
    if last is None:
        return None
    value: object = eval(compile(last, "<cell>", "eval"), names)
    return value


def _result(value: Any, number: int, folder: Path) -> dict[str, Any]:
    data: dict[str, Any] = {}
    if hasattr(value, "_repr_png_"):
        data["image/png"] = base64.b64encode(value._repr_png_()).decode()
        data["text/plain"] = [f"<{type(value).__name__}>"]
    else:
        if hasattr(value, "_repr_html_"):
            html = value._repr_html_().replace(str(folder), "HERE")
            data["text/html"] = _lines(re.sub(HTML_ATTRIBUTES, "", html))
        data["text/plain"] = _lines(repr(value).replace(str(folder), "HERE"))
    return {"output_type": "execute_result", "execution_count": number, "metadata": {}, "data": data}


def _lines(text: str) -> list[str]:
    return text.splitlines(keepends=True)


if __name__ == "__main__":
    main()
