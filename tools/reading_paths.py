"""Files that a reader opens to follow one thing through the package: `python -m tools.reading_paths`.

reading_paths.yaml lists the walks. A walk is a list of chains of steps, and a step is a function, method, class or
constant of a file. Each step must be reached from the step before: the source of one must name the other, in a call, an
attribute or an argument. `<-` before a step means that it names the step before it, as the caller of a function whose
result the walk follows. A chain starts where the walk starts, or at a step of an earlier chain.
"""

from __future__ import annotations

import argparse
import ast
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import yaml

ROOT = Path(__file__).parents[1]
PACKAGE = "fpp_sweep"
FOLDER = f"{ROOT / PACKAGE}/"
WALKS_FILE = Path(__file__).with_suffix(".yaml")
Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Assign


@dataclass(frozen=True, slots=True)
class Step:
    """A function, method, class or constant."""

    file: str  # below the package's folder
    name: str  # such as `main`, `Worker` or `Worker.run`
    is_caller: bool = False  # whether this step names the previous one, instead of the previous one naming this step

    @classmethod
    def of(cls, text: str) -> Step:
        """
        >>> Step.of("<- steer.py main")
        Step(file='steer.py', name='main', is_caller=True)
        """
        words = text.split()
        is_caller = words[0] == "<-"
        file, name = words[-2:]
        return cls(file, name, is_caller)

    @property
    def definition(self) -> tuple[str, str]:
        return self.file, self.name

    def __str__(self) -> str:
        return f"{self.file} {self.name}"


@dataclass(frozen=True, slots=True)
class Walk:
    """A path through the source, and the largest number of files that it may have."""

    name: str
    title: str
    goal: int
    chains: tuple[tuple[Step, ...], ...]

    @property
    def files(self) -> list[str]:
        """The files of the walk, in the order of reading."""
        files: dict[str, None] = {}
        for chain in self.chains:
            for step in chain:
                files[step.file] = None
        return list(files)


def read_walks(file: Path = WALKS_FILE) -> list[Walk]:
    walks = []
    for name, document in yaml.safe_load(file.read_text()).items():
        chains = []
        for steps in document["chains"]:
            chains.append(tuple(Step.of(text) for text in steps))
        walks.append(Walk(name, document["title"], document["goal"], tuple(chains)))
    return walks


def missing_links(walk: Walk) -> list[str]:
    """Return a line for each step that does not exist or is not reached from the step before."""
    problems = []
    earlier = {walk.chains[0][0].definition}
    for chain in walk.chains:
        if chain[0].definition not in earlier:
            problems.append(f"{chain[0]}: a chain starts here, and no earlier chain has this step")
        for before, step in pairwise(chain):
            caller, callee = before, step
            if step.is_caller:
                caller, callee = step, before
            if not is_named(caller, callee):
                problems.append(f"{caller}: does not name {callee}")
        earlier |= {step.definition for step in chain}
    for chain in walk.chains:
        problems += [f"{step}: does not exist" for step in chain if definition_of(step) is None]
    return problems


# --- the source -------------------------------------------------------------------------------------


@cache
def tree_of(file: str) -> ast.Module:
    return ast.parse((ROOT / PACKAGE / file).read_text())


def definition_of(step: Step) -> Definition | None:
    """Return the definition of a step; None if its file or its name does not exist."""
    if not (ROOT / PACKAGE / step.file).is_file():
        return None
    node: ast.Module | Definition | None = tree_of(step.file)
    for name in step.name.split("."):
        node = _child(node, name) if node is not None else None
    return node if isinstance(node, Definition) else None


def _child(parent: ast.AST, name: str) -> Definition | None:
    for node in ast.iter_child_nodes(parent):
        if isinstance(node, ast.Assign):
            names = [target.id for target in node.targets if isinstance(target, ast.Name)]
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names = [node.name]
        else:
            continue
        if name in names:
            return node
    return None


def is_named(caller: Step, callee: Step) -> bool:
    """Return whether the source of a step names another step, which it calls, passes on or constructs."""
    source = definition_of(caller)
    if source is None:
        return False
    if caller.file == callee.file and callee.name == caller.name.rpartition(".")[0]:
        return True  # a method leads to its class, and from there to a method that uses the same file or attribute
    class_name, _, method = callee.name.rpartition(".")
    if class_name:
        return _names_method(caller, callee, source, class_name, method)
    for node in ast.walk(source):
        if isinstance(node, ast.Name) and node.id in names_in(caller.file, callee):
            return True
        if isinstance(node, ast.Attribute) and node.attr == callee.name and _is_module(node.value, caller, callee):
            return True
    return False


def _names_method(caller: Step, callee: Step, source: Definition, class_name: str, method: str) -> bool:
    """Return whether an attribute has the method's name; a class passes its methods on to what holds an instance."""
    if caller == Step(callee.file, class_name, caller.is_caller):
        return True
    return any(isinstance(node, ast.Attribute) and node.attr == method for node in ast.walk(source))


@cache
def names_in(file: str, callee: Step) -> frozenset[str]:
    """Return the names by which a file calls a function or class of another file or of the same file."""
    if file == callee.file:
        return frozenset([callee.name])
    names = set()
    for module, imported, alias in _imports(file):
        if imported == callee.name and callee.file in _origins(module, imported):
            names.add(alias)
    return frozenset(names)


def _imports(file: str) -> Iterator[tuple[str, str, str]]:
    """Yield module, name and alias of each `from module import name as alias` of our own."""
    for node in ast.walk(tree_of(file)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == PACKAGE:
            for item in node.names:
                yield node.module or "", item.name, item.asname or item.name


def _origins(module: str, name: str) -> set[str]:
    """Return the file of a module, and those from which its `__init__.py` has the name."""
    files = {_file_of(module)}
    for inner_module, imported, alias in _imports(_file_of(module)):
        if alias == name and imported == name:
            files |= _origins(inner_module, name)
    return files


def _file_of(module: str) -> str:
    path = Path(*module.split(".")[1:])
    if (ROOT / PACKAGE / path).is_dir():
        return str(path / "__init__.py")
    return f"{path}.py"


def _is_module(node: ast.expr, caller: Step, callee: Step) -> bool:
    """Return whether an expression is the module of the callee, as the caller's file imports it."""
    if not isinstance(node, ast.Name):
        return False
    for module, imported, alias in _imports(caller.file):
        if alias == node.id and _file_of(f"{module}.{imported}") == callee.file:
            return True
    return False


# --- at run time ------------------------------------------------------------------------------------


class AllChainsSeen(BaseException):
    """A signal that ends the recorded work; it is no Exception, because that would count as a failure of the trial."""


class StackRecorder:
    """A recorder of the package's files on the stack at each entry into a chain's last step along the chain."""

    def __init__(self, walk: Walk) -> None:
        self.files: set[str] = set()
        self.seen_chains: set[int] = set()
        self._walk = walk
        self._chains_to: defaultdict[tuple[str, str], list[int]] = defaultdict(list)
        for number, chain in enumerate(walk.chains):
            self._chains_to[chain[-1].definition].append(number)

    def run(self, work: Callable[[], object]) -> None:
        """Do the work, with the calls of this thread recorded; end it once every chain has been seen."""
        sys.setprofile(self._on_event)
        try:
            with suppress(AllChainsSeen):
                work()
        finally:
            sys.setprofile(None)

    def _on_event(self, frame: FrameType, event: str, argument: Any) -> None:
        if event != "call":
            return
        entered = _definition_of(frame.f_code)
        if entered is None:
            return
        for number in self._chains_to.get(entered, ()):
            self._record(number, frame)

    def _record(self, number: int, frame: FrameType) -> None:
        stack = _stack_of(frame)
        remaining = iter(stack)
        functions = [step for step in self._walk.chains[number] if not _is_class(step)]
        # `in` consumes the stack up to the step, so that the steps must be on it in this order
        is_on_stack = all(step.definition in remaining for step in functions)
        if is_on_stack:
            self.seen_chains.add(number)
            self.files |= {file for file, _ in stack}
        if len(self.seen_chains) == len(self._walk.chains):
            raise AllChainsSeen


def _is_class(step: Step) -> bool:
    return isinstance(definition_of(step), ast.ClassDef)


def _stack_of(frame: FrameType) -> list[tuple[str, str]]:
    """Return file and name of the package's functions on the stack, the outermost first."""
    definitions = []
    outer: FrameType | None = frame
    while outer is not None:
        definition = _definition_of(outer.f_code)
        if definition is not None:
            definitions.append(definition)
        outer = outer.f_back
    return definitions[::-1]


def _definition_of(code: CodeType) -> tuple[str, str] | None:
    if not code.co_filename.startswith(FOLDER):
        return None
    return code.co_filename.removeprefix(FOLDER), code.co_qualname


# --- the command ------------------------------------------------------------------------------------


def main(argv: Sequence[str] | None = None) -> None:
    options = argparse.ArgumentParser(prog="python -m tools.reading_paths", description=__doc__)
    options.add_argument("--list", action="store_true", help="list the files of each walk")
    args = options.parse_args(argv)
    problems = []
    for walk in read_walks():
        print(f"{walk.name}) {walk.title}: {len(walk.files)} files (goal {walk.goal})")
        if args.list:
            print("\n".join(f"     {file}" for file in walk.files))
        problems += [f"{walk.name}) {problem}" for problem in missing_links(walk)]
        if len(walk.files) > walk.goal:
            problems.append(f"{walk.name}) {len(walk.files)} files, more than {walk.goal}")
    if problems:
        raise SystemExit("\n".join(problems))


if __name__ == "__main__":
    main()
