"""Small changes of a module's source, each of them a mistake that a person could make."""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

OTHER_COMPARISON = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip
OTHER_OPERATOR = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.BitOr: ast.BitAnd}
OTHER_NAME = {"min": "max", "max": "min", "any": "all", "all": "any"}


@dataclass(frozen=True, slots=True)
class Break:
    """One change: bytes of a file that are replaced."""

    path: str  # path relative to the package's parent folder
    function: str  # dotted name that includes the module's name
    line: int
    start: int  # position in bytes
    stop: int
    before: str
    after: str

    @property
    def package(self) -> str:
        parts = self.path.split("/")
        if len(parts) == 2:
            return "commands"
        return parts[1]

    def apply(self, source: bytes) -> bytes:
        return source[: self.start] + self.after.encode() + source[self.stop :]

    def compiles(self, root: Path) -> bool:
        try:
            compile(self.apply((root / self.path).read_bytes()), self.path, "exec")
        except SyntaxError:
            return False
        return True

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {' '.join(self.before.split())[:90]}  ->  {' '.join(self.after.split())[:90]}"

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def breaks_of(path: Path, root: Path) -> list[Break]:
    """Return all breaks of a module's functions; a few do not compile."""
    source = path.read_bytes()
    offsets = [0]
    for line in source.splitlines(keepends=True):
        offsets.append(offsets[-1] + len(line))
    module = ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")
    breaks = []
    for function, node, after in _changes(ast.parse(source), module, in_function=False):
        start = offsets[node.lineno - 1] + node.col_offset
        stop = offsets[node.end_lineno - 1] + node.end_col_offset
        text = source[start:stop].decode()
        breaks.append(Break(str(path.relative_to(root)), function, node.lineno, start, stop, text, after))
    return breaks


def _changes(tree: ast.AST, scope: str, *, in_function: bool) -> Iterator[tuple[str, Any, str]]:
    """Yield the function, the node and the new text of each change below a node."""
    for field, value in ast.iter_fields(tree):
        if field in ("annotation", "returns", "decorator_list"):
            continue
        for node in value if isinstance(value, list) else [value]:
            if not isinstance(node, ast.AST) or isinstance(node, ast.Raise | ast.Assert | ast.JoinedStr):
                continue
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                inside = in_function or not isinstance(node, ast.ClassDef)
                yield from _changes(node, f"{scope}.{node.name}", in_function=inside)
                continue
            if in_function:
                for new in _variants(node):
                    text = ast.unparse(ast.fix_missing_locations(new))
                    if isinstance(node, ast.expr) and not isinstance(node, ast.Slice):
                        text = f"({text})"
                    yield scope, node, text
            yield from _changes(node, scope, in_function=in_function)


def _variants(node: ast.AST) -> Iterator[ast.AST]:
    """Yield changed copies of a node."""
    if isinstance(node, ast.Compare):
        for index, operator in enumerate(node.ops):
            new = copy.deepcopy(node)
            new.ops[index] = OTHER_COMPARISON[type(operator)]()
            yield new
    elif isinstance(node, ast.BoolOp):
        for index in range(len(node.values)):
            rest = [value for position, value in enumerate(node.values) if position != index]
            yield rest[0] if len(rest) == 1 else ast.BoolOp(node.op, rest)
        yield ast.BoolOp(ast.Or() if isinstance(node.op, ast.And) else ast.And(), node.values)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield node.operand
    elif isinstance(node, ast.BinOp) and type(node.op) in OTHER_OPERATOR and not isinstance(node.left, ast.JoinedStr):
        yield ast.BinOp(node.left, OTHER_OPERATOR[type(node.op)](), node.right)
    elif isinstance(node, ast.Constant):
        yield from _other_constants(node.value)
    elif isinstance(node, ast.IfExp):
        yield ast.IfExp(ast.UnaryOp(ast.Not(), node.test), node.body, node.orelse)
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call | ast.Await):
        yield ast.Pass()
    elif isinstance(node, ast.AugAssign):
        yield ast.Assign([node.target], node.value)
    elif isinstance(node, ast.Continue):
        yield ast.Pass()
    elif isinstance(node, ast.Slice):
        for end in ("lower", "upper"):
            if getattr(node, end) is not None:
                open_slice = copy.deepcopy(node)
                setattr(open_slice, end, None)
                yield open_slice
    elif isinstance(node, ast.Call):
        yield from _other_calls(node)


def _other_constants(value: Any) -> Iterator[ast.AST]:
    if isinstance(value, bool):
        yield ast.Constant(not value)
    elif isinstance(value, int):
        yield ast.Constant(value + 1)
    elif isinstance(value, float):
        yield ast.Constant(value * 1.5 + 0.1)


def _other_calls(node: ast.Call) -> Iterator[ast.AST]:
    if isinstance(node.func, ast.Name) and node.func.id in OTHER_NAME:
        yield ast.Call(ast.Name(OTHER_NAME[node.func.id], ast.Load()), node.args, node.keywords)
    for index, keyword in enumerate(node.keywords):
        if keyword.arg is not None:
            rest = [other for position, other in enumerate(node.keywords) if position != index]
            yield ast.Call(node.func, node.args, rest)
