"""The shipped spaces, the JSON schema for editors, and docs/spaces.md."""

import json
import re
from pathlib import Path

import pytest

from fpp_sweep.space.objectives import Constraint, Objective
from fpp_sweep.space.params import PARAM_KEYS
from fpp_sweep.space.reading import load_space, parse_space
from fpp_sweep.space.space import Space
from fpp_sweep.space.work import Search, Work
from fpp_sweep.space.yamlfile import parse, read
from fpp_sweep.spec.config import PRESETS
from fpp_sweep.spec.errors import InputError
from fpp_sweep.spec.validation import keys
from tools.schema import main as print_schema
from tools.schema import schema

ROOT = Path(__file__).parents[2]
SHIPPED = sorted((ROOT / "search_spaces").glob("*.yaml"))
DOCUMENT = (ROOT / "docs/spaces.md").read_text()


def fits_the_schema(document):
    jsonschema = pytest.importorskip("jsonschema")  # a dependency of MLflow and Ray
    return jsonschema.Draft202012Validator(schema()).is_valid(document)


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_shipped_spaces_state_their_purpose_and_fit_the_schema(path):
    lines = path.read_text().splitlines()
    assert lines[0].startswith("# ")
    assert f"#     python -m fpp_sweep.tune --space search_spaces/{path.name}" in lines
    assert "# yaml-language-server: $schema=schema.json" in lines
    assert fits_the_schema(read(path, "space").value)
    assert load_space(path).question.endswith("?")


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_shipped_spaces_try_both_published_points_on_every_model(path):
    for overrides in ([], ["work.model=ViT-B-16/openai", "work.datasets=[dtd]"]):
        space = load_space(path, overrides)
        assert {"code", "paper"} <= {origin for origin, _ in space.queue()}
        assert space.notes() == []
        for _, values in space.queue():
            assert space.resolve(values)


def test_paper_vs_code_ends_with_the_papers_preset():
    last = load_space(ROOT / "search_spaces/paper_vs_code.yaml").grid[-1]
    assert {key: values[0] for key, values in last.items()} == PRESETS["paper"]


def test_the_schema_on_disk_is_up_to_date(capsys):
    print_schema([])
    written = (ROOT / "search_spaces/schema.json").read_text()
    assert capsys.readouterr().out == written
    assert json.loads(written) == json.loads(json.dumps(schema()))
    assert written.count("\n") < 450


def test_the_error_in_the_document_is_the_one_that_is_printed():
    text = (ROOT / "search_spaces/perturb.yaml").read_text()
    wrong = text.replace("fpp.gamma1: {low: 0.1, high: 10,", "fpp.gamma1: {low: 3, high: 1,")
    with pytest.raises(InputError) as error:
        parse_space(wrong, "search_spaces/perturb.yaml")
    assert f"    error: {error.value}\n" in DOCUMENT


def test_the_schema_is_a_valid_json_schema():
    jsonschema = pytest.importorskip("jsonschema")
    jsonschema.Draft202012Validator.check_schema(schema())


@pytest.mark.parametrize(
    "text",
    [
        "parms: {}",
        "params: {fpp.gamma9: [1]}",
        "params: {fpp.noise_shared: {low: 0, high: 1}}",
        "params: {fpp.gamma1: {low: 1, high: a}}",
        "params: {method: [tptt]}",
        "objectives: [acuracy]",
        "search: {trials: 0}",
        "work: {datasets: dtd}",
        "search: {trials: true}",
        "search: {wall_clock: soon}",
        "search: {finalists: {seeds: 101}}",
        "work: {seeds: [0, 0]}",
        "work: {device: gpu}",
        "work: {baselines: [tptt]}",
        "constraints: [{metric: ece, at_most: low}]",
        "grid: [{fpp.gamma9: 1}]",
        "grid: [{}]",
        "points: [{}]",
        "params: {fpp.draws: {low: 1, high: 4, step: 1}}",
    ],
)
def test_the_schema_refuses_slips(text):
    assert not fits_the_schema(parse(text, "x.yaml").value)


def test_the_document_lists_exactly_the_keys_that_exist():
    inner = {"params.*": PARAM_KEYS, "objectives.N": keys(Objective), "constraints.N": keys(Constraint)}
    inner |= {"search": keys(Search), "work": keys(Work)}
    expected = []
    for key in keys(Space):
        if key not in inner:
            expected.append(key)
        for path, names in inner.items():
            if path.partition(".")[0] == key:
                expected += [f"{path}.{name}" for name in names]
    assert re.findall(r"^\| `([\w.*]+)` \|", DOCUMENT, flags=re.M) == expected


def test_the_examples_of_the_document_are_valid():
    examples = re.findall(r"^```yaml\n(.*?)^```", DOCUMENT, flags=re.M | re.S)
    assert len(examples) == 2
    for example in examples:
        assert parse_space(example, "x.yaml").queue()
        assert fits_the_schema(parse(example, "x").value)
