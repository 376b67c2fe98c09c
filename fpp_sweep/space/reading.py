"""Search spaces as people write them: a YAML file (docs/spaces.md) and `--set`, checked line by line."""

from __future__ import annotations

import dataclasses
import functools
import math
import re
import types
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fpp_sweep.config import PRESETS, TrialConfig, preset
from fpp_sweep.errors import InputError, unknown
from fpp_sweep.space.space import (
    BASELINES,
    COSTS,
    METHODS,
    QUALITIES,
    Constraint,
    Goal,
    Kind,
    Objective,
    Param,
    Sampler,
    Search,
    Space,
    Split,
    Work,
    block_points,
    divides,
    goal_of,
    preset_for,
    split_keys,
    word,
)
from fpp_sweep.space.yamlfile import (
    Node,
    Rule,
    at,
    duration,
    flag,
    list_of,
    maybe,
    number,
    of_plain,
    one_of,
    parse,
    read,
    section,
    shown,
    text,
    whole,
)

TRIALS = 16  # where no budget is given: TPE starts to use what it has seen after 10
MOST_POINTS = 2_000  # of a grid; every one is resolved and checked when the file is read
MOST_OBJECTIVES = 3
NAME = Rule(
    lambda node: _name(node), {"type": "string", "pattern": r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$"}
)  # it becomes a folder's
SEARCH: dict[str, Rule] = {
    "sampler": one_of("sampler", typing.get_args(Sampler)),
    "trials": maybe(whole(1)),
    "wall_clock": maybe(duration()),
    "gpu_hours": maybe(number(above=0)),
    "concurrency": maybe(whole(1)),
    "seed": whole(0),
    "split": one_of("split", typing.get_args(Split)),
    "max_failures": maybe(whole(1)),
}
WORK: dict[str, Rule] = {
    "model": text(),
    "data_root": maybe(text()),
    "dataset_file": maybe(text()),
    "datasets": list_of(text()),
    "limit": maybe(whole(1)),
    "seeds": list_of(whole(0)),
    "shards": maybe(whole(1)),
    "actors": maybe(whole(1)),
    "gpus_per_actor": maybe(number(least=0)),
    "cpus_per_actor": number(least=0),
    "threads": maybe(whole(1)),
    "compile": flag(),
    "cache": maybe(text()),
    "attempts": whole(1),
    "unit_timeout": duration(),
    "baselines": list_of(one_of("baseline", BASELINES), least=0),
    "tracking_uri": maybe(text()),
}
METRIC = Rule(
    lambda node: _metric(node), {"type": "string", "pattern": rf"^(({'|'.join(QUALITIES)})(/.+)?|{'|'.join(COSTS)})$"}
)
OBJECTIVE: dict[str, Rule] = {
    "metric": METRIC,
    "goal": one_of("goal", typing.get_args(Goal)),
    "reference": maybe(number()),
}
CONSTRAINT: dict[str, Rule] = {
    "name": Rule(lambda node: _name(node), NAME.schema),
    "metric": METRIC,
    "at_least": maybe(number()),
    "at_most": maybe(number()),
    "baseline": maybe(one_of("baseline", BASELINES)),
}
PARAM = ("low", "high", "log", "step", "choices", "when")
TOP = (
    *("name", "question", "preset", "base", "params", "grid"),
    *("points", "objectives", "constraints", "search", "work"),
)
OBJECTIVES = (Objective(metric="accuracy", goal="max"), Objective(metric="ece", goal="min"))


def load_space(path: Path | str, overrides: Sequence[str] = ()) -> Space:
    """Read a file; an override is `dotted.key=value`, its value YAML, and `null` takes a key out.

    Examples: search.trials=20, work.datasets=[dtd, pets], params.fpp.gamma1.high=3.
    """
    path = Path(path)
    return _space(read(path, "search space"), path.stem, overrides)


def parse_space(text: str, where: str, overrides: Sequence[str] = ()) -> Space:
    """The same of a text; `where` is the file that complaints name."""
    return _space(parse(text, where), Path(where).stem, overrides)


def space_of(plain: Mapping[str, Any], where: str, overrides: Sequence[str] = ()) -> Space:
    """The same of `Space.plain()`, as a record of a sweep holds it."""
    return _space(of_plain(plain, where), Path(where).stem, overrides)


def _space(root: Node, stem: str, overrides: Sequence[str]) -> Space:
    if root.value is None:
        raise root.error("is empty; a search space has params or a grid, see docs/spaces.md")
    root.mapping()
    for override in overrides:
        _override(root, override)
    top = root.mapping(TOP)

    def node(key: str, empty: Any) -> Node:
        return top.get(key, Node(empty, root.where, key))

    work = _work(node("work", {}))
    preset_name = one_of("preset", ("auto", *PRESETS)).read(node("preset", "auto"))
    base = _settings(node("base", {}), preset(preset_for(preset_name, work.model)))
    space = Space(
        name=NAME.read(top["name"])
        if "name" in top
        else re.sub(r"[^A-Za-z0-9_.-]+|^[^A-Za-z0-9]+", "-", stem).strip("-"),
        question=text().read(top["question"]) if "question" in top else "",
        preset=preset_name,
        base=base,
        objectives=_objectives(node("objectives", [])) if "objectives" in top else OBJECTIVES,
        constraints=_constraints(node("constraints", []), work),
        work=work,
    )
    params = _params(node("params", {}), space.start(), base)
    grid = _grid(node("grid", []), space.start())
    search = _search(node("search", {}), params, grid, node("params", {}))
    if not params and not grid:
        raise root.error("has neither params nor a grid, so there is nothing to search")
    space = dataclasses.replace(space, params=params, grid=grid, search=search)
    space = dataclasses.replace(space, points=_points(node("points", []), space))
    return _with_budget(space)


def _work(node: Node) -> Work:
    work = Work(**section(node, WORK))
    if work.datasets or work.dataset_file:
        return work
    return dataclasses.replace(work, datasets=("fine_grained",) if work.data_root else ("tiny",))


def _with_budget(space: Space) -> Space:
    """A sweep without a budget ends too: after its grid, or some trials."""
    search = space.search
    if (search.trials, search.wall_clock, search.gpu_hours) != (None, None, None):
        return space
    trials = len(space.queue()) if search.sampler == "grid" else TRIALS
    return dataclasses.replace(space, search=dataclasses.replace(search, trials=trials))


def _name(node: Node) -> str:
    if not isinstance(node.value, str) or not re.fullmatch(NAME.schema["pattern"], node.value):
        problem = "must be letters, digits, '.', '_' and '-', beginning with a letter or digit"
        raise node.error(f"{problem}, got {shown(node.value)}")
    return node.value


def _metric(node: Node) -> str:
    if not isinstance(node.value, str):
        raise node.error(f"must be the name of a metric, got {shown(node.value)}")
    metric, slash, dataset = node.value.partition("/")
    if metric not in QUALITIES and metric not in COSTS:
        raise node.error(unknown("metric", metric, [*QUALITIES, *COSTS]))
    if slash and (metric in COSTS or not dataset.strip()):
        problem = "is of a whole trial, not of a dataset" if metric in COSTS else "lacks a dataset after '/'"
        raise node.error(f"{node.value!r} {problem}")
    return node.value


def _settings(node: Node, start: TrialConfig) -> dict[str, Any]:
    """Dotted settings as the config has them: numbers for x0.1, and checked."""
    entries = node.mapping()
    values = {key: _setting(start, key, child) for key, child in entries.items()}
    _checked(start, values, node)
    return values


def _setting(start: TrialConfig, key: str, node: Node) -> Any:
    """One value of a setting, as the config converts and checks it."""
    value = node.scalar()
    section_names = {name.partition(".")[0] for name in setting_types() if "." in name}
    if key in section_names:
        raise node.error(f"write its settings out, such as {key}.{_first_of(key)}")
    converted = _checked(start, {key: value}, node).flat()[key]
    if key == "method" and converted not in METHODS:
        raise node.error(unknown("method", converted, METHODS))
    if key == "init" and converted == "fpp":
        raise node.error("FPP needs words or a prompt file to stay aligned with, such as 'a photo of a'")
    return converted


def _checked(start: TrialConfig, values: Mapping[str, Any], node: Node) -> TrialConfig:
    try:
        return start.replace(values)
    except InputError as error:
        raise node.error(error) from None


@functools.cache
def setting_types(cls: type = TrialConfig, prefix: str = "") -> Mapping[str, Any]:
    """The type of every dotted setting."""
    found: dict[str, Any] = {}
    for name, hint in typing.get_type_hints(cls).items():
        nested = isinstance(hint, type) and dataclasses.is_dataclass(hint)
        found |= setting_types(hint, f"{prefix}{name}.") if nested else {f"{prefix}{name}": hint}
    return found


def range_kind(key: str) -> Kind:
    """What a range of the setting is; a choice if it has none."""
    hint = setting_types()[key]
    kind = typing.get_args(hint)[0] if isinstance(hint, types.UnionType) else hint
    return {float: "float", int: "int"}.get(kind, "choice")  # type: ignore[return-value]


def _params(node: Node, start: TrialConfig, base: Mapping[str, Any]) -> tuple[Param, ...]:
    found: dict[str, Param] = {}
    entries = node.mapping()
    for key, child in entries.items():
        if key not in setting_types():
            raise child.error(unknown("config key", key, setting_types()))
        if key in base:
            raise child.error("is fixed in base as well; take it out of one of them")
        found[key] = _param(key, child, start)
    for key, child in entries.items():
        if isinstance(child.value, dict) and "when" in child.value:
            when = _when(child.value["when"], found, start)
            found[key] = dataclasses.replace(found[key], when=when)
    return _parents_first(found, entries)


def _param(key: str, node: Node, start: TrialConfig) -> Param:
    """A range or choices; a bare list is choices."""
    if isinstance(node.value, list):
        return Param(key=key, kind="choice", choices=_choices(key, node, start))
    entries = node.mapping(PARAM)
    kind = range_kind(key)
    if "choices" in entries:
        for other in set(entries) - {"choices", "when"}:
            raise entries[other].error("does not go with choices")
        return Param(key=key, kind="choice", choices=_choices(key, entries["choices"], start))
    if kind == "choice":
        raise node.error("has no range; give choices")
    for bound in ("low", "high"):
        if bound not in entries:
            raise node.error(f"needs {bound}, or choices")
    low, high = (_bound(key, entries[bound], start) for bound in ("low", "high"))
    if not low < high:
        raise node.error(f"low must be < high, got {low:g} and {high:g}")
    log = flag().read(entries["log"]) if "log" in entries else False
    if log and low <= 0:
        raise entries["low"].error(f"must be > 0 where log is true, got {low:g}")
    step = _step(entries["step"], kind, high - low, log) if "step" in entries else None
    return Param(key=key, kind=kind, low=low, high=high, log=log, step=step)


def _bound(key: str, node: Node, start: TrialConfig) -> float | int:
    value = _setting(start, key, node)
    if value is None:
        raise node.error("must be a number, got none")
    return typing.cast(float | int, value)


def _step(node: Node, kind: Kind, width: float, log: bool) -> float | int:
    step: float | int = (whole(1) if kind == "int" else number(above=0)).read(node)
    if log:
        raise node.error("does not go with log: true")
    if not divides(step, width):
        raise node.error(f"must divide high - low = {width:g}, got {step:g}")
    return step


def _choices(key: str, node: Node, start: TrialConfig) -> tuple[Any, ...]:
    return typing.cast(tuple[Any, ...], list_of(Rule(lambda each: _setting(start, key, each), {})).read(node))


def _when(node: Node, params: Mapping[str, Param], start: TrialConfig) -> dict[str, tuple[Any, ...]]:
    found = {}
    for key, child in node.mapping().items():
        if key not in params:
            raise child.error(unknown("parameter", key, params))
        if params[key].kind == "float":
            raise child.error(f"{key} is a range of real numbers, on whose values nothing can depend; give it choices")
        values = child if isinstance(child.value, list) else Node([child], child.where, child.path)
        found[key] = _choices(key, values, start)
        for value in found[key]:
            if problem := params[key].complaint(value):
                raise child.error(f"can never hold: {problem}")
    return found


def _parents_first(params: Mapping[str, Param], entries: Mapping[str, Node]) -> tuple[Param, ...]:
    ordered: dict[str, Param] = {}
    waiting = dict(params)
    while waiting:
        ready = [key for key, param in waiting.items() if set(param.when) <= set(ordered)]
        if not ready:
            raise entries[next(iter(waiting))].error(f"when goes in a circle among {', '.join(waiting)}")
        ordered[ready[0]] = waiting.pop(ready[0])
    return tuple(ordered.values())


def _grid(node: Node, start: TrialConfig) -> tuple[dict[str, tuple[Any, ...]], ...]:
    blocks = []
    total = 0
    for block_node in node.items():
        block: dict[str, tuple[Any, ...]] = {}
        for names, child in block_node.mapping().items():
            keys = split_keys(names)
            if repeated := [key for key in keys if keys.count(key) > 1 or any(key in split_keys(k) for k in block)]:
                raise child.error(f"{repeated[0]} comes twice in this block")
            block[", ".join(keys)] = _axis(keys, child, start)
        if not block:
            raise block_node.error("is an empty block")
        total += math.prod(map(len, block.values()))
        if total > MOST_POINTS:
            raise block_node.error(f"makes a grid of more than {MOST_POINTS} points; use a sampler")
        for values in block_points(block):
            _checked(start, values, block_node)
        blocks.append(block)
    return tuple(blocks)


def _axis(keys: Sequence[str], node: Node, start: TrialConfig) -> tuple[Any, ...]:
    """The values of a key, or tuples of values of keys that move together."""
    items = node if isinstance(node.value, list) else Node([node], node.where, node.path)
    if len(keys) == 1:
        return _choices(keys[0], items, start)

    def together(each: Node) -> tuple[Any, ...]:
        values = each.items() if isinstance(each.value, list) else [each] * len(keys)
        if len(values) != len(keys):
            raise each.error(f"must be one value, or {len(keys)}: one for each key")
        return tuple(_setting(start, key, value) for key, value in zip(keys, values, strict=True))

    return typing.cast(tuple[Any, ...], list_of(Rule(together, {})).read(items))


def _search(node: Node, params: Sequence[Param], grid: Sequence[Any], params_node: Node) -> Search:
    values = section(node, SEARCH)
    if grid:
        values.setdefault("sampler", "grid")
    search = Search(**values)
    sampler = node.value.get("sampler", node)
    if grid and search.sampler != "grid":
        raise sampler.error(f"{search.sampler} does not go with a grid, whose points are given; take one of them out")
    if grid and params:
        raise params_node.error("does not go with a grid; write the values as a block of it")
    for param in params:
        if search.sampler == "grid" and param.kind != "choice":
            raise params_node.value[param.key].error("is a range, which sampler grid cannot run; give choices")
        if search.sampler == "gp" and param.when:
            raise params_node.value[param.key].error("when does not go with sampler gp, which needs a fixed space")
    if search.sampler == "grid" and math.prod(len(param.choices) for param in params) > MOST_POINTS:
        raise params_node.error(f"makes a grid of more than {MOST_POINTS} points; use another sampler")
    return search


def _points(node: Node, space: Space) -> tuple[dict[str, Any], ...]:
    searched = {param.key: param for param in space.searched()}
    start = space.start()
    points = []
    for point_node in node.items():
        point = {}
        for key, child in point_node.mapping().items():
            if key not in searched:
                raise child.error(unknown("parameter", key, searched))
            point[key] = _setting(start, key, child)
            if problem := searched[key].complaint(point[key]):
                raise child.error(problem)
        if not point:
            raise point_node.error("is an empty point")
        for key in point:
            broken = [p for p, allowed in searched[key].when.items() if p in point and point[p] not in allowed]
            if broken:
                raise point_node.error(f"{key} does not exist where {broken[0]} is {word(point[broken[0]])}")
        if point in points:
            raise point_node.error("comes twice")
        _checked(start, point, point_node)
        points.append(point)
    return tuple(points)


def _objectives(node: Node) -> tuple[Objective, ...]:
    taken: set[str] = set()

    def objective(each: Node) -> Objective:
        values = {"metric": METRIC.read(each)} if isinstance(each.value, str) else section(each, OBJECTIVE)
        if "metric" not in values:
            raise each.error("needs a metric")
        metric = values["metric"]
        if metric in taken:
            raise each.error(f"{metric} is an objective already")
        taken.add(metric)
        return Objective(**{"goal": goal_of(metric), **values})

    return typing.cast(tuple[Objective, ...], list_of(Rule(objective, {}), most=MOST_OBJECTIVES).read(node))


def _constraints(node: Node, work: Work) -> tuple[Constraint, ...]:
    constraints: dict[str, Constraint] = {}
    for each in node.items():
        values = section(each, CONSTRAINT)
        if "metric" not in values:
            raise each.error("needs a metric")
        made = Constraint(**{"name": _constraint_name(values), **values})
        if made.at_least is None and made.at_most is None:
            raise each.error("needs at_least or at_most")
        if made.at_least is not None and made.at_most is not None and made.at_least > made.at_most:
            raise each.error(f"at_least must be <= at_most, got {made.at_least:g} and {made.at_most:g}")
        if made.baseline is not None and made.baseline not in work.baselines:
            raise each.error(f"baseline {made.baseline} is not among work.baselines, so it will have no value")
        if made.name in constraints:
            raise each.error(f"there is a constraint named {made.name} already; give it another name")
        constraints[made.name] = made
    return tuple(constraints.values())


def _constraint_name(values: Mapping[str, Any]) -> str:
    """Such as accuracy_vs_zero_shot."""
    metric = re.sub(r"[^A-Za-z0-9_.-]", "_", values["metric"])
    return f"{metric}_vs_{values['baseline']}" if values.get("baseline") else metric


def _override(root: Node, override: str) -> None:
    """Set one key of the document, as if the file had it so."""
    path, equals, value = override.partition("=")
    path = path.strip()
    if not equals or not path:
        raise InputError(f"--set {override!r}: expected key=value, such as search.trials=20")
    where = f"--set {override}"
    head = path.partition(".")[0]
    if head not in TOP:
        raise InputError(f"{where}: {unknown('key', head, TOP)}")
    _put(root, path, at(parse(value, where), where, path), where)


def _put(node: Node, path: str, new: Node, where: str) -> None:
    if isinstance(node.value, list):
        place, _, rest = path.partition(".")
        if not place.isdecimal() or int(place) >= len(node.value):
            raise InputError(f"{where}: {node.path} is a list of {len(node.value)}; {place!r} is no place in it")
        if rest:
            _put(node.value[int(place)], rest, new, where)
        else:
            node.value[int(place)] = new
        return
    if node.value is None:
        node.value = {}
    if not isinstance(node.value, dict):
        raise InputError(f"{where}: {node.path} is {shown(node.value)}, which has no {path!r}")
    key = _key_of(node, path)
    rest = path[len(key) + 1 :]
    if rest:
        child = node.value.setdefault(key, Node({}, where, f"{node.path}.{key}" if node.path else key))
        _put(child, rest, new, where)
    elif new.value is None:
        node.value.pop(key, None)
    else:
        node.value[key] = new


def _key_of(node: Node, path: str) -> str:
    """The first key of a path, which may have dots itself."""
    for key in typing.cast(dict[str, Node], node.value):
        if path == key or path.startswith(f"{key}."):
            return key
    if not node.path:
        return path.partition(".")[0]
    stem, _, last = path.rpartition(".")
    return stem if node.path == "params" and last in PARAM else path


def _first_of(prefix: str) -> str:
    return next(name for name in setting_types() if name.startswith(f"{prefix}.")).partition(".")[2]
