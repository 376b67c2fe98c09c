"""What facts of machines (machine.py) mean to a sweep: what is as it should be, what to know of, what is wrong."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import comb
from typing import Any, Literal

from fpp_sweep.core.images.cache import readable_size
from fpp_sweep.sweep.machine import Facts
from fpp_sweep.sweep.provenance import LIBRARIES

State = Literal["ok", "note", "wrong"]
Rule = Callable[[Any, Sequence[Any]], tuple[str, State]]  # of one node's fact, and of all nodes'
CHANCE = 0.001  # what guessing reaches more rarely is no guessing


@dataclass(frozen=True, slots=True)
class Finding:
    """A row of the table."""

    node: str
    what: str
    found: str
    state: State
    remedy: str


def judge(nodes: Mapping[str, Facts]) -> list[Finding]:
    """The facts of all nodes as rows, in the order of what was looked at."""
    found = []
    for what in dict.fromkeys(what for facts in nodes.values() for what in facts):
        rule, remedy = CHECKS[what.partition(" ")[0]]
        there = {node: facts[what] for node, facts in nodes.items() if what in facts}
        seen = [value for value in there.values() if not _failed(value)]
        for node, value in there.items():
            told, state = (value["failed"], "wrong") if _failed(value) else rule(value, seen)
            found.append(Finding(node, what, told, state, remedy))
    return found


def _failed(value: Any) -> bool:
    return isinstance(value, dict) and "failed" in value


def same(value: str, values: Sequence[str]) -> tuple[str, State]:
    """As most nodes have it; torch's builds for different devices, 2.9.0+cpu, are one version."""
    known = [each.partition("+")[0] for each in values]
    return value, "ok" if value.partition("+")[0] == Counter(known).most_common(1)[0][0] else "wrong"


def alike(value: str, values: Sequence[str]) -> tuple[str, State]:
    return value, "ok" if same(value, values)[1] == "ok" else "note"


def below(limit: float, note: float, shown: Callable[[float], str]) -> Rule:
    """Wrong below the limit, a note below the other."""
    return lambda value, _: (shown(value), "wrong" if value < limit else "note" if value < note else "ok")


def disk(value: Mapping[str, Any], _: Sequence[Any]) -> tuple[str, State]:
    """A worker on a CPU makes features of about 1 MB/s; a disk below that would hold it up."""
    free, speed = value["free"], value["speed"]
    told = f"{value['folder']}: {readable_size(free)} free, written at {readable_size(speed)}/s"
    return told, "wrong" if free < 1e8 else "note" if free < 2e9 or speed < 1e6 else "ok"


def clock(value: float, _: Sequence[Any]) -> tuple[str, State]:
    return f"{value:+.1f} s", "wrong" if abs(value) > 60 else "note" if abs(value) > 2 else "ok"


def token(value: str, _: Sequence[Any]) -> tuple[str, State]:
    return value, "ok" if value in ("environment", "0600", "0400") else "wrong"


def gpus(value: Mapping[str, Any], values: Sequence[Mapping[str, Any]]) -> tuple[str, State]:
    told = f"{', '.join(value['listed']) or 'none'}; torch sees {value['torch']}"
    if value["torch"] < len(value["listed"]):
        return told, "wrong"
    kinds = {line for each in values for line in each["listed"]}
    return told, "note" if len(kinds) > 1 else "ok"


def none_of(state: State) -> Rule:
    return lambda value, _: ("; ".join(value) or "none", state if value else "ok")


def recognised(value: Mapping[str, int], _: Sequence[Any]) -> tuple[str, State]:
    """Whether guessing would hardly do as well."""
    seen, right, share = value["seen"], value["right"], 1 / value["classes"]
    by_chance = sum(comb(seen, hits) * share**hits * (1 - share) ** (seen - hits) for hits in range(right, seen + 1))
    told = f"{right} of {seen} images recognised, {seen * share:.0f} by guessing"
    return told, "wrong" if by_chance > CHANCE and value["classes"] > 1 else "ok"


def mlflow(value: tuple[str, str], _: Sequence[Any]) -> tuple[str, State]:
    there, ours = value
    return f"{there}, ours is {ours}", "ok" if there == ours else "note"


SPOILS = ("fpp_sweep", "code", "python", *LIBRARIES, "cache")  # a sweep does not begin where one of these is wrong
CODE = "bring every node to the same commit of the project, and start Ray there again"
PINNED = "install the same versions on every node, from one list that pins them"
CHECKS: dict[str, tuple[Rule, str]] = {  # by the first word of what was looked at: its rule, and what would do
    **dict.fromkeys(("fpp_sweep", "code"), (same, CODE)),
    **dict.fromkeys(("python", *LIBRARIES), (same, PINNED)),
    "answer": (same, "see with `ray status` whether the node is up"),
    "clock": (clock, "set the clock, with a service such as chrony"),
    "cache": (disk, "make room, or name another folder with work.cache or FPP_SWEEP_CACHE"),
    "temporary": (disk, "make room, or name another folder with TMPDIR"),
    "memory": (
        below(1.5e9, 4e9, readable_size),
        "free memory or raise the limit: of the user, the job or the container",
    ),
    "open": (below(1024, 4096, "{:.0f} at a time".format), "ulimit -n 65536, before `ray start`"),
    "token": (token, "chmod 600 ~/.ray/auth_token, and RAY_AUTH_MODE=token for `ray start`: who has it can run code"),
    "same": (same, "copy one token to every node, and start Ray there again"),
    "GPUs": (gpus, "install a driver for the CUDA of torch, or torch for that of the driver"),
    "ports": (none_of("note"), "let it listen on 127.0.0.1, or close the port to others"),
    "cleaners": (
        none_of("note"),
        "keep what a sweep needs elsewhere, or exempt the folder with an x line in /etc/tmpfiles.d",
    ),
    "weights": (same, "put the same file where work.model names it, on every node"),
    "dataset": (same, "copy the same dataset to the same place on every node"),
    "images": (alike, "copy with times kept (rsync -a), else each node's features have other keys"),
    "labels": (none_of("wrong"), "mend the class names, or the labels of the split file: their order differs"),
    "accuracy": (recognised, "see whether the class names are in the labels' order, and whether model and images fit"),
    "MLflow": (
        mlflow,
        "start the server, or give its --tracking-uri; the same version of MLflow on both sides is tried",
    ),
    "joined": (none_of("wrong"), "see Ray's logs/monitor.* on the head, and start the node"),
    "CHANGE": (none_of("note"), "decide on these lines of the cluster file"),
    "placeholders": (none_of("wrong"), "put your own value into these lines of the cluster file"),
}
