"""The ledger of conformance: every rule of the published protocol, what is done here, and which test holds it.

    python -m tools.conformance > docs/conformance.md

conformance.yaml beside this file has the rows. `{...}` in its texts stands for a value that config or catalogue has:
`{fpp.gamma2}` of the default, `{paper:fpp.gamma2}` of the preset `paper`, `{ctpt.weight}` and `{ece.title}` of a row of
the catalogue, `{lambda 10}` for ten classes, `{views kept}` by selection. Tests are named as pytest does, below tests/.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fpp_sweep.core.datasets import DATASETS
from fpp_sweep.space.yamlfile import read
from fpp_sweep.spec import catalogue
from fpp_sweep.spec.config import PRESETS, TrialConfig, preset

PATH = Path(__file__).with_suffix(".yaml")
SOURCES = {
    "both": "a paper and its code, FPP's or the method's own, say the same",
    "code": "the code alone says it, or another thing than the paper, and is followed",
    "paper": "the paper alone says it",
    "ours": "no source says, and the choice is ours",
    "differs": "a source says otherwise, and we do it on purpose: the row tells what the source does",
}
HEAD = """# Conformance

What the published protocol asks for, what is done here, and which test holds it. Made from
`tools/conformance.yaml`, with values of the config and the catalogue:

    python -m tools.conformance > docs/conformance.md

{rules} rules, {untested} of them held by no test, come from

{sources}

Settings are shown with their default, which is the preset `code`, and with that of `paper` where it is another; on the
embedded model `tiny` changes some ([config.md](config.md)). `--set KEY=VALUE` changes one in every
command. Tables are those of `reproduce --table NAME` ([reproduce.md](reproduce.md)).
"""
DISAGREEMENTS = """## Where paper and code disagree

The default is what the printed rows were most likely made with, which is the released code wherever there is some.
`--set preset=paper` takes the paper's side of pretraining, all at once; table `disagreements` runs the code's settings,
each difference alone, and all of the preset, which is

{paper}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A rule of the protocol; instead of `what` it is about, it may have the names of methods or metrics."""

    ours: str
    source: str
    what: str = ""
    names: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    tests: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    title: str
    rules: tuple[Rule, ...]
    note: str = ""
    datasets: bool = False  # whether the table of datasets is part of it


@dataclass(frozen=True, slots=True, kw_only=True)
class Disagreement:
    """Both sides, which of them is the default and why, and how to run the other."""

    topic: str
    paper: str
    code: str
    default: str
    other: str
    tests: tuple[str, ...] = ()


def ledger() -> tuple[list[Section], list[Disagreement]]:
    content = read(PATH, "ledger").plain()
    sections = [Section(**{**one, "rules": tuple(_made(Rule, one["rules"]))}) for one in content["sections"]]
    return sections, list(_made(Disagreement, content["disagreements"]))


def page() -> str:
    """docs/conformance.md."""
    sections, disagreements = ledger()
    rules = [rule for section in sections for rule in section.rules]
    counted = Counter(rule.source for rule in rules)
    head = HEAD.format(
        rules=len(rules),
        untested=sum(not rule.tests for rule in rules),
        sources="\n".join(f"- `{source}` ({counted[source]}): {meaning}" for source, meaning in SOURCES.items()),
    )
    paper = "\n".join(f"- `--set {key}={{paper:{key}}}`" for key in PRESETS["paper"])
    blocks = [head, *map(_section, sections), DISAGREEMENTS.format(paper=paper)]
    blocks += [_disagreement(number, one) for number, one in enumerate(disagreements, start=1)]
    known = values()
    return re.sub(r"\{([^{}]+)\}", lambda match: known[match[1]], "\n".join(blocks))


def values() -> dict[str, str]:
    """What may stand in braces."""
    code, paper = TrialConfig(), preset("paper")
    found = {key: shown(value) for key, value in code.flat().items()}
    found |= {f"paper:{key}": shown(value) for key, value in paper.flat().items()}
    found |= {"lambda 10": shown(code.fpp.flatness_weight(10)), "paper:lambda 10": shown(paper.fpp.flatness_weight(10))}
    found["views kept"] = shown(int(code.adapt.view_fraction * code.views.count))
    found |= {f"{metric.name}.title": metric.title for metric in catalogue.METRICS.values()}
    for method in catalogue.METHODS.values():
        facts = ("title", "weight", "weight_on_shifts")
        found |= {f"{method.name}.{fact}": shown(getattr(method, fact)) for fact in facts}
    return found


def shown(value: object) -> str:
    """A setting's value as one types it.

    >>> shown(True), shown(None), shown(15.0), shown("noisy")
    ('true', 'none', '15', 'noisy')
    """
    if isinstance(value, bool) or value is None:
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


def _made(kind: type, entries: Iterable[dict[str, Any]]) -> Iterator[Any]:
    for entry in entries:
        yield kind(**{key: tuple(value) if isinstance(value, list) else value for key, value in entry.items()})


def _section(section: Section) -> str:
    lines = [f"## {section.title}", ""]
    lines += [section.note, ""] if section.note else []
    rows = [
        [
            rule.what or ", ".join(f"`{name}`" for name in rule.names),
            rule.ours,
            rule.source,
            "<br>".join(map(_setting, rule.keys)),
            _tests(rule.tests),
        ]
        for rule in section.rules
    ]
    lines += _table(["what", "what we do", "from", "settings", "held by"], rows)
    return "\n".join([*lines, "", *(_datasets() if section.datasets else ())])


def _datasets() -> list[str]:
    """Those of the paper, as their table has them."""
    rows = [
        [
            f"`{name}`",
            ", ".join(spec.aliases),
            shown(spec.test_size),
            "on" if spec.augmix else "off",
            "{fpp.lambda_shifts}" if spec.group == "shifts" else "the rule",
        ]
        for name, spec in DATASETS.items()
        if spec.group != "tiny"
    ]
    return [*_table(["dataset", "also called", "images to test on, as published", "AugMix", "lambda"], rows), ""]


def _disagreement(number: int, one: Disagreement) -> str:
    lines = [
        f"### {number}. {one.topic}",
        "",
        f"- Paper: {one.paper}",
        f"- Code: {one.code}",
        f"- Default: {one.default}",
        f"- The other: {one.other}",
        f"- Held by: {_tests(one.tests, ', ')}",
        "",
    ]
    return "\n".join(lines)


def _table(heads: list[str], rows: Iterable[list[str]]) -> list[str]:
    return [f"| {' | '.join(cells)} |" for cells in (heads, ["---"] * len(heads), *rows)]


def _setting(key: str) -> str:
    other = f" (paper: {{paper:{key}}})" if key in PRESETS["paper"] else ""
    return f"`{key}` = {{{key}}}{other}"


def _tests(tests: Iterable[str], between: str = "<br>") -> str:
    """Their names are sentences, and are read as such."""
    links = []
    for test in tests:
        path, _, name = test.partition("::")
        links.append(f"[{name.removeprefix('test_').replace('_', ' ')}](../tests/{path})")
    return between.join(links) or "no test"


if __name__ == "__main__":
    print(page(), end="")
