"""What facts of machines (machine.py) mean to a sweep: what is as it should be, what to know of, what is wrong."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from math import comb
from typing import Any, Literal, NamedTuple

from fpp_sweep.checks.probes import Facts
from fpp_sweep.checks.provenance import LIBRARIES
from fpp_sweep.core.images.cache import readable_size

State = Literal["ok", "note", "wrong"]
Rule = Callable[[Any, Sequence[Any]], tuple[str, State]]  # of one node's fact, and of all nodes'
CHANCE = 0.001  # what guessing reaches more rarely is no guessing


class Finding(NamedTuple):
    """A row of the table."""

    node: str
    what: str
    found: str
    state: State
    remedy: str


def judge(nodes: Mapping[str, Facts]) -> list[Finding]:
    """The facts of all nodes as rows, in the order of what was looked at."""
    findings = list[Finding]()
    for what in dict.fromkeys(what for facts in nodes.values() for what in facts):
        rule, remedy = CHECKS[what.partition(" ")[0]]
        there = {node: facts[what] for node, facts in nodes.items() if what in facts}
        failed = {node: fact["failed"] for node, fact in there.items() if isinstance(fact, dict) and "failed" in fact}
        seen = {node: fact for node, fact in there.items() if node not in failed}
        findings += [Finding(node, what, told, "wrong", remedy) for node, told in failed.items()]
        findings += [Finding(node, what, *rule(value, [*seen.values()]), remedy) for node, value in seen.items()]
    return findings


def same(otherwise: State = "wrong") -> Rule:
    """As most nodes have it; builds of torch for different devices, such as 2.9.0+cpu, are one version."""

    def rule(value: str, values: Sequence[str]) -> tuple[str, State]:
        most = Counter(each.partition("+")[0] for each in values).most_common(1)[0][0]
        return value, "ok" if value.partition("+")[0] == most else otherwise

    return rule


def least(limit: float, note: float, shown: Callable[[float], str]) -> Rule:
    return lambda value, _: (shown(value), "wrong" if value < limit else "note" if value < note else "ok")


def none_of(state: State) -> Rule:
    return lambda value, _: ("; ".join(value) or "none", state if value else "ok")


def disk(value: Mapping[str, Any], _: Sequence[Any]) -> tuple[str, State]:
    """A worker on a CPU makes features of about 1 MB/s; a slower disk would hold it up."""
    free, speed = value["free"], value["speed"]
    found = f"{value['folder']}: {readable_size(free)} free, written at {readable_size(speed)}/s"
    return found, "wrong" if free < 1e8 else "note" if free < 2e9 or speed < 1e6 else "ok"


def gpus(value: Mapping[str, Any], values: Sequence[Mapping[str, Any]]) -> tuple[str, State]:
    kinds = {gpu for each in values for gpu in each["listed"]}
    state: State = "wrong" if value["torch"] < len(value["listed"]) else "note" if len(kinds) > 1 else "ok"
    return f"{', '.join(value['listed']) or 'none'}; torch sees {value['torch']}", state


def recognised(value: Mapping[str, int], _: Sequence[Any]) -> tuple[str, State]:
    """Guessing would hardly do as well."""
    seen, right, share = value["seen"], value["right"], 1 / value["classes"]
    by_chance = sum(comb(seen, hits) * share**hits * (1 - share) ** (seen - hits) for hits in range(right, seen + 1))
    found = f"{right} of {seen} images recognised, {seen * share:.0f} by guessing"
    return found, "wrong" if by_chance > CHANCE and value["classes"] > 1 else "ok"


def undecided(value: Sequence[str], _: Sequence[Any]) -> tuple[str, State]:
    """No machine has the shipped addresses, no image the shipped name."""
    told = "; ".join(value)
    return told or "none", "wrong" if "192.0.2." in told or "ami-0000" in told else "note" if value else "ok"


SPOILS = ("fpp_sweep", "code", "python", *LIBRARIES, "cache")  # a sweep does not begin where one of these is wrong
CHECKS: dict[str, tuple[Rule, str]] = {  # by the first word of what was looked at: its rule, and what would do
    **dict.fromkeys(("fpp_sweep", "code"), (same(), "bring every node to the same commit, and start Ray there again")),
    **dict.fromkeys(("python", *LIBRARIES), (same(), "install the same versions everywhere, from one list of them")),
    "answer": (same(), "see with `ray status` whether the node is up"),
    "cache": (disk, "make room, or name another folder with work.cache or FPP_SWEEP_CACHE"),
    "temporary": (disk, "make room, or name another folder with TMPDIR"),
    "memory": (least(1.5e9, 4e9, readable_size), "free memory, or raise the limit of the user, job or container"),
    "open": (least(1024, 4096, "{:.0f} at a time".format), "ulimit -n 65536, before `ray start`"),
    "clock": (
        lambda value, _: (f"{value:+.1f} s", "wrong" if abs(value) > 60 else "note" if abs(value) > 2 else "ok"),
        "set the clock, with a service such as chrony",
    ),
    "token": (
        lambda value, _: (value, "ok" if value in ("environment", "0600", "0400") else "wrong"),
        "RAY_AUTH_MODE=token for `ray start`, and chmod 600 of the token's file: who has it can run code",
    ),
    "same": (same(), "copy one token to every node, and start Ray there again"),
    "GPUs": (gpus, "where torch sees too few: a driver for its CUDA, or torch for that of the driver"),
    "ports": (none_of("note"), "let it listen on 127.0.0.1, or close the port to others"),
    "cleaners": (none_of("note"), "exempt the folder with an x line in /etc/tmpfiles.d, or use another"),
    "weights": (same(), "put the same file where work.model names it, on every node"),
    "dataset": (same(), "copy the same dataset to the same place on every node"),
    "images": (same("note"), "copy files with their times (rsync -a): machines do not share features otherwise"),
    "labels": (none_of("wrong"), "bring class names and labels into the same order"),
    "accuracy": (recognised, "see whether class names and labels have the same order, and model and images fit"),
    "MLflow": (
        lambda value, _: (f"{value[0]}, ours {value[1]}", "ok" if value[0] == value[1] else "note"),
        "start the server, or give its --tracking-uri; best have the same version on both sides",
    ),
    "joined": (none_of("wrong"), "see logs/monitor.* of Ray's session on the head, and start the node"),
    "CHANGE": (undecided, "put your own values into these lines of the cluster file, or keep them if they suit you"),
}
