"""The command as its users start it: real sweeps on the embedded model, ended by a signal, gone on with, and shared."""

import csv
import re
import subprocess
import sys

import pytest

from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.spec.errors import InputError
from tests.kit.datasets import build_coop
from tests.kit.processes import environment

SMALL = ("--datasets", "scenes", "--limit", "20", "--seed", "0", "1", "--workers", "1")
FAST = ("--set", "base.fpp.steps=2", "base.views.count=8", "base.adapt.view_fraction=0.25")


def command(*words):
    return [sys.executable, "-m", "fpp_sweep.reproduce", *words]


def run(folder, *words):
    return subprocess.run(command(*words), cwd=folder, env=environment(folder), capture_output=True, text=True)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--table", "mian"], "--table mian: unknown table 'mian', did you mean 'main'?"),
        (["--table", "init"], "table init has no row that can be run: give --coop or --maple a checkpoint"),
        (["--table", "natural_shifts"], "table natural_shifts makes no sense on the embedded model"),
        (["--table", "main", "--methods", "fppp"], "--methods fppp: unknown row 'fppp', did you mean 'fpp'?"),
        (["--table", "sam", "--set", "base.adapt.sam_rho=0"], "adapt.sam_rho: must be > 0 (0)"),
        (["--table", "dynaprompt", "--set", "base.adapt.slots=0"], "adapt.slots: must be >= 1 (0)"),
        (["--table", "dynaprompt", "--set", "work.shards=3"], "takes a dataset's samples in order"),
        (["--table", "flatness", "--set", "base.measure.rho=-1"], "measure.rho: must be > 0 (-1)"),
        (["--table", "init", "--coop", "nowhere.tar"], "--coop nowhere.tar: no such file"),
        (["--table", "main", "--name", "../out"], "--name '../out': names a folder; begin with a letter or digit"),
    ],
)
def test_bad_input_is_one_line(words, message, capsys):
    from fpp_sweep.cli import run as run_main
    from fpp_sweep.reproduce.__main__ import main

    with pytest.raises(SystemExit) as ended:
        run_main(lambda: main(words))
    assert ended.value.code == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert message in err


def test_a_row_by_name_is_run_in_every_precision(monkeypatch):
    from fpp_sweep.reproduce.__main__ import main

    planned = []
    monkeypatch.setattr("fpp_sweep.sweep.estimate.dry_run", planned.extend)
    main(["--table", "main", "--precision", "fp16", "float32", "--methods", "tpt", "--dry-run"])
    points = [(point["method"], point["precision"]) for space in planned for point in space.grid_points()]
    assert points == [("tpt", "fp16"), ("tpt", "float32")]


def test_all_tables_leave_out_those_without_a_row_of_the_name_in_one_note(monkeypatch, capsys):
    from fpp_sweep.reproduce.__main__ import main

    planned = []
    monkeypatch.setattr("fpp_sweep.sweep.estimate.dry_run", planned.extend)
    main(["--table", "all", "--methods", "tpt_sam", "--datasets", "scenes", "--dry-run"])
    assert [space.name for space in planned] == ["sam", "flatness_ece"]
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "left out" in line]
    assert line.startswith("note: left out: no row tpt_sam in main, init, dynaprompt, ")
    with pytest.raises(InputError, match="unknown row 'tpt_asm', did you mean 'tpt_asam'"):
        main(["--table", "all", "--methods", "tpt_asm", "--dry-run"])


def test_missing_datasets_are_left_out_with_a_note_in_every_table(tmp_path, capsys):
    from fpp_sweep.reproduce.__main__ import parse
    from fpp_sweep.reproduce.selection import select

    build_coop(tmp_path, "dtd", parts={"train": 4, "val": 4, "test": 4})
    table = ["--table", "main", "costs", "--data-root", str(tmp_path)]

    def select_datasets(*names):
        return select(parse([*table, "--datasets", *names, "--allow-missing"]))

    with_one = select_datasets("dtd", "pets", "scenes")
    for name in ("main", "costs"):
        assert with_one.spaces[name].work.datasets == ("dtd", "scenes")
        assert "PARTIAL: without pets, which are not there" in with_one.notes[name]
    (line,) = capsys.readouterr().err.splitlines()  # one for both tables
    assert re.search(r"left out: .*oxford_pets", line)
    whole = select_datasets("dtd", "scenes")
    assert whole.spaces["main"].work.datasets == ("dtd", "scenes")
    assert not [note for note in whole.notes["main"] if "not there" in note]
    with pytest.raises(InputError, match=r"^pets: .*oxford_pets"):
        select_datasets("pets")
    with pytest.raises(InputError, match=r"^none of pets, cars can be opened, such as pets: .*oxford_pets"):
        select_datasets("pets", "cars")


def test_the_list_names_every_table_and_its_question(capsys):
    from fpp_sweep.reproduce.__main__ import main
    from fpp_sweep.reproduce.experiments import shipped

    main(["--list"])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[: len(shipped())]] == shipped()


@pytest.mark.slow
def test_tables_share_results_and_a_changed_setting_is_refused(tmp_path):
    done = run(tmp_path, "--table", "main", "flatness", "--methods", "fpp", *SMALL, *FAST)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    whole = tmp_path / "reproductions" / "tiny"
    cached = {name: SweepFolder(whole / name).info().work.cached for name in ("main", "flatness")}
    assert cached["main"] == 0
    assert cached["flatness"] >= 2  # FPP's pretraining with two seeds; predictions of flatness have another column
    cells = list(csv.DictReader((whole / "main" / "report" / "table.csv").read_text().splitlines()))
    assert {row["model"] for row in cells} == {"tiny"}
    assert all(row["ours"] for row in cells if row["dataset"] == "scenes")
    assert {row["verdict"] for row in cells} == {"other model"}
    page = whole / "reproduction.html"
    assert f"page: {page.resolve().as_uri()}" in done.stdout
    assert page.read_text().index('id="main"') < page.read_text().index('id="flatness"')
    changed = run(tmp_path, "--table", "main", *SMALL)
    assert changed.returncode == 2
    assert "base.fpp.steps: 2 -> none" in changed.stderr
    assert "--name" in changed.stderr
