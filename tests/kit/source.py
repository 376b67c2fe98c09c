"""The package's source as syntax trees: its modules, what they import, and how dense their functions are."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
# packages with fewer lines of functions are counted together, because a few lines would change their density
SMALL_PACKAGE = 300


@dataclass
class Module:
    """A parsed source file."""

    name: str  # dotted name
    path: Path
    tree: ast.Module = field(repr=False)

    @property
    def package(self) -> str:
        """The first folder below the package, such as `core`; `commands` for modules at its top."""
        parts = self.path.relative_to(ROOT).parts[1:]
        return parts[0] if len(parts) > 1 else "commands"


def read_modules(folder: str) -> list[Module]:
    modules = []
    for path in sorted((ROOT / folder).rglob("*.py")):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        modules.append(Module(name, path, ast.parse(path.read_text("utf-8"))))
    return modules


def own_imports(module: Module, known: set[str]) -> set[str]:
    """Return the modules among `known` that a module imports at run time, at its top or in functions."""
    imported: set[str] = set()
    ahead: list[ast.AST] = [module.tree]
    while ahead:
        node = ahead.pop()
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            continue
        ahead.extend(ast.iter_child_nodes(node))
        if isinstance(node, ast.Import):
            imported.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                full_name = f"{node.module}.{alias.name}"
                imported.add(full_name if full_name in known else node.module)
    return {name for name in imported if name in known and name != module.name}


def outermost_functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Functions and methods that are not inside another function."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, FUNCTIONS):
            yield node
        else:
            yield from outermost_functions(node)


def line_count(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    return (function.end_lineno or function.lineno) - function.lineno + 1


def clauses_of(tree: ast.AST) -> int:
    """Return the number of comprehension clauses; those of `any(...)` and `all(...)`, the plain form, do not count."""
    plain = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("any", "all"):
            plain.update(node.args)
    return sum(len(n.generators) for n in ast.walk(tree) if isinstance(n, COMPREHENSIONS) and n not in plain)


def densities(modules: list[Module]) -> dict[str, tuple[float, float]]:
    """Return comprehension clauses and conditional expressions per 100 lines of functions, by package."""
    by_package: dict[str, list[ast.FunctionDef | ast.AsyncFunctionDef]] = {}
    for module in modules:
        by_package.setdefault(module.package, []).extend(outermost_functions(module.tree))
    pooled: dict[str, list[ast.FunctionDef | ast.AsyncFunctionDef]] = {}
    for package, functions in by_package.items():
        lines = sum(line_count(function) for function in functions)
        pooled.setdefault("small" if lines < SMALL_PACKAGE else package, []).extend(functions)
    figures = {}
    for package, functions in pooled.items():
        lines = max(1, sum(line_count(function) for function in functions))
        clauses = sum(clauses_of(function) for function in functions)
        conditionals = sum(isinstance(node, ast.IfExp) for function in functions for node in ast.walk(function))
        figures[package] = (100 * clauses / lines, 100 * conditionals / lines)
    return figures


def crowded_expressions(modules: list[Module], most: int) -> list[str]:
    """Return file and line of expressions with more than `most` comprehension clauses, nested ones included."""
    lines = set()
    for module in modules:
        for node in ast.walk(module.tree):
            if isinstance(node, COMPREHENSIONS) and clauses_of(node) > most:
                lines.add(f"{module.path.relative_to(ROOT)}:{node.lineno}")
    return sorted(lines)


def long_functions(modules: list[Module], most: int) -> list[str]:
    functions = []
    for module in modules:
        for node in ast.walk(module.tree):
            if isinstance(node, FUNCTIONS) and line_count(node) > most:
                functions.append(f"{module.path.relative_to(ROOT)}:{node.lineno} {node.name}: {line_count(node)} lines")
    return functions


def imports_in_functions(modules: list[Module]) -> dict[str, bool]:
    """Return the imports inside functions, each with whether a comment stands on its line or the line before."""
    imports = {}
    for module in modules:
        lines = module.path.read_text("utf-8").splitlines()
        for function in outermost_functions(module.tree):
            for node in ast.walk(function):
                if isinstance(node, ast.Import | ast.ImportFrom):
                    beside = "#" in lines[node.lineno - 1] or lines[node.lineno - 2].lstrip().startswith("#")
                    imports[f"{module.path.relative_to(ROOT)}:{node.lineno}"] = beside
    return imports
