"""A sweep's folder from another person: each file and folder in turn is replaced with a hostile object.

Every command either works or refuses in one line. No command reads, writes or deletes anything outside the folder,
shows or copies a text of a file outside, sends control characters of a record to the terminal, waits for ever, or reads
a file of terabytes. `python -m tests.test_hostile_folder` prints the whole table; names of commands limit it.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest
import yaml

from fpp_sweep import compare, show, steer, sync
from fpp_sweep.__main__ import COMMANDS
from fpp_sweep.cli.command import run
from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.records.log import write_line
from fpp_sweep.report.comparison import compare_sweeps
from fpp_sweep.report.comparison_view import sweep_comparison_document
from fpp_sweep.report.document import document_to_text
from fpp_sweep.report.results_file import write_results
from fpp_sweep.report.writing import write_report
from fpp_sweep.reproduce.figures import write_figure
from fpp_sweep.reproduce.output import write_table
from fpp_sweep.reproduce.page import write_page
from fpp_sweep.reproduce.running import Reproduction
from fpp_sweep.reproduce.selection import Selection
from fpp_sweep.reproduce.tables import load_table
from fpp_sweep.space.reading import space_of
from fpp_sweep.sweep import notebook
from fpp_sweep.sweep.api import Options
from fpp_sweep.sweep.local_run import run_locally
from fpp_sweep.sweep.request import space_to_evaluate, space_to_tune
from fpp_sweep.sweep.resume import load_for_resume, merge_resume_request
from fpp_sweep.tracking.uri import connect
from fpp_sweep.trial.results import TaskResult
from fpp_sweep.trial.store import TaskStore
from tests.kit import hostile
from tests.kit.hostile import KINDS, OWN, SECRET, TRIAL, kind_of, paths_by_kind, plant, state_of
from tests.kit.layout import LAYOUT_FILE
from tests.kit.processes import environment, run_command, tune_command
from tests.kit.rights import without_root_rights
from tests.reproduce.test_page import reproduction

SECONDS = 60  # a command that runs longer counts as one that waits for ever
CONFIG = Path("sweeps/sent/report/best/trial-0002.yaml")
NOTHING = "nothing hostile"
READS_OUTSIDE = "reads what lies outside"
WRITES_OUTSIDE = "changes what lies outside"

# ------------------------------------------------------------ commands


def resume(sweep):
    """Do a driver's work in the folder before Ray starts, and read a cached result of a task."""
    folder = SweepFolder.open(Path(sweep))
    with folder.locked():
        space = space_of(folder.info().space, "space")
        load_for_resume(space, Options(), folder)
        _, request = merge_resume_request(space, folder.info(), folder)
        request.send(folder)
        folder.record_applied(folder.send_command("budget", {"trials": 30}))
        print(TaskStore(folder.tasks).get(hostile.TASK))
        write_line(folder.artifacts(TRIAL) / "log.txt", f"{TRIAL} begins on val")


import_command = importlib.import_module("fpp_sweep.import")  # `import` is a keyword of Python


def import_predictions():
    lines = ["id,probabilities.0,probabilities.1,probabilities.2"]
    lines += [f"{OWN} {number},0.5,0.25,0.25" for number in range(hostile.IMAGES)]
    Path("theirs.csv").write_text("\n".join(lines))
    import_command.main(["theirs.csv", "--as", "theirs", "--into", "sent"])


def compare_without_pictures(*names):
    """Compare sweeps; the pictures of `compare` take a second, and are drawn from the comparison alone."""
    comparison = compare_sweeps({name: SweepFolder.open(Path("sweeps", name)) for name in names})
    print(document_to_text(sweep_comparison_document(comparison, []), 100))


def show_in_notebook(sweep):
    folder = SweepFolder.open(Path(sweep))
    texts = [notebook.as_html(folder), str(notebook.rows(folder)), notebook.predictions(folder, TRIAL, "val").to_csv()]
    print("\n".join(texts).encode("unicode_escape").decode())  # a notebook is no terminal


def reproduce_again():
    """Do the work of `reproduce` around the sweep of a table, and read a cached result of a task."""
    reproduced = Reproduction(Path("papers"), Selection())
    reproduced.identity()
    print(TaskStore(reproduced.tasks).get(hostile.TASK))
    folder = reproduced.sweep("mine")
    table = load_table(folder)
    write_table(folder.report, table)
    write_figure(folder, table)


def print_space(space):
    print(json.dumps(space.plain()))


FAST = {
    "show": lambda: show.main(["sent"]),
    "show all": lambda: show.main([]),
    "show trial": lambda: show.main(["sent", TRIAL]),
    "notebook": lambda: show_in_notebook("sweeps/sent"),
    "compare sweeps": lambda: compare_without_pictures("sent", "other"),
    "compare trials": lambda: compare.main(["sent", TRIAL, "trial-0003", "--out", "comparison"]),
    "steer add": lambda: steer.main(["sent", "add", "fpp.gamma2=3"]),
    "steer stop": lambda: steer.main(["sent", "stop", hostile.WAITING]),
    "steer budget": lambda: steer.main(["sent", "budget", "--trials", "40"]),
    "tune --resume": lambda: resume("sweeps/sent"),
    "tune --config": lambda: print_space(space_to_tune(Path("perturb"), [], config=CONFIG)),
    "evaluate --config": lambda: print_space(space_to_evaluate([], config=CONFIG)),
    "evaluate, results": lambda: write_results(SweepFolder.open(Path("sweeps/sent"))),
}
SLOW = {
    "show --page": lambda: show.main(["sent", "--page"]),
    "sync": lambda: sync.main(["sent", "--into", "sqlite:///mlflow.db", "--retry-for", "0.1"]),
    "import": import_predictions,
}
FEW_KINDS = ("link out", "folder", "pipe", "unreadable", "huge")
KINDS_OF = {  # kinds for commands that take longest; the other commands use the same readers, and have every kind
    "notebook": FEW_KINDS,
    "compare sweeps": FEW_KINDS,
    "compare trials": FEW_KINDS,
    "evaluate, results": FEW_KINDS,
    "show --page": ("link out", "unreadable"),
    "sync": ("link out", "link to the sweep", "pipe"),
    "import": ("link out",),
}
REPRODUCTION = {"reproduce": reproduce_again, "show --page, tables": lambda: write_page(Path("papers"))}
ALL = FAST | SLOW | REPRODUCTION
WITHOUT_SWEEPS = {  # commands that take no folder of a sweep
    "init": "writes new files of the user's",
    "doctor": "checks a space and its data",
    "cache": "lists the user's own cache",
}


def test_the_table_has_every_command_that_takes_a_folder():
    in_table = {name.split()[0].rstrip(",") for name in ALL}
    assert set(COMMANDS) - in_table == set(WITHOUT_SWEEPS)


# ------------------------------------------------------------ outcomes


def raise_timeout(*_):
    raise AssertionError("waits for ever")


def outcome(command):
    """Run a command; return `works`, `refuses: ...` or a description of the fault."""
    out, err = io.StringIO(), io.StringIO()
    signal.signal(signal.SIGALRM, raise_timeout)
    signal.alarm(SECONDS)
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            run(command)
    except SystemExit as end:
        code = end.code
    except BaseException as error:  # a bug, for which a user would see a traceback
        return f"{type(error).__name__}: {error}"
    finally:
        signal.alarm(0)
    printed = out.getvalue() + err.getvalue()
    lines = [line for line in err.getvalue().splitlines() if line.startswith("error: ")]
    if SECRET in printed:
        return "shows what lies outside"
    if "\x1b" in printed or "\x07" in printed:
        return "controls the terminal"
    if "Traceback" in err.getvalue() or (code, len(lines)) not in ((0, 0), (2, 1), (1, 1)):
        return f"code {code}, {err.getvalue()[-300:]!r}"
    return "works" if code == 0 else f"refuses: {lines[0][:150]}"


class Workspace:
    """Templates of the folder `name` in `parent`, of which each command gets a fresh copy with one hostile object."""

    def __init__(self, root, commands, name="sweeps/sent"):
        self.root, self.commands, self.name = root, tuple(commands), name
        self.template, self.secret = root / "template" / name, root / "secret" / name
        self.empty = root / "empty.db"

    def build(self):
        """Build the templates; the folder that links lead to has the secret in its texts."""
        if "sync" in self.commands:
            connect(f"sqlite:///{self.empty}")
        build_folder = build_reproduction if self.name == "papers" else hostile.build_template
        build_folder(self.template, OWN)
        build_folder(self.secret, SECRET)
        return self

    def with_commands(self, names):
        return Workspace(self.root, names, self.name)

    def cases(self):
        """Return each hostile object: the path of an element, and a kind."""
        return [(element, kind) for element in paths_by_kind(self.template).values() for kind in KINDS]

    def outcomes(self, element, kind):
        """Return the outcome of each command with one hostile object; none if the kind does not apply."""
        case = Path(tempfile.mkdtemp(dir=self.root))
        ended = {}
        is_fresh = False
        for name in self.commands:
            if kind in KINDS and kind not in KINDS_OF.get(name, KINDS):
                continue
            if not is_fresh and not self._prepare(case, element, kind):
                break
            before = hostile.stamps_of(case)
            ended[name] = self._outcome(case, name)
            is_fresh = hostile.stamps_of(case) == before
        os.chdir(self.root)
        shutil.rmtree(case)
        return ended

    def _prepare(self, case, element, kind):
        """Make the folders in which a command runs: `outside`, and `work` with the hostile folder."""
        for folder in ("outside", "work"):
            shutil.rmtree(case / folder, ignore_errors=True)
        (case / "outside").mkdir()
        folder = case / "work" / self.name
        shutil.copytree(self.template, folder)
        (case / "work/sweeps").mkdir(exist_ok=True)
        (case / "work/sweeps/other").symlink_to(self.template)
        if self.empty.is_file():
            shutil.copyfile(self.empty, case / "work/mlflow.db")
        if kind == NOTHING:
            return True
        if kind in CONTRADICTIONS:
            contradict(folder, kind)
            return True
        return plant(folder, element, kind, case / "outside/original", self.secret)

    def _outcome(self, case, name):
        before, other = state_of(case / "outside"), hostile.stamps_of(self.template)
        inside = hostile.stamps_of(case / "work")
        os.chdir(case / "work")
        with without_root_rights(), hostile.opened_below(case / "outside") as opened:
            ended = outcome(ALL[name])
        if state_of(case / "outside") != before or hostile.stamps_of(self.template) != other:
            return WRITES_OUTSIDE
        for path, stamp in hostile.stamps_of(case / "work").items():
            if inside.get(path) != stamp and hostile.holds_secret(Path(path)):
                return f"copies what lies outside to {path}"
        if opened and not faults_of({name: ended}):
            return f"{READS_OUTSIDE}: {opened[0]}"
        return ended


def faults_of(outcomes):
    return {name: ended for name, ended in outcomes.items() if not ended.startswith(("works", "refuses"))}


def outcomes_of(workspace, case):
    return workspace.outcomes(*case)


def table(workspace, cases, on_case=lambda number, faults: None):
    """Return the counts of outcomes by command and kind, and all outcomes that are faults; two cases run at a time."""
    counts, faults = {}, []
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        found = pool.map(outcomes_of, [workspace] * len(cases), cases)
        for number, ((element, kind), outcomes) in enumerate(zip(cases, found, strict=True), start=1):
            column = kind if kind in KINDS else "contradiction"
            for name, ended in outcomes.items():
                counts.setdefault((name, column), Counter())[ended.partition(":")[0]] += 1
            new = [f"{name}, {element}, {kind}: {ended}" for name, ended in faults_of(outcomes).items()]
            on_case(number, new)
            faults += new
    return counts, faults


def summary(counts, faults):
    """Return the figures of a table in one line."""
    total = sum(counts.values(), Counter())
    commands = {name for name, _ in counts}
    kinds = {kind for _, kind in counts}
    return (
        f"{len(commands)} commands, {len(kinds)} kinds, {total.total()} cases: {total['works']} work, "
        f"{total['refuses']} refuse in one line, {total[WRITES_OUTSIDE]} write outside, "
        f"{total[READS_OUTSIDE]} read outside, {len(faults)} faults"
    )


# ------------------------------------------------------------ records that contradict each other


def edited(text, change):
    document = json.loads(text)
    change(document)
    return json.dumps(document)


def remove_dataset(record):
    del record["results"]["val"]["datasets"]["scenes"]


def rename_dataset(record):
    datasets = record["results"]["val"]["datasets"]
    datasets["other"] = datasets.pop("scenes")


def remove_metric(record):
    del record["results"]["val"]["average"]["ece"]


RECORD, INFO = "trials/trial-0002.json", "sweep.json"
CONTRADICTIONS = {  # by description: the file and the change to it
    "a dataset without numbers": (RECORD, remove_dataset),
    "a dataset of no other trial": (RECORD, rename_dataset),
    "an average without an objective": (RECORD, remove_metric),
    "fewer values than objectives": (RECORD, lambda record: record.update(values=[1.0])),
    "no values": (RECORD, lambda record: record.update(values=None)),
    "a param that the space lacks": (RECORD, lambda record: record.update(params={"fpp.steps": 3})),
    "a param outside its range": (RECORD, lambda record: record.update(params={"fpp.gamma2": 1e9})),
    "a param of no setting": (RECORD, lambda record: record.update(params={"no.such": 3})),
    "a setting of no method": (RECORD, lambda record: record.update(config={"method": "none"})),
    "the number of another trial": (RECORD, lambda record: record.update(number=3)),
    "complete without results": (RECORD, lambda record: record.update(results={})),
    "a constraint that the sweep lacks": (RECORD, lambda record: record.update(constraints={"x": 1.0})),
    "another metric as objective": (INFO, lambda info: info["objectives"][1].update(metric="aurc")),
    "one objective less": (INFO, lambda info: info["objectives"].pop()),
    "another split": (INFO, lambda info: info.update(search_split="train")),
    "a corner of other objectives": (INFO, lambda info: info.update(reference=[1.0, 2.0, 3.0])),
    "a space without params": (INFO, lambda info: info.update(space={"search": {}})),
    "an empty space": (INFO, lambda info: info.update(space={})),
}


def contradict(sent, name):
    file, change = CONTRADICTIONS[name]
    (sent / file).write_text(edited((sent / file).read_text(), change))


# ------------------------------------------------------------ kinds of files


def test_the_template_has_every_kind_of_file_that_a_real_sweep_has(workspace):
    real = {kind_of(name) for name in yaml.safe_load(LAYOUT_FILE.read_text())["files"]}
    assert len(real) > 15
    assert real - set(paths_by_kind(workspace.template)) == set()


@pytest.mark.slow  # evaluates a method
def test_the_template_has_every_kind_of_file_of_an_evaluation(workspace, tmp_path):
    words = [
        "fpp.steps=2",
        "views.count=4",
        "work.datasets=[digits]",
        "work.limit=60",
        "work.posthoc=[temperature_val]",
    ]
    space = space_to_evaluate(words, prompts=["fpp"])
    folder = run_locally(space, Options(name="sent", root=str(tmp_path))).folder
    write_report(folder, pages=False)
    write_results(folder)
    real = set(paths_by_kind(folder.path))
    assert {"artifacts/trial-N/SPLIT/fitted_on/", "artifacts/trial-N/SPLIT/posthoc.json", "results.json"} <= real
    assert real - set(paths_by_kind(workspace.template)) == set()


SMALL_SPACE = """
base: {fpp.steps: 2, views.count: 4, adapt.view_fraction: 0.5}
params:
  fpp.gamma1: {low: 0.1, high: 10, log: true}
search: {trials: 4, concurrency: 1, finalists: {count: 1, seeds: 2}}
work: {datasets: [scenes], limit: 128, baselines: [zero_shot], workers: 1, posthoc: [temperature_val]}
"""


@pytest.mark.nightly
@pytest.mark.slow  # runs a sweep
def test_the_template_has_every_kind_of_file_of_a_sweep(workspace, tmp_path):
    words = tune_command(tmp_path, "--name", "sent", space=SMALL_SPACE)
    subprocess.run(words, check=True, cwd=tmp_path, env=environment(tmp_path), capture_output=True)
    for command in ("steer sent budget --trials 5", "sync sent --verify", "show sent --page"):
        run_command(tmp_path, *command.split())
    (tmp_path / "sweeps/sent/trials/trial-0001.json").write_text("damaged")
    subprocess.run([*words, "--resume"], check=True, cwd=tmp_path, env=environment(tmp_path), capture_output=True)
    real = set(paths_by_kind(tmp_path / "sweeps/sent"))
    assert "steering/TIME.json" in real
    assert real - set(paths_by_kind(workspace.template)) == set()


# ------------------------------------------------------------ a part of the table in every run of the tests

QUICK = ("show", "show all", "show trial", "compare trials", "steer budget", "tune --resume", "evaluate --config")
COMBINATIONS = [  # combinations that once revealed a fault, and one of each folder
    ("sweep.json", "link out"),
    ("trials", "link out"),
    ("trials/trial-0002.json", "link out"),
    ("trials/trial-0002.json", "pipe"),
    ("trials/trial-0002.json", "huge"),
    ("trials", "unreadable"),
    ("artifacts", "link out"),
    ("artifacts/trial-0002/log.txt", "link out"),
    ("artifacts/trial-0002/log.txt", "link to nothing"),
    ("artifacts/trial-0002/log.txt", "pipe"),
    ("artifacts/trial-0002/log.txt", "huge"),
    ("artifacts/trial-0002/prompts", "link out"),
    ("artifacts/trial-0002/val/block_stats.npz", "pipe"),
    ("artifacts/trial-0002/val/block_stats.npz", "folder"),
    ("steering", "link out"),
    ("lock", "pipe"),
    ("report/best/trial-0002.yaml", "link out"),
    ("report/best/trial-0002.yaml", "pipe"),
    (f"tasks/ab/{hostile.TASK}.task", "link out"),
    ("tasks", "link out"),
]


@pytest.fixture(scope="module")
def workspace(tmp_path_factory):
    return Workspace(tmp_path_factory.mktemp("hostile"), QUICK).build()


def test_the_folder_without_hostile_objects_is_accepted(workspace, monkeypatch):
    monkeypatch.chdir(workspace.root)
    ended = workspace.with_commands(FAST).outcomes("", NOTHING)
    assert ended == dict.fromkeys(FAST, "works")


@pytest.mark.parametrize(("element", "kind"), COMBINATIONS, ids=lambda value: value.replace(" ", "-"))
def test_a_command_works_or_refuses_in_one_line(workspace, monkeypatch, element, kind):
    monkeypatch.chdir(workspace.root)
    outcomes = workspace.outcomes(element, kind)
    assert set(outcomes) >= {"show", "tune --resume"}
    assert faults_of(outcomes) == {}


@pytest.mark.parametrize("kind", ["a dataset without numbers", "another metric as objective", "an empty space"])
def test_contradictory_records_are_refused_in_one_line(workspace, monkeypatch, kind):
    monkeypatch.chdir(workspace.root)
    assert faults_of(workspace.with_commands([*QUICK, "compare sweeps"]).outcomes("", kind)) == {}


# ------------------------------------------------------------ the table sees what it should see


def print_file(path):
    print(Path("sweeps/sent", path).read_text())


def read_file(path):
    Path("sweeps/sent", path).read_text()


def list_folder(path):
    os.listdir(Path("sweeps/sent", path))


def copy_file(path):
    shutil.copyfile(Path("sweeps/sent", path), "copy")


def write_file(path):
    Path("sweeps/sent", path).write_text("")


def write_below(path):
    Path("sweeps/sent", path, "new").write_text("")


def print_and_escape(_):
    print(OWN)


CARELESS = {
    READS_OUTSIDE: (read_file, "trials/trial-0002.json"),
    f"{READS_OUTSIDE}, in a folder": (list_folder, "artifacts/trial-0002"),
    "shows what lies outside": (print_file, "trials/trial-0002.json"),
    "copies what lies outside": (copy_file, "trials/trial-0002.json"),
    WRITES_OUTSIDE: (write_file, "trials/trial-0002.json"),
    f"{WRITES_OUTSIDE}, in a folder": (write_below, "artifacts/trial-0002"),
    "controls the terminal": (print_and_escape, "lock"),
}


@pytest.mark.parametrize("fault", CARELESS)
def test_a_careless_command_is_found(workspace, monkeypatch, fault):
    function, element = CARELESS[fault]
    monkeypatch.chdir(workspace.root)
    monkeypatch.setitem(ALL, "careless", lambda: function(element))
    found = faults_of(workspace.with_commands(["careless"]).outcomes(element, "link out"))
    assert found["careless"].startswith(fault.partition(",")[0])


# ------------------------------------------------------------ the whole table


@pytest.mark.nightly
@pytest.mark.slow  # runs every command with every hostile object
def test_every_command_survives_every_hostile_element(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    workspace = Workspace(tmp_path, FAST | SLOW).build()
    assert workspace.outcomes("", NOTHING) == dict.fromkeys(FAST | SLOW, "works")
    counts, faults = table(workspace, [*workspace.cases(), *(("", name) for name in CONTRADICTIONS)])
    print(summary(counts, faults))
    assert faults == []
    assert sum(count["works"] + count["refuses"] for count in counts.values()) > 3000


# ------------------------------------------------------------ the folder of a reproduction


def build_reproduction(path, text):
    """Write a reproduction with sweeps and its page."""
    path.mkdir(parents=True)
    reproduction(path, title=text)
    for name in ("main", "costs"):  # their figures take seconds
        shutil.rmtree(path / name)
    TaskStore(path / "tasks").put(hostile.TASK, TaskResult(prompt=text.encode()))
    folder = SweepFolder(path / "mine")
    table = load_table(folder)
    write_table(folder.report, table)
    write_figure(folder, table)
    write_page(path)


@pytest.mark.nightly
@pytest.mark.slow  # draws a page for each hostile part
def test_a_reproduction_survives_every_hostile_part(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    workspace = Workspace(tmp_path, REPRODUCTION, "papers").build()
    assert workspace.outcomes("", NOTHING) == dict.fromkeys(REPRODUCTION, "works")
    counts, faults = table(workspace, workspace.cases())
    print(summary(counts, faults))
    assert faults == []
    assert sum(count["works"] + count["refuses"] for count in counts.values()) > 100


# ------------------------------------------------------------ python -m tests.test_hostile_folder


def print_table(workspace, cases):
    def show_progress(number, faults):
        if faults or number % 20 == 0:
            print("\n".join([f"{number} of {len(cases)} cases", *faults]), file=sys.stderr, flush=True)

    counts, faults = table(workspace, cases, show_progress)
    for (name, kind), words in sorted(counts.items()):
        print(f"{name:22} {kind:15} {words['works']:4} work, {words['refuses']:4} refuse")
    print("\n".join([*faults, summary(counts, faults)]))


def main(names):
    sweeps = [name for name in FAST | SLOW if name in names or not names]
    tables = [name for name in REPRODUCTION if name in names or not names]
    with tempfile.TemporaryDirectory() as folder:
        if sweeps:
            workspace = Workspace(Path(folder, "sweeps"), sweeps).build()
            print_table(workspace, [*workspace.cases(), *(("", name) for name in CONTRADICTIONS)])
        if tables:
            workspace = Workspace(Path(folder, "papers"), tables, "papers").build()
            print_table(workspace, workspace.cases())


if __name__ == "__main__":
    main(sys.argv[1:])
