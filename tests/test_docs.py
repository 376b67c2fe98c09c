"""What the documents say is there, is there."""

import importlib.util
import re
from pathlib import Path

import pytest
import yaml

from fpp_sweep.spec.config import PRESETS, TrialConfig, preset
from fpp_sweep.spec.version import VERSION
from tools.catalogue_tables import markdown

ROOT = Path(__file__).parent.parent
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])


def blocks(path: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", path.read_text(), flags=re.M | re.S)


def test_the_first_two_commands_set_up_and_run_the_job_and_the_tests():
    job, tests = blocks(ROOT / "README.md", "sh")
    assert job.strip().endswith("python -m fpp_sweep.tune --space search_spaces/perturb.yaml")
    assert tests.strip().endswith("python -m pytest")
    assert job.count("\n") == tests.count("\n") == 1


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_commands_exist(path):
    for module in re.findall(r"python -m ((?:fpp_sweep|benchmarks|experiments|tools)[\w.]*)", path.read_text()):
        assert importlib.util.find_spec(module.rstrip(".")), module


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(path):
    for target in re.findall(r"\]\(([^)#:]+)\)", path.read_text()):
        assert (path.parent / target).exists(), target


def test_every_file_of_the_layout_exists():
    (layout,) = re.findall(r"## Layout\n\n```\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.S)
    names = re.findall(r"[\w/]+(?:\.py|/)", layout)
    folders = [ROOT, ROOT / "fpp_sweep"]
    assert len(names) > 20
    for name in names:
        assert any((folder / name).exists() for folder in folders), name


def test_the_tables_of_methods_and_metrics_are_those_of_the_catalogue():
    assert (ROOT / "docs/methods.md").read_text().endswith(f"\n\n{markdown()}\n")


def test_the_glossary_is_short():
    rows = [line for line in (ROOT / "docs/glossary.md").read_text().splitlines() if line.startswith("| ")]
    assert len(rows) <= 15


def shown(value: object) -> str:
    if isinstance(value, bool) or value is None:
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


def test_the_table_of_settings_is_complete_and_true():
    document = (ROOT / "docs/config.md").read_text()
    rows = re.findall(r"^\| `([\w.]+)` \| (.*?) \| (.*?) \| (.*?) \|", document, flags=re.M)
    table = {key: dict(zip(("code", "paper", "tiny"), cells, strict=True)) for key, *cells in rows}
    code = TrialConfig().flat()
    assert list(table) == list(code)
    for name in PRESETS:
        for key, value in preset(name).flat().items():
            expected = shown(value) if name == "code" or value != code[key] else ""
            assert table[key][name].strip() == expected, (name, key)


def test_lines_that_troubleshooting_explains_are_those_of_the_code():
    code = "\n".join(path.read_text() for path in (ROOT / "fpp_sweep").rglob("*.py"))
    code = re.sub(r"\"\s*\n\s*f?\"", "", code)  # a line of text over two of code
    lines = re.findall(r"^\| `([^`]+)` \|", (ROOT / "docs/troubleshooting.md").read_text(), flags=re.M)
    assert len(lines) > 10
    assert not [line for line in lines if line not in code]


def anchors(path: Path) -> set[str]:
    """Headings as they are linked to."""
    heads = re.findall(r"^#+ (.*)$", path.read_text(), flags=re.M)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_links_to_headings_lead_to_one(path):
    for file, anchor in re.findall(r"\]\(([^)#:]*)#([^)]+)\)", path.read_text()):
        assert anchor in anchors(path.parent / file if file else path), (file, anchor)


def test_who_cites_this_names_its_version():
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert cited["version"] == VERSION
    assert {"cff-version", "message", "title", "authors"} <= set(cited)
