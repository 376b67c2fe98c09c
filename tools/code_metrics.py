"""Measure how dense the code is: `python -m tools.code_metrics`, or with a package or file for its worst functions.

The gates of tests/test_layers.py use these figures. Density is counted per 100 lines of functions, from `def` to the
last line of each outermost function, in code that `ruff format` has laid out at 120 columns.

    python -m tools.code_metrics
    python -m tools.code_metrics fpp_sweep/report
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGE = "fpp_sweep"
SMALL_PACKAGE = (
    300  # lines of functions in a package; smaller packages are pooled, because a few lines would change their density
)

Function = ast.FunctionDef | ast.AsyncFunctionDef
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass
class Figures:
    """Sums of counts over several functions."""

    lines: int = 0
    clauses: int = 0
    conditionals: int = 0
    lambdas: int = 0
    calls_of_map_and_filter: int = 0
    functions: int = 0

    @property
    def clause_density(self) -> float:
        return 100 * self.clauses / max(self.lines, 1)

    @property
    def conditional_density(self) -> float:
        return 100 * self.conditionals / max(self.lines, 1)

    def add(self, other: Figures) -> None:
        self.lines += other.lines
        self.clauses += other.clauses
        self.conditionals += other.conditionals
        self.lambdas += other.lambdas
        self.calls_of_map_and_filter += other.calls_of_map_and_filter
        self.functions += other.functions


@dataclass
class Module:
    """A parsed source file."""

    name: str  # dotted name
    path: Path
    tree: ast.Module = field(repr=False)

    @classmethod
    def read(cls, path: Path) -> Module:
        dotted = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        return cls(dotted, path, ast.parse(path.read_text("utf-8")))

    @property
    def package(self) -> str:
        """The first folder below the package, such as `core`; `commands` for modules at its top."""
        parts = self.path.relative_to(ROOT / PACKAGE).parts
        return parts[0] if len(parts) > 1 else "commands"


def read_modules(folder: str = PACKAGE) -> list[Module]:
    return [Module.read(path) for path in sorted((ROOT / folder).rglob("*.py"))]


def outermost_functions(tree: ast.AST) -> Iterator[Function]:
    """Functions and methods that are not inside another function."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, FUNCTIONS):
            yield node
        else:
            yield from outermost_functions(node)


def line_count(function: Function) -> int:
    assert function.end_lineno is not None
    return function.end_lineno - function.lineno + 1


def measure(function: Function) -> Figures:
    figures = Figures(lines=line_count(function), functions=1)
    for node in ast.walk(function):
        if isinstance(node, COMPREHENSIONS):
            figures.clauses += len(node.generators)
        elif isinstance(node, ast.IfExp):
            figures.conditionals += 1
        elif isinstance(node, ast.Lambda):
            figures.lambdas += 1
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("map", "filter"):
            figures.calls_of_map_and_filter += 1
    return figures


def measure_all(modules: list[Module]) -> Figures:
    total = Figures()
    for module in modules:
        for function in outermost_functions(module.tree):
            total.add(measure(function))
    return total


def packages(modules: list[Module]) -> dict[str, Figures]:
    """Return the figures of each package; small packages are pooled under the name `small`."""
    by_package: dict[str, list[Module]] = {}
    for module in modules:
        by_package.setdefault(module.package, []).append(module)
    figures: dict[str, Figures] = {}
    small = Figures()
    for name, members in by_package.items():
        measured = measure_all(members)
        if measured.lines < SMALL_PACKAGE:
            small.add(measured)
        else:
            figures[name] = measured
    if small.lines:
        figures["small"] = small
    return figures


def clauses_of_expression(node: ast.AST) -> int:
    """Return the number of comprehension clauses of an expression, including nested ones."""
    return sum(len(inner.generators) for inner in ast.walk(node) if isinstance(inner, COMPREHENSIONS))


def crowded_expressions(modules: list[Module], most: int = 2) -> list[str]:
    """Return file and line of expressions with more than `most` comprehension clauses."""
    lines = set()
    for module in modules:
        for node in ast.walk(module.tree):
            if isinstance(node, COMPREHENSIONS) and clauses_of_expression(node) > most:
                lines.add(f"{module.path.relative_to(ROOT)}:{node.lineno}")
    return sorted(lines)


def long_functions(modules: list[Module], most: int = 40) -> list[str]:
    """Return functions of more than `most` lines, nested ones included."""
    functions = []
    for module in modules:
        for node in ast.walk(module.tree):
            if isinstance(node, FUNCTIONS) and line_count(node) > most:
                functions.append(f"{module.path.relative_to(ROOT)}:{node.lineno} {node.name}: {line_count(node)} lines")
    return functions


def is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def own_imports(module: Module, known: set[str]) -> set[str]:
    """Return the modules of the package that a module imports at run time, at its top or in functions."""
    imported: set[str] = set()
    ahead: list[ast.AST] = [module.tree]
    while ahead:
        node = ahead.pop()
        if is_type_checking(node):
            continue
        ahead.extend(ast.iter_child_nodes(node))
        if isinstance(node, ast.Import):
            imported.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                full_name = f"{node.module}.{alias.name}"
                imported.add(full_name if full_name in known else node.module)
    return {name for name in imported if name in known and name != module.name}


def imports_in_functions(modules: list[Module]) -> list[tuple[str, bool]]:
    """Return imports inside functions, each with whether a comment stands on its line or the line before."""
    imports = []
    for module in modules:
        lines = module.path.read_text("utf-8").splitlines()
        for function in outermost_functions(module.tree):
            for node in ast.walk(function):
                if isinstance(node, ast.Import | ast.ImportFrom):
                    beside = "#" in lines[node.lineno - 1] or lines[node.lineno - 2].lstrip().startswith("#")
                    imports.append((f"{module.path.relative_to(ROOT)}:{node.lineno}", beside))
    return imports


def print_summary(modules: list[Module]) -> None:
    print(
        f"{'package':<12} {'lines':>6} {'clauses':>8} {'if-else':>8} {'lambda':>7} {'map/filter':>10}   per 100 lines"
    )
    everything = measure_all(modules)
    for name, figures in [*packages(modules).items(), ("all", everything)]:
        print(
            f"{name:<12} {figures.lines:>6} {figures.clause_density:>8.1f} {figures.conditional_density:>8.1f} "
            f"{figures.lambdas:>7} {figures.calls_of_map_and_filter:>10}"
        )
    known = {module.name for module in modules}
    fan_out = sorted(((len(own_imports(module, known)), module.name) for module in modules), reverse=True)
    print("\nmodules of our own that a module imports:", ", ".join(f"{name} {count}" for count, name in fan_out[:8]))
    inside = imports_in_functions(modules)
    without_reason = [line for line, has_reason in inside if not has_reason]
    print(f"imports inside functions: {len(inside)}, without a reason beside them: {len(without_reason)}")
    print(f"expressions with more than two clauses: {len(crowded_expressions(modules))}")
    print(f"functions of more than 40 lines: {len(long_functions(modules))}")


def print_worst(modules: list[Module], target: Path, most: int = 40) -> None:
    """Print the densest functions of a file or folder."""
    rows = []
    chosen = [module for module in modules if module.path == target or target in module.path.parents]
    if not chosen:
        raise SystemExit(f"{target}: no module of the package is there")
    for module in chosen:
        for function in outermost_functions(module.tree):
            figures = measure(function)
            count = figures.clauses + figures.conditionals
            if count > 0:
                name = f"{module.path.relative_to(ROOT)}:{function.lineno} {function.name}"
                rows.append((count / figures.lines, count, figures, name))
    rows.sort(key=lambda row: row[:2], reverse=True)
    for _, _, figures, name in rows[:most]:
        print(f"{figures.clauses:>3} clauses {figures.conditionals:>3} if-else in {figures.lines:>3} lines  {name}")
    total = measure_all(chosen)
    print(
        f"{total.lines} lines: {total.clause_density:.1f} clauses and {total.conditional_density:.1f} if-else per 100"
    )
    for line in [*crowded_expressions(chosen), *long_functions(chosen)]:
        print(line)


def main() -> None:
    modules = read_modules()
    if len(sys.argv) > 1:
        for argument in sys.argv[1:]:
            print_worst(modules, Path(argument).resolve())
    else:
        print_summary(modules)


if __name__ == "__main__":
    main()
