"""The conformance table: each rule of the published protocol, what this package does, and the test that checks it.

    python -m tools.conformance > docs/conformance.md

`conformance.yaml` beside this file has the rows. `{...}` in its texts is replaced by a value of the configuration or
the catalogue: `{fpp.gamma2}` is a default, `{paper:fpp.gamma2}` a value of the preset `paper`, `{ctpt.weight}` and
`{ece.title}` are values of a row of the catalogue, `{lambda 10}` is lambda for ten classes, and `{views kept}` the
number of selected views. Tests are named as pytest does, relative to tests/.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fpp_sweep.core.datasets import DATASETS
from fpp_sweep.space.yamlfile import read
from fpp_sweep.spec import catalogue
from fpp_sweep.spec.config import PRESETS, TrialConfig, preset

PATH = Path(__file__).with_suffix(".yaml")
SOURCES = {
    "both": "paper and code agree (FPP's, or those of the method itself)",
    "code": "only the code says it, or the code differs from the paper and is followed",
    "paper": "only the paper says it",
    "ours": "no source says it, and the choice is ours",
    "differs": "a source says otherwise, and the package differs on purpose; the row describes the source",
}
HEAD = """# Conformance

This page lists the rules of the published protocol, what the package does, and the tests that check it. It is generated
from `tools/conformance.yaml` with values of the config and the catalogue:

    python -m tools.conformance > docs/conformance.md

There are {rules} rules, {untested} of them without a test. Their sources are:

{sources}

Settings are shown with their default, which is the preset `code`, and with the value of the preset `paper` where it
differs. The preset `tiny` of the embedded model changes some settings ([config.md](config.md)). `--set KEY=VALUE`
changes a setting in every command. Tables are those of `reproduce --table NAME` ([reproduce.md](reproduce.md)).
"""
DISAGREEMENTS = """## Where paper and code disagree

The default is the variant that most likely produced the printed rows: the released code wherever there is some.
`--set preset=paper` takes the paper's side of pretraining in all points at once. Table `disagreements` runs the code's
settings, each difference alone, and the whole preset, which is

{paper}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A rule of the protocol; its subject is `what`, or `names` of methods or metrics."""

    ours: str
    source: str
    what: str = ""
    names: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    tests: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """Rules under a heading."""

    title: str
    rules: tuple[Rule, ...]
    note: str = ""
    datasets: bool = False  # whether the table of datasets follows this section


@dataclass(frozen=True, slots=True, kw_only=True)
class Disagreement:
    """Both sides of a disagreement, the default with its reason, and how to run the other side."""

    topic: str
    paper: str
    code: str
    default: str
    other: str
    tests: tuple[str, ...] = ()


def read_rows() -> tuple[list[Section], list[Disagreement]]:
    """Read conformance.yaml."""
    content = read(PATH, "conformance table").plain()
    sections = []
    for entry in content["sections"]:
        rules = tuple([Rule(**_with_tuples(rule)) for rule in entry["rules"]])
        sections.append(Section(**{**entry, "rules": rules}))
    disagreements = [Disagreement(**_with_tuples(entry)) for entry in content["disagreements"]]
    return sections, disagreements


def _with_tuples(entry: dict[str, Any]) -> dict[str, Any]:
    converted = {}
    for key, value in entry.items():
        converted[key] = tuple(value) if isinstance(value, list) else value
    return converted


def page() -> str:
    """Return docs/conformance.md."""
    sections, disagreements = read_rows()
    blocks = [_head(sections)]
    blocks += [_section(section) for section in sections]
    paper = "\n".join([f"- `--set {key}={{paper:{key}}}`" for key in PRESETS["paper"]])
    blocks.append(DISAGREEMENTS.format(paper=paper))
    for number, disagreement in enumerate(disagreements, start=1):
        blocks.append(_disagreement(number, disagreement))
    values = placeholder_values()
    return re.sub(r"\{([^{}]+)\}", lambda match: values[match[1]], "\n".join(blocks))


def _head(sections: list[Section]) -> str:
    counts: Counter[str] = Counter()
    untested = 0
    for section in sections:
        for rule in section.rules:
            counts[rule.source] += 1
            untested += not rule.tests
    sources = [f"- `{source}` ({counts[source]}): {meaning}" for source, meaning in SOURCES.items()]
    return HEAD.format(rules=counts.total(), untested=untested, sources="\n".join(sources))


def placeholder_values() -> dict[str, str]:
    """Return the values of all names that may stand in braces."""
    code, paper = TrialConfig(), preset("paper")
    values: dict[str, Any] = {
        "lambda 10": code.fpp.flatness_weight(10),
        "paper:lambda 10": paper.fpp.flatness_weight(10),
        "views kept": int(code.adapt.view_fraction * code.views.count),
    }
    for key, value in code.flat().items():
        values[key] = value
        values[f"paper:{key}"] = paper.flat()[key]
    for metric in catalogue.METRICS.values():
        values[f"{metric.name}.title"] = metric.title
    for method in catalogue.METHODS.values():
        values[f"{method.name}.title"] = method.title
        values[f"{method.name}.weight"] = method.weight
        values[f"{method.name}.weight_on_shifts"] = method.weight_on_shifts
    return {key: format_setting(value) for key, value in values.items()}


def format_setting(value: object) -> str:
    """Return a setting's value as one types it.

    >>> format_setting(True), format_setting(None), format_setting(15.0), format_setting("noisy")
    ('true', 'none', '15', 'noisy')
    """
    if isinstance(value, bool) or value is None:
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:g}"
    return str(value)


def _section(section: Section) -> str:
    rows = []
    for rule in section.rules:
        subject = rule.what or ", ".join([f"`{name}`" for name in rule.names])
        settings = "<br>".join([_setting(key) for key in rule.keys])
        rows.append([subject, rule.ours, rule.source, settings, _test_links(rule.tests, "<br>")])
    lines = [f"## {section.title}", ""]
    if section.note:
        lines += [section.note, ""]
    lines += _table(["rule", "what the package does", "source", "settings", "tests"], rows)
    lines.append("")
    if section.datasets:
        lines += _datasets()
    return "\n".join(lines)


def _datasets() -> list[str]:
    """Return the table of the paper's datasets."""
    rows = []
    for name, spec in DATASETS.items():
        if spec.group == "tiny":
            continue
        augmix = "on" if spec.augmix else "off"
        weight = "{fpp.lambda_shifts}" if spec.group == "shifts" else "the rule"
        rows.append([f"`{name}`", ", ".join(spec.aliases), format_setting(spec.test_size), augmix, weight])
    heads = ["dataset", "other names", "test images, as published", "AugMix", "lambda"]
    return [*_table(heads, rows), ""]


def _disagreement(number: int, disagreement: Disagreement) -> str:
    lines = [
        f"### {number}. {disagreement.topic}",
        "",
        f"- Paper: {disagreement.paper}",
        f"- Code: {disagreement.code}",
        f"- Default: {disagreement.default}",
        f"- The other side: {disagreement.other}",
        f"- Tests: {_test_links(disagreement.tests, ', ')}",
        "",
    ]
    return "\n".join(lines)


def _table(heads: list[str], rows: list[list[str]]) -> list[str]:
    return [f"| {' | '.join(cells)} |" for cells in (heads, ["---"] * len(heads), *rows)]


def _setting(key: str) -> str:
    setting = f"`{key}` = {{{key}}}"
    if key in PRESETS["paper"]:
        setting += f" (paper: {{paper:{key}}})"
    return setting


def _test_links(tests: Iterable[str], separator: str) -> str:
    """Return links to tests; their names are sentences, and the links show them as sentences."""
    links = []
    for test in tests:
        path, _, name = test.partition("::")
        sentence = name.removeprefix("test_").replace("_", " ")
        links.append(f"[{sentence}](../tests/{path})")
    return separator.join(links) or "no test"


if __name__ == "__main__":
    print(page(), end="")
