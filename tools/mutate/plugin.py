"""A plugin of pytest that tells the recorder which test or fixture runs, and writes outcome and seconds of tests."""

from __future__ import annotations

import json
import os
from collections.abc import Generator
from pathlib import Path

import pytest
import sitecustomize

FOLDER = Path(os.environ["MUTATE_HITS"])
OUTCOMES = FOLDER / "outcomes.jsonl"
USES = FOLDER / "uses.jsonl"  # a test and a shared fixture that it uses


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_logstart(nodeid: str) -> None:
    sitecustomize.begin_test(nodeid)


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(
    fixturedef: pytest.FixtureDef[object], request: pytest.FixtureRequest
) -> Generator[None, object, object]:
    """Attribute the calls of a shared fixture to the fixture, so that they count for every test that uses it."""
    if fixturedef.scope == "function":
        return (yield)
    before = sitecustomize.running_test()
    sitecustomize.begin_test(name_of(fixturedef))
    try:
        return (yield)
    finally:
        sitecustomize.begin_test(before)


def pytest_runtest_teardown(item: pytest.Item) -> None:
    """Write down the shared fixtures of a test."""
    if not isinstance(item, pytest.Function):
        return
    for definitions in item._fixtureinfo.name2fixturedefs.values():
        for fixturedef in definitions:
            if fixturedef.scope != "function":
                append(USES, [item.nodeid, name_of(fixturedef)])


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    append(OUTCOMES, [report.nodeid, report.when, report.outcome, report.duration])


def name_of(fixturedef: pytest.FixtureDef[object]) -> str:
    return f"fixture {fixturedef.baseid}::{fixturedef.argname}"


def append(file: Path, line: list[object]) -> None:
    with file.open("a") as lines:
        lines.write(json.dumps(line) + "\n")
