"""A sweep's folder from another person: each file and folder in turn is replaced with a hostile object.

Every command either works or refuses in one line. No command reads, writes or deletes anything outside the folder,
waits for ever, or reads a file of terabytes. `python -m tests.test_hostile_folder` prints the whole table.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import io
import json
import os
import shutil
import signal
import sys
import tempfile
from collections import Counter
from pathlib import Path

import pytest

from fpp_sweep import compare, show, steer, sync
from fpp_sweep.cli.command import run
from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.records.log import write_line
from fpp_sweep.report.comparison import compare_sweeps
from fpp_sweep.report.comparison_view import sweep_comparison_document
from fpp_sweep.report.document import document_to_text
from fpp_sweep.report.results_file import write_results
from fpp_sweep.reproduce.page import write_page
from fpp_sweep.reproduce.running import Reproduction
from fpp_sweep.space.reading import load_space, space_of
from fpp_sweep.spec.files import write_json
from fpp_sweep.sweep.api import Options
from fpp_sweep.sweep.notebook import as_html
from fpp_sweep.sweep.request import space_to_evaluate
from fpp_sweep.sweep.resume import load_for_resume, merge_resume_request
from fpp_sweep.trial.store import TaskStore
from tests.kit.measured import FAR_APART, World, write_measured_sweep
from tests.reproduce.test_page import reproduction

KINDS = ("link out", "folder", "pipe", "unreadable", "huge")
SECRET = "not for your eyes"
SECONDS = 60  # a command that runs longer counts as one that waits for ever
HUGE = 2**41  # bytes of a sparse file: more than any machine has memory
LOG = "2026-11-20 19:12:33 evaluate scenes, config trial-0002: begins\n"


def build_template(path):
    """Build a sweep with a file of every kind that a sweep writes."""
    space = load_space("perturb").plain()
    folder = write_measured_sweep(path, World(64), FAR_APART, splits=("val", "test"), space=space)
    name = "trial-0002"
    write_line(folder.artifacts(name) / "log.txt", "trial-0002 begins on val")
    for file in ("prompts/scenes.seed0.safetensors", "val/skipped.json", "val/scenes.seed0.predictions.parquet"):
        (folder.artifacts(name) / file).parent.mkdir(exist_ok=True)
        (folder.artifacts(name) / file).write_text("[]")
    (folder.artifacts(name) / "val/reliability.png").write_bytes(b"\x89PNG")
    write_json(folder.race(name) / "decisions.json", {"config": name, "decisions": []})
    write_line(folder.path / "logs/machine-1.log", "evaluate scenes, config trial-0002: begins")
    folder.send_command("budget", {"trials": 20})
    (folder.path / "lock").write_text("1")
    (folder.path / "study.journal").write_text("")
    (folder.path / "mlflow_sync.json").write_text("{}")
    (folder.path / "mlflow_sync.lock").write_text("1")
    (folder.tasks / "ab").mkdir(parents=True)
    (folder.tasks / "ab/abcd.task").write_text("")
    show.main([str(path), "--page"])
    return folder


def hostile_paths(root):
    """Return one path of each kind of file and folder in a sweep's folder, relative to it."""
    paths = sorted(str(path.relative_to(root)) for path in root.rglob("*"))
    shown = [path for path in paths if "trial-0003" not in path and "baseline" not in path and "/test" not in path]
    return [path for path in shown if "/best/" not in path or path.endswith(("knee.yaml", ".written.json"))]


def plant(path, kind, outside):
    """Replace a file or folder with a hostile object; return False if the kind does not apply to it."""
    is_folder = path.is_dir()
    if kind == "unreadable":
        path.chmod(0)
        return True
    if (kind, is_folder) in (("folder", True), ("huge", True)):
        return False
    path.rename(outside / "original")
    if kind == "link out":
        path.symlink_to(outside / "original")
    elif kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.touch()
        os.truncate(path, HUGE)
    return True


class Header(ctypes.Structure):
    _fields_ = [("version", ctypes.c_uint32), ("pid", ctypes.c_int)]


class Capabilities(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint32) for name in ("effective", "permitted", "inheritable")]


@contextlib.contextmanager
def without_root_rights():
    """Remove root's right to read and write everything within the block."""
    libc = ctypes.CDLL(None, use_errno=True)
    header, both = Header(0x20080522, 0), (Capabilities * 2)()
    libc.capget(ctypes.byref(header), both)
    before = both[0].effective
    both[0].effective &= ~0b110  # CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH
    libc.capset(ctypes.byref(header), both)
    try:
        yield
    finally:
        both[0].effective = before
        libc.capset(ctypes.byref(header), both)


def resume(sweep):
    """Run a driver's work in the folder before Ray starts, and read a cached result of a task."""
    folder = SweepFolder.open(Path(sweep))
    with folder.locked():
        space = space_of(folder.info().space, "space")
        load_for_resume(space, Options(), folder)
        merge_resume_request(space, folder.info(), folder)
        folder.record_applied(folder.send_command("budget", {"trials": 30}))
        TaskStore(folder.tasks).get("abcd")
        write_line(folder.artifacts("trial-0002") / "log.txt", "trial-0002 begins on val")


import_command = importlib.import_module("fpp_sweep.import")  # `import` is a keyword of Python


def import_predictions():
    Path("theirs.csv").write_text("id,p0,p1\na.png,0.5,0.5\n")
    import_command.main(["theirs.csv", "--as", "theirs", "--into", "sent"])


def compare_without_pictures(*names):
    comparison = compare_sweeps({name: SweepFolder.open(Path("sweeps", name)) for name in names})
    print(document_to_text(sweep_comparison_document(comparison, []), 100))


FAST = {
    "show": lambda: show.main(["sent"]),
    "show all": lambda: show.main([]),
    "show trial": lambda: show.main(["sent", "trial-0002"]),
    "notebook": lambda: as_html(SweepFolder.open(Path("sweeps/sent"))),
    "compare sweeps": lambda: compare_without_pictures("sent", "other"),
    "compare trials": lambda: compare.main(["sent", "trial-0002", "trial-0003", "--out", "comparison"]),
    "steer add": lambda: steer.main(["sent", "add", "fpp.gamma2=3"]),
    "steer stop": lambda: steer.main(["sent", "stop", "trial-0002"]),
    "steer budget": lambda: steer.main(["sent", "budget", "--trials", "40"]),
    "resume": lambda: resume("sweeps/sent"),
    "evaluate --config": lambda: space_to_evaluate([], config=Path("sweeps/sent/report/best/knee.yaml")),
    "results": lambda: write_results(SweepFolder.open(Path("sweeps/sent"))),
    "import": import_predictions,
}
SLOW = {
    "compare with a picture": lambda: compare.main(["sent", "other", "--out", "comparison"]),
    "show --page": lambda: show.main(["sent", "--page"]),
    "sync": lambda: sync.main(["sent", "--into", "sqlite:///mlflow.db", "--retry-for", "0.1"]),
}


def snapshot(folder):
    """Return modification time and number of links of everything in a folder."""
    return {str(path): (path.lstat().st_mtime_ns, path.lstat().st_nlink) for path in sorted(folder.rglob("*"))}


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
    lines = [line for line in err.getvalue().splitlines() if line.startswith("error: ")]
    if SECRET in out.getvalue() + err.getvalue():
        return "shows what lies outside"
    if "Traceback" in err.getvalue() or (code, len(lines)) not in ((0, 0), (2, 1), (1, 1)):
        return f"code {code}, {err.getvalue()[-300:]!r}"
    return "works" if code == 0 else f"refuses: {lines[0][:150]}"


class Workspace:
    """A folder in which each hostile object gets fresh copies of the sweeps `sent` and `other`."""

    def __init__(self, root, commands):
        self.root, self.commands = root, commands
        self.template = build_template(root / "template/sent").path
        self.empty = root / "empty.db"
        if "sync" in commands:
            from fpp_sweep.tracking.uri import connect

            connect(f"sqlite:///{self.empty}")

    def outcomes(self, element, kind):
        """Return the outcome of each command with one hostile element, or no outcome if the kind does not apply."""
        folder = Path(tempfile.mkdtemp(dir=self.root))
        outside, sent = folder / "outside", folder / "work/sweeps/sent"
        outside.mkdir()
        shutil.copytree(self.template, sent)
        (sent.parent / "other").symlink_to(self.template)
        if self.empty.is_file():
            shutil.copyfile(self.empty, folder / "work/mlflow.db")
        if kind in CONTRADICTIONS:
            contradict(sent, kind)
        elif not plant(sent / element, kind, outside):
            return {}
        if (outside / "original").is_file():
            (outside / "original").write_text(SECRET)
        before = snapshot(outside)
        os.chdir(folder / "work")
        ended = {}
        for name, command in self.commands.items():
            with without_root_rights():
                ended[name] = outcome(command)
            if snapshot(outside) != before:
                ended[name] = "changes what lies outside"
                before = snapshot(outside)
        os.chdir(self.root)
        return ended


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


TRIAL, SWEEP = "trials/trial-0002.json", "sweep.json"
CONTRADICTIONS = {  # by description: the file and the change to it
    "a dataset without numbers": (TRIAL, remove_dataset),
    "a dataset of no other trial": (TRIAL, rename_dataset),
    "an average without an objective": (TRIAL, remove_metric),
    "fewer values than objectives": (TRIAL, lambda record: record.update(values=[1.0])),
    "no values": (TRIAL, lambda record: record.update(values=None)),
    "a param that the space lacks": (TRIAL, lambda record: record.update(params={"fpp.steps": 3})),
    "a param outside its range": (TRIAL, lambda record: record.update(params={"fpp.gamma2": 1e9})),
    "a param of no setting": (TRIAL, lambda record: record.update(params={"no.such": 3})),
    "a setting of no method": (TRIAL, lambda record: record.update(config={"method": "none"})),
    "the number of another trial": (TRIAL, lambda record: record.update(number=3)),
    "complete without results": (TRIAL, lambda record: record.update(results={})),
    "a constraint that the sweep lacks": (TRIAL, lambda record: record.update(constraints={"x": 1.0})),
    "an estimate of other objectives": (TRIAL, lambda record: record.update(state="stopped", estimate=[1.0])),
    "another metric as objective": (SWEEP, lambda info: info["objectives"][1].update(metric="aurc")),
    "one objective less": (SWEEP, lambda info: info["objectives"].pop()),
    "another split": (SWEEP, lambda info: info.update(search_split="train")),
    "a corner of other objectives": (SWEEP, lambda info: info.update(reference=[1.0, 2.0, 3.0])),
    "a space without params": (SWEEP, lambda info: info.update(space={"search": {}})),
    "an empty space": (SWEEP, lambda info: info.update(space={})),
}


def contradict(sent, name):
    file, change = CONTRADICTIONS[name]
    (sent / file).write_text(edited((sent / file).read_text(), change))


QUICK = {
    name: FAST[name]
    for name in ("show", "show all", "show trial", "compare trials", "steer budget", "resume", "evaluate --config")
}
COMBINATIONS = [  # combinations that once revealed a fault, and one of each folder
    ("sweep.json", "link out"),
    ("trials", "link out"),
    ("trials/trial-0002.json", "link out"),
    ("trials/trial-0002.json", "pipe"),
    ("trials/trial-0002.json", "huge"),
    ("trials", "unreadable"),
    ("artifacts", "link out"),
    ("artifacts/trial-0002/log.txt", "link out"),
    ("artifacts/trial-0002/log.txt", "pipe"),
    ("artifacts/trial-0002/log.txt", "huge"),
    ("artifacts/trial-0002/val/block_stats.npz", "pipe"),
    ("artifacts/trial-0002/val/block_stats.npz", "folder"),
    ("steering", "link out"),
    ("lock", "pipe"),
    ("report/best/knee.yaml", "link out"),
    ("report/best/knee.yaml", "pipe"),
    ("tasks/ab/abcd.task", "link out"),
]


@pytest.fixture(scope="module")
def workspace(tmp_path_factory):
    return Workspace(tmp_path_factory.mktemp("hostile"), QUICK)


def faults_of(outcomes):
    return {name: ended for name, ended in outcomes.items() if not ended.startswith(("works", "refuses"))}


def test_the_folder_without_hostile_objects_is_accepted(workspace, monkeypatch):
    monkeypatch.chdir(workspace.root)
    (workspace.root / "sweeps").mkdir()
    shutil.copytree(workspace.template, workspace.root / "sweeps/sent")
    (workspace.root / "sweeps/other").symlink_to(workspace.template)
    ended = {name: outcome(command) for name, command in FAST.items()}
    assert ended.pop("steer stop").startswith("refuses: error: trial-0002 is complete")
    assert ended.pop("import").startswith("refuses: error: ")  # the test's predictions do not fit the sweep
    assert set(ended.values()) == {"works"}


@pytest.mark.parametrize(("element", "kind"), COMBINATIONS, ids=lambda value: value.replace(" ", "-"))
def test_a_command_works_or_refuses_in_one_line(workspace, monkeypatch, element, kind):
    monkeypatch.chdir(workspace.root)
    assert faults_of(workspace.outcomes(element, kind)) == {}


@pytest.mark.parametrize("kind", ["a dataset without numbers", "another metric as objective", "an empty space"])
def test_contradictory_records_are_refused_in_one_line(workspace, monkeypatch, kind):
    monkeypatch.chdir(workspace.root)
    both = Workspace.__new__(Workspace)
    vars(both).update(vars(workspace), commands={**QUICK, "compare sweeps": FAST["compare sweeps"]})
    assert faults_of(both.outcomes("", kind)) == {}


@pytest.mark.nightly
@pytest.mark.slow  # runs every command with every hostile object
def test_every_command_survives_every_hostile_element(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    counts, faults = table(Workspace(tmp_path, FAST | SLOW))
    assert faults == []
    assert sum(count["works"] + count["refuses"] for count in counts.values()) > 1000


# ------------------------------------------------------------ the folder of a reproduction

REPRODUCTION = {
    "identity": lambda: Reproduction(folder=Path("papers"), experiments={}).identity(),
    "page": lambda: write_page(Path("papers")),
}
PARTS = ("reproduction.json", "mine", "mine/experiment.json", "mine/sweep.json", "mine/trials", "reproduction.html")


def outcomes_of_reproduction(root, template, element, kind):
    """Return the outcome of each command of `reproduce` with one hostile part in its folder."""
    folder = Path(tempfile.mkdtemp(dir=root))
    outside = folder / "outside"
    outside.mkdir()
    shutil.copytree(template, folder / "papers")
    if not plant(folder / "papers" / element, kind, outside):
        return {}
    if (outside / "original").is_file():
        (outside / "original").write_text(SECRET)
    before = snapshot(outside)
    os.chdir(folder)
    ended = {}
    for name, command in REPRODUCTION.items():
        with without_root_rights():
            ended[name] = outcome(command)
        if snapshot(outside) != before:
            ended[name] = "changes what lies outside"
    os.chdir(root)
    return ended


@pytest.mark.nightly
@pytest.mark.slow  # draws a page for each hostile part
def test_a_reproduction_survives_every_hostile_part(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    template = tmp_path / "template/papers"
    template.mkdir(parents=True)
    write_page(reproduction(template))
    faults = []
    for element in PARTS:
        for kind in KINDS:
            faults += [(element, kind, faults_of(outcomes_of_reproduction(tmp_path, template, element, kind)))]
    assert not [fault for fault in faults if fault[2]]


def table(workspace):
    """Return the counts of outcomes by command and kind, and all outcomes that are faults."""
    counts, faults = {}, []
    cases = [(element, kind) for element in hostile_paths(workspace.template) for kind in KINDS]
    for element, kind in [*cases, *(("", name) for name in CONTRADICTIONS)]:
        column = kind if kind in KINDS else "contradiction"
        for name, ended in workspace.outcomes(element, kind).items():
            counts.setdefault((name, column), Counter())[ended.partition(":")[0]] += 1
            if faults_of({name: ended}):
                faults.append(f"{name}, {element}, {kind}: {ended}")
    return counts, faults


def print_table(root, commands):
    counts, faults = table(Workspace(root, commands))
    for (name, kind), words in counts.items():
        print(f"{name:22} {kind:13} {dict(words)}")
    print("\n".join(faults))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        print_table(Path(folder), FAST | SLOW if "--all" in sys.argv else FAST)
