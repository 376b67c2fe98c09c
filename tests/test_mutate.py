"""The tool that breaks the package: its breaks, and its choice of tests."""

import ast
import math
import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.kit.processes import environment
from tools.mutate import sitecustomize as recorder
from tools.mutate.__main__ import TIME_LIMIT, add_calls_of_imports, reaching_tests, record_reach, table, try_break
from tools.mutate.breaks import Break, breaks_of
from tools.mutate.sitecustomize import IMPORT, instrument, is_called_by_import

SOURCE = '''
LIMIT = 5


class Cart:
    def total(self, prices: list[int], free: bool = False) -> int:
        """Return the sum."""
        if free and prices or not prices:
            return 0
        self.log(len(prices), end="x")
        return min(sum(prices[1:]), LIMIT) + 1
'''


def write_source(tmp_path):
    folder = tmp_path / "fpp_sweep" / "space"
    folder.mkdir(parents=True)
    path = folder / "cart.py"
    path.write_text(textwrap.dedent(SOURCE))
    return path, breaks_of(path, tmp_path)


def test_each_break_changes_one_expression_of_a_function_and_compiles(tmp_path):
    path, breaks = write_source(tmp_path)
    replacements = {(change.before, change.after) for change in breaks}
    expected = {
        ("free and prices", "(free)"),
        ("not prices", "(prices)"),
        ('self.log(len(prices), end="x")', "pass"),
        ('self.log(len(prices), end="x")', "(self.log(len(prices)))"),
        ("1:", ":"),
        ("1", "(2)"),
        ("min(sum(prices[1:]), LIMIT)", "(max(sum(prices[1:]), LIMIT))"),
        ("min(sum(prices[1:]), LIMIT) + 1", "(min(sum(prices[1:]), LIMIT) - 1)"),
    }
    assert expected <= replacements
    assert ("5", "(6)") not in replacements  # a constant of the module
    source = path.read_bytes()
    for change in breaks:
        assert change.package == "space"
        assert change.function == "fpp_sweep.space.cart.Cart.total"
        assert change.compiles(tmp_path)
        assert ast.dump(ast.parse(change.apply(source))) != ast.dump(ast.parse(source))


def test_functions_report_their_calls(tmp_path):
    path, _ = write_source(tmp_path)
    tree = ast.parse(path.read_text())
    instrument(tree, "cart")
    called = []
    scope = {"__mutate_hit__": called.append}
    exec(compile(ast.fix_missing_locations(tree), "cart", "exec"), scope)
    assert scope["Cart"]().total([]) == 0
    assert called == ["cart.Cart.total"]
    assert scope["Cart"].total.__doc__ == "Return the sum."


def test_the_fastest_tests_that_call_the_function_run_within_the_time_limit():
    change = Break("fpp_sweep/a/b.py", "a.b.f", 1, 0, 1, "x", "y")
    tests = {"slow": (100.0, {"a.b.f"}), "fast": (1.0, {"a.b.f"}), "other": (0.1, {"a.b.g"})}
    assert reaching_tests(change, tests) == ["fast"]
    assert reaching_tests(change, {"slow": tests["slow"]}) == ["slow"]
    assert reaching_tests(change, {"other": tests["other"]}) == []


@pytest.mark.parametrize(("seconds_of_break", "outcome"), [(100.0, "survived"), (math.inf, "noticed")])
def test_a_busy_machine_gets_more_time(tmp_path, monkeypatch, seconds_of_break, outcome):
    """The tests of the unbroken copy need 100 seconds here, more than the time limit of 64."""
    path = tmp_path / "b.py"
    path.write_text("x = 1")

    def run_tests(copy, names, limit):
        is_broken = path.read_text() != "x = 1"
        needed = seconds_of_break if is_broken else 100.0
        return ("survived", "1 tests") if needed <= limit else ("noticed", TIME_LIMIT)

    monkeypatch.setattr("tools.mutate.__main__.run_tests", run_tests)
    change = Break("b.py", "a.b.f", 1, 4, 5, "1", "2")
    assert try_break(change, tmp_path, {"one": (1.0, {"a.b.f"})})[0] == outcome


def test_functions_that_imports_call_are_credited_to_the_tests_of_their_module():
    functions = {IMPORT: {"a.b.table", "a.c.other"}, "one": {"a.b.f"}, "two": {"a.bb.f"}, "three": {"a.c.Class.g"}}
    add_calls_of_imports(functions)
    assert functions == {"one": {"a.b.f", "a.b.table"}, "two": {"a.bb.f"}, "three": {"a.c.Class.g", "a.c.other"}}


def test_a_call_by_an_import_is_recognised():
    module = {"__name__": "fpp_sweep.made_up", "is_called_by_import": is_called_by_import}
    exec(compile("def f():\n    return is_called_by_import()\nvalue = f()", "made_up.py", "exec"), module)
    assert module["value"] is True
    assert module["f"]() is False


def test_a_call_by_an_example_in_a_docstring_belongs_to_its_test():
    module = {"__name__": "fpp_sweep.made_up", "is_called_by_import": is_called_by_import}
    exec(compile("value = is_called_by_import()", "<doctest fpp_sweep.made_up.f[0]>", "exec"), module)
    assert module["value"] is False


def test_the_table_counts_by_package_and_lists_survivors():
    change = Break("fpp_sweep/a/b.py", "a.b.f", 7, 0, 1, "x", "y")
    lines = [{"break": change.as_dict(), "outcome": outcome} for outcome in ("noticed", "noticed", "survived")]
    text = table(lines)
    assert "| a | 3 | 2 (67 %) | 1 | 0 |" in text
    assert text[-1] == "survived: fpp_sweep/a/b.py:7: x  ->  y"


def test_the_recorder_is_installed_once_though_tests_import_it_by_another_name(tmp_path):
    """A second one would never learn that a test begins, and credit the first test with all calls."""
    imports = "import builtins, sitecustomize, tools.mutate.sitecustomize"
    code = f"{imports}\nprint(builtins.__mutate_hit__ is sitecustomize.hit)"
    variables = environment(tmp_path)
    variables["MUTATE_HITS"] = str(tmp_path)
    variables["PYTHONPATH"] = os.pathsep.join([str(Path(recorder.__file__).parent), variables["PYTHONPATH"]])
    done = subprocess.run([sys.executable, "-c", code], env=variables, capture_output=True, text=True, check=True)
    assert done.stdout == "True\n"


def test_calls_of_a_shared_fixture_count_for_every_test_that_uses_it(tmp_path):
    shutil.copytree(Path(recorder.__file__).parents[1], tmp_path / "copy" / "tools")
    (tmp_path / "copy" / "test_shared.py").write_text(
        """
import pytest
from fpp_sweep.spec.messages import plural
from fpp_sweep.spec.names import label_of


@pytest.fixture(scope="module")
def words():
    return plural(2, "trial")


@pytest.fixture(scope="module")
def sentence(words):
    return label_of(words)


def test_first(sentence): ...
def test_second(sentence): ...
def test_third(words): ...
def test_fourth(): ...
"""
    )
    reach = record_reach(tmp_path / "copy", tmp_path / "hits", ["test_shared.py"])
    functions = {name.rpartition("::")[2]: set(called) for name, (_, called) in reach.items()}
    plural, label_of = "fpp_sweep.spec.messages.plural", "fpp_sweep.spec.names.label_of"
    assert functions["test_first"] == functions["test_second"] == {plural, label_of}
    assert functions["test_third"] == {plural}
    assert functions["test_fourth"] == set()


def test_a_run_in_which_no_test_passes_is_an_error(tmp_path):
    """Every break would count as one that no test reaches."""
    shutil.copytree(Path(recorder.__file__).parents[1], tmp_path / "copy" / "tools")
    (tmp_path / "copy" / "test_failing.py").write_text("def test_that_fails():\n    assert False\n")
    for tests in (["test_failing.py"], ["test_missing.py"]):
        with pytest.raises(SystemExit, match=f"no test passes on the unbroken copy: {tests[0]}"):
            record_reach(tmp_path / "copy", tmp_path / "hits", tests)
