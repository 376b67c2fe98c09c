"""Every wrong input of tests/data/wrong_inputs.yaml is refused in the one line of that table.

After a change of wording, write the table again and read the difference:

    python -m tests.test_wrong_inputs > tests/data/wrong_inputs.yaml
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import shlex
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from fpp_sweep.__main__ import main
from fpp_sweep.cli import run
from fpp_sweep.space.reading import space_of
from tests.kit.records import build_sweep

TABLE = Path(__file__).parent / "data" / "wrong_inputs.yaml"
CASES = yaml.safe_load(TABLE.read_text())
SPACE = "params: {fpp.gamma1: {low: 0.1, high: 10, log: true}}\nwork: {datasets: [scenes], limit: 10, workers: 1}\n"


def build_folder(folder):
    """Write the files that the commands of the table name."""
    (folder / "space.yaml").write_text(SPACE)
    (folder / "best.yaml").write_text("config: {fpp.gama2: 1}\n")
    (folder / "wrong.py").write_text("from fpp_sweep import metric\n\n1 / 0\n")
    (folder / "photos/cat").mkdir(parents=True)
    (folder / "made").mkdir()
    (folder / "made/space.yaml").touch()
    made = build_sweep(folder / "sweeps/made", failed_trials=(3,), state="interrupted", report=False)
    info = made.info()
    made.write_info(replace(info, space=space_of(info.space, "made").plain()))  # as a sweep records it


def refusal(case):
    """Run a case in the current folder; return exit code, standard output and the last line of standard error."""
    if "wrong" in case:
        Path("wrong.yaml").write_text(case["wrong"])
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            run(lambda: main(shlex.split(case["command"])))
        except SystemExit as end:
            code = end.code
    *heading, line = err.getvalue().replace(os.getcwd(), "FOLDER").splitlines()
    assert not [before for before in heading if before.startswith(("error", "Traceback"))]
    return code, out.getvalue(), line


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wrong")
    build_folder(folder)
    return folder


def test_the_table_has_60_wrong_inputs():
    assert len(CASES) >= 60


@pytest.mark.usefixtures("no_plugins_left")
@pytest.mark.parametrize("case", CASES, ids=lambda case: case["command"])
def test_a_wrong_input_is_refused_in_one_line(folder, monkeypatch, case):
    monkeypatch.chdir(folder)
    before = sorted(folder.rglob("*"))
    code, out, line = refusal(case)
    assert line == f"error: {case['line']}"
    assert (code, out) == (2, "")
    left = [path for path in sorted(folder.rglob("*")) if path not in before]
    assert left in ([], [folder / "wrong.yaml"])


def print_table():
    """Print the table with the present lines."""
    comments = [line for line in TABLE.read_text().splitlines() if line.startswith("#")]
    print("\n".join([*comments, ""]))
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        build_folder(Path(folder))
        for case in CASES:
            code, out, line = refusal(case)
            print(f"- command: {json.dumps(case['command'])}")
            if "wrong" in case:
                print(f"  wrong: {json.dumps(case['wrong'])}")
            if (code, out) != (2, ""):
                print(f"  # wrong: exit code {code}, output {out!r}")
            print(f"  line: {json.dumps(line.removeprefix('error: '), ensure_ascii=False)}")


if __name__ == "__main__":
    print_table()
