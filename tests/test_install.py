"""Use without a clone: shipped spaces, `init`, and a wheel with all files of the package."""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from fpp_sweep import tune
from fpp_sweep.space.reading import list_shipped_spaces, load_space, shipped_spaces
from fpp_sweep.spec.errors import InputError
from tests.kit.processes import ROOT

SPACES = ROOT / "search_spaces"
SOURCES = ("pyproject.toml", "setup.py", "README.md", "LICENSE", "fpp_sweep", "search_spaces")
BUILD_PROGRAM = "import sys; from setuptools import build_meta; print(build_meta.build_{}(sys.argv[1]))"
READ_PROGRAM = """
import json, sys
from fpp_sweep.space.reading import load_space, shipped_folder
texts = {path.name: path.read_bytes().hex() for path in shipped_folder().iterdir()}
print(json.dumps([str(shipped_folder()), load_space("perturb").name, texts]))
"""


def spaces_by_bytes(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


# ------------------------------------------------------------ shipped spaces


@pytest.mark.parametrize("path", sorted(SPACES.glob("*.yaml")), ids=lambda path: path.stem)
def test_a_shipped_space_opens_by_its_name(tmp_path, monkeypatch, path):
    monkeypatch.chdir(tmp_path)
    assert load_space(path.stem) == load_space(path)


def test_a_file_takes_precedence_over_a_shipped_space_of_the_same_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "perturb").write_text("params: {fpp.gamma1: [1, 2]}\n")
    assert [param.key for param in load_space("perturb").params] == ["fpp.gamma1"]


@pytest.mark.parametrize(
    ("word", "line"),
    [
        ("pertrub", "unknown search space 'pertrub', did you mean 'perturb'?"),
        ("mine", "unknown search space 'mine'; choose from methods, paper_vs_code, perturb, perturb_grid, smoke"),
        (
            "search_spaces/perturb.yaml",
            "search space search_spaces/perturb.yaml does not exist; perturb without a path is the shipped space",
        ),
        ("perturb.yaml", "search space perturb.yaml does not exist"),
        ("x" * 5000, "unknown search space"),
        ("\0", "unknown search space"),
    ],
)
def test_an_unknown_space_is_refused_with_the_nearest_name(tmp_path, monkeypatch, word, line):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError) as error:
        load_space(word)
    assert str(error.value).startswith(line)


def test_tune_lists_the_shipped_spaces_with_their_questions(capsys):
    tune.main(["--list-spaces"])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == [path.stem for path in sorted(SPACES.glob("*.yaml"))]
    for line in lines:
        name, question = line.split(maxsplit=1)
        assert question == load_space(name).question


def test_a_list_of_spaces_fits_the_terminal():
    lines = list_shipped_spaces(60).splitlines()
    assert len(lines) > len(shipped_spaces())
    assert max(len(line) for line in lines) <= 60


def test_tune_without_a_space_names_the_command_that_lists_spaces():
    with pytest.raises(InputError, match=r"--space: is missing; .* --list-spaces lists"):
        tune.main([])


# ------------------------------------------------------------ wheel and editable install


def copy_sources(folder):
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, folder / name)
    return folder


def build_and_unpack(kind, folder):
    """Build a wheel or an editable wheel from a copy of the sources; return the folder of its unpacked files."""
    sources = folder / "sources"
    sources.mkdir()
    copy_sources(sources)
    subprocess.run(
        [sys.executable, "-c", BUILD_PROGRAM.format(kind), str(folder)], cwd=sources, check=True, capture_output=True
    )
    (wheel,) = folder.glob("*.whl")
    installed = folder / "installed"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(installed)
    return installed


def run_outside(folder, installed, *words):
    """Run Python in a folder without a clone, with the unpacked package first on the path."""
    environment = os.environ | {"PYTHONPATH": str(installed)}
    done = subprocess.run([sys.executable, *words], cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.nightly
@pytest.mark.slow  # builds a wheel
def test_a_wheel_holds_the_same_spaces_and_every_file_of_the_package(tmp_path):
    installed = build_and_unpack("wheel", tmp_path)
    assert spaces_by_bytes(installed / "fpp_sweep/search_spaces") == spaces_by_bytes(SPACES)
    package = ROOT / "fpp_sweep"
    files = [path.relative_to(package) for path in package.rglob("*") if path.is_file()]
    wanted = [path for path in files if "__pycache__" not in path.parts]
    missing = [str(path) for path in wanted if not (installed / "fpp_sweep" / path).exists()]
    assert not missing
    outside = tmp_path / "outside"
    outside.mkdir()
    folder, name, _ = json.loads(run_outside(outside, installed, "-c", READ_PROGRAM))
    assert (Path(folder), name) == (installed / "fpp_sweep/search_spaces", "perturb")
    assert "perturb " in run_outside(outside, installed, "-m", "fpp_sweep", "tune", "--list-spaces")
    run_outside(outside, installed, "-m", "fpp_sweep", "init")
    assert f"$schema={installed}/fpp_sweep/search_spaces/schema.json" in (outside / "space.yaml").read_text()


@pytest.mark.nightly
@pytest.mark.slow  # builds a wheel
def test_an_editable_install_reads_the_spaces_of_the_clone(tmp_path):
    installed = build_and_unpack("editable", tmp_path)
    assert not (installed / "fpp_sweep").exists()
    libraries = sysconfig.get_path("purelib")  # its .pth files are not read: they may lead to this clone
    code = f"import site, sys; sys.path.append({libraries!r}); site.addsitedir({str(installed)!r})\n{READ_PROGRAM}"
    outside = tmp_path / "outside"
    outside.mkdir()
    folder, name, texts = json.loads(run_outside(outside, installed, "-S", "-c", code))
    assert (Path(folder), name) == (tmp_path / "sources/search_spaces", "perturb")
    assert {file: bytes.fromhex(text) for file, text in texts.items()} == spaces_by_bytes(SPACES)
