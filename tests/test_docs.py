"""Files, commands, flags, links and tables that the documents name exist; pages are short."""

import importlib
import importlib.util
import re
import shlex
from pathlib import Path
from typing import get_args

import pytest
import yaml

from fpp_sweep.core.datasets import Group
from fpp_sweep.spec import catalogue
from fpp_sweep.spec.config import TrialConfig
from fpp_sweep.spec.tasks import views_for
from fpp_sweep.spec.version import VERSION
from tests.kit.doc_words import (
    MAX_PAGES,
    MAX_PARAGRAPH_WORDS,
    MAX_README_WORDS,
    MAX_WORDS,
    count_words,
    pages,
    paragraphs,
    readme_words,
    words_of_page,
)
from tools.tables import updated

ROOT = Path(__file__).parent.parent
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("studies/*.md")])
# Studies of removed code: their commands are history and need not exist.
HISTORY = [ROOT / "CHANGELOG.md", *ROOT.glob("studies/*.md")]


TERMS = (ROOT / "docs/how_an_answer_is_found.md").read_text().partition("## Terms\n")[2]


def blocks(path: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", path.read_text(), flags=re.M | re.S)


def test_the_first_two_commands_set_up_and_run_the_job_and_the_tests():
    job, tests = blocks(ROOT / "README.md", "sh")
    assert job.strip().endswith("python -m fpp_sweep.tune --space search_spaces/perturb.yaml")
    assert tests.strip().endswith("python -m pytest")
    assert job.count("\n") == tests.count("\n") == 1


@pytest.mark.parametrize("path", [path for path in DOCUMENTS if path not in HISTORY], ids=lambda path: path.name)
def test_commands_exist(path):
    for module in re.findall(r"python -m ((?:fpp_sweep|benchmarks|tools)[\w.]*)", path.read_text()):
        if module != "fpp_sweep.COMMAND":
            assert importlib.util.find_spec(module.rstrip(".")), module


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(path):
    for target in re.findall(r"\]\(([^)#:]+)\)", path.read_text()):
        assert (path.parent / target).exists(), target


def printed_commands(path: Path) -> list[list[str]]:
    """Return the words of each fpp_sweep command in the blocks of a page: the module's name, then the arguments."""
    commands = []
    for language in ("sh", "bash"):
        for block in blocks(path, language):
            lines = block.replace("\\\n", " ").splitlines()
            for line in lines:
                match = re.search(r"(?:python -m fpp_sweep[. ]|fpp-sweep )(\w+)(.*)", line)
                if match:
                    arguments = re.sub(r"'$", "", match[2]) if line.count("'") % 2 == 0 and "exec" in line else match[2]
                    arguments = arguments.partition(" > ")[0]
                    commands.append([match[1], *shlex.split(arguments, comments=True)])
    return commands


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_commands_that_documents_print_can_be_parsed(path):
    for name, *words in printed_commands(path):
        module = "fpp_sweep.reproduce.__main__" if name == "reproduce" else f"fpp_sweep.{name}"
        words = [word.strip("[]") if word.startswith("[--") else word.removesuffix("]") for word in words]
        importlib.import_module(module).parse(words)  # raises InputError for a flag that does not exist


def test_commands_are_found_in_pages():
    assert sum(len(printed_commands(path)) for path in DOCUMENTS) > 60


def test_the_index_lists_every_page():
    index = (ROOT / "docs/README.md").read_text()
    missing = [path.name for path in (ROOT / "docs").glob("*.md") if f"({path.name})" not in index]
    assert missing == ["README.md"]


def test_the_tables_of_the_readme_name_every_method_and_metric():
    text = (ROOT / "README.md").read_text()
    section = text.partition("## Methods and metrics\n")[2].partition("\n## ")[0]
    named = {name for line in section.splitlines() if line.startswith("|") for name in re.findall(r"`(\w+)`", line)}
    assert {*catalogue.METHODS, *catalogue.METRICS} <= named


@pytest.mark.parametrize("name", ["sweep.html", "reproduction.html", "sweep.txt"])
def test_a_demonstration_is_small_and_names_no_folder_of_the_machine_that_made_it(name):
    text = (ROOT / "docs/demo" / name).read_text()
    assert len(text) < 4_000_000
    assert not re.findall(r"/(?:tmp|root|home|work)/", text)


def test_the_documentation_is_short():
    assert sum(words_of_page(path) for path in pages()) <= MAX_WORDS
    assert len(pages()) <= MAX_PAGES
    assert readme_words(ROOT / "README.md") <= MAX_README_WORDS


@pytest.mark.parametrize("path", pages(), ids=lambda path: path.name)
def test_paragraphs_are_short(path):
    long = [
        paragraph[:60] for paragraph in paragraphs(path.read_text()) if count_words(paragraph) > MAX_PARAGRAPH_WORDS
    ]
    assert not long


@pytest.mark.parametrize("path", pages(), ids=lambda path: path.name)
def test_pages_begin_with_their_purpose(path):
    lines = path.read_text().splitlines()
    assert lines[0].startswith("# ")
    assert re.match(r"This (page|tutorial|note) ", lines[2]), lines[2]


@pytest.mark.parametrize("path", pages(), ids=lambda path: path.name)
def test_tables_that_follow_from_the_code_are_up_to_date(path):
    assert updated(path.read_text()) == path.read_text(), "run: python -m tools.tables"


def test_every_setting_has_a_meaning():
    rows = re.findall(r"^\| `[\w.]+` \|.*\|$", (ROOT / "docs/config.md").read_text(), flags=re.M)
    assert len(rows) > 30
    assert not [row for row in rows if not row.strip("|").split(" | ")[-1].strip()]


@pytest.mark.parametrize("method", ["tda", "boostadapter", "tpt"])
def test_the_table_of_methods_names_every_group_on_which_a_method_takes_one_view(method):
    config = TrialConfig(method=method, prompt="a photo of a")
    groups = [group for group in get_args(Group) if views_for(config, group).count == 1]
    lines = (ROOT / "docs/methods.md").read_text().partition("<!-- table: methods -->")[2].splitlines()
    (row,) = [line for line in lines if line.startswith(f"| `{method}` |")]
    views = row.split(" | ")[2].strip()
    assert views.removeprefix("all").removeprefix("; 1 on ") == ", ".join(groups)


def test_names_of_the_glossary_are_those_of_the_code():
    rows = re.findall(r"^\| (?!term|---)(.*?) \| (.*?) \| (.*) \|$", TERMS, flags=re.M)
    code = "\n".join(path.read_text() for path in (ROOT / "fpp_sweep").rglob("*.py"))
    assert len(rows) > 20
    for term, meaning, names in rows:
        assert meaning.count(".") == 0, f"{term}: one sentence"
        for name in re.findall(r"`(.*?)`", names):
            assert name in code, f"{term}: {name}"


def test_lines_that_troubleshooting_explains_are_those_of_the_code():
    code = "\n".join(path.read_text() for path in (ROOT / "fpp_sweep").rglob("*.py"))
    code = re.sub(r"\"\s*\n\s*f?\"", "", code)  # a line of text over two of code
    lines = re.findall(r"^\| `([^`]+)` \|", (ROOT / "docs/install.md").read_text(), flags=re.M)
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
