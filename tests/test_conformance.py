"""The conformance table agrees with its page, the settings, the catalogue, the tests and the commands."""

import ast
import re
import shlex
from functools import cache
from pathlib import Path

from fpp_sweep.reproduce.experiment_files import shipped
from fpp_sweep.spec import catalogue
from fpp_sweep.spec.config import TrialConfig, preset
from tools.conformance import SOURCES, page, read_rows

ROOT = Path(__file__).parents[1]
SECTIONS, DISAGREEMENTS = read_rows()
RULES = [rule for section in SECTIONS for rule in section.rules]


@cache
def function_names(path):
    """Return the names of all functions of a test file; the set is empty if the file is missing."""
    file = ROOT / "tests" / path
    nodes = ast.walk(ast.parse(file.read_text())) if file.exists() else ()
    return {node.name for node in nodes if isinstance(node, ast.FunctionDef)}


def test_the_page_in_docs_is_up_to_date():
    assert (ROOT / "docs/conformance.md").read_text() == page()


def test_every_setting_belongs_to_a_rule():
    assert {key for rule in RULES for key in rule.keys} == set(TrialConfig().flat())


def test_every_method_and_metric_has_a_row():
    named = [name for rule in RULES for name in rule.names]
    assert sorted(named) == sorted([*catalogue.METHODS, *catalogue.METRICS])


def test_every_row_is_complete():
    assert {rule.source for rule in RULES} == set(SOURCES)
    assert all(bool(rule.what) != bool(rule.names) for rule in RULES)
    assert len(DISAGREEMENTS) == 22
    for disagreement in DISAGREEMENTS:
        assert disagreement.paper
        assert disagreement.code
        assert disagreement.default
        assert disagreement.other


def test_every_named_test_exists():
    named = {tuple(test.split("::")) for row in (*RULES, *DISAGREEMENTS) for test in row.tests}
    assert {(path, name) for path, name in sorted(named) if name not in function_names(path)} == set()


def test_every_set_example_is_valid():
    examples = re.findall(r"`--set ([^`]+)`", page())
    examples.remove("KEY=VALUE")
    assert len(examples) > 20
    for example in examples:
        if example.startswith("preset="):
            continue
        config = TrialConfig().replace(dict(word.split("=", 1) for word in shlex.split(example)))
        assert config != TrialConfig(), example
        assert catalogue.method(config.method)


def test_the_listed_settings_of_the_paper_are_its_preset():
    (listed,) = re.findall(r"the whole preset, which is\n\n((?:- `--set .*`\n)+)", page())
    settings = re.findall("--set (.*?)=(.*)`", listed)
    assert TrialConfig().replace(dict(settings)) == preset("paper")


def test_every_named_table_is_shipped():
    named = set(re.findall(r"[Tt]able `(\w+)`", page()))
    assert named
    assert named <= set(shipped())


def test_every_referenced_disagreement_exists():
    headings = re.findall(r"^### (\d+)\. ", page(), flags=re.M)
    assert headings == [str(number) for number in range(1, len(DISAGREEMENTS) + 1)]
    assert set(re.findall(r"\(disagreement (\d+)\)", page())) <= set(headings)
