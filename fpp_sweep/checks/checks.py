"""Judge the readings of `probes`: each check is a function of one node's reading and the readings of all nodes.

A check returns a verdict with its state, and a remedy where the general remedy of the check does not fit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple

from packaging.specifiers import SpecifierSet

from fpp_sweep.checks.guessing import images_needed, looks_like_guessing
from fpp_sweep.checks.probes import Readings, has_failed
from fpp_sweep.checks.versions import LIBRARIES, allowed_versions
from fpp_sweep.core.images.cache import readable_size
from fpp_sweep.spec.messages import plural

State = Literal["ok", "note", "wrong"]

# subjects whose probes fail again for the reason of an earlier subject; such a reason is reported once
REPEATING = ("plan of the sweep", "start of the sweep")
MIN_DISK, GOOD_DISK = 1e8, 2e9  # free bytes
MIN_DISK_SPEED = 1e6  # bytes a second; a worker on a CPU writes features at about this rate
MIN_MEMORY, GOOD_MEMORY = 1.5e9, 4e9  # free bytes
NAMES_SHOWN = 3  # names of classes in a finding
NOTED_CLOCK_OFFSET, MAX_CLOCK_OFFSET = 2.0, 60.0  # seconds


class Verdict(NamedTuple):
    """The result of a check of one node's reading."""

    state: State
    text: str
    remedy: str = ""  # empty: the general remedy of the check


Rule = Callable[[Any, Sequence[Any]], Verdict]  # arguments: one node's reading, and the readings of all nodes


@dataclass(frozen=True, slots=True)
class Check:
    """A rule, with the remedy for a reading that breaks the rule or is missing."""

    rule: Rule
    remedy: str
    remedy_alone: str = ""  # on a single machine; empty: the same


class Finding(NamedTuple):
    """The verdict on a subject of a node."""

    node: str
    subject: str
    state: State
    text: str
    remedy: str


def findings(nodes: Mapping[str, Readings]) -> list[Finding]:
    """Judge the readings of all nodes, subject by subject; of each subject the probes that failed come first."""
    judged: list[Finding] = []
    reasons_by_node: set[tuple[str, str]] = set()  # nodes with the reasons for which their probes failed
    for subject, readings in _by_subject(nodes).items():
        check = check_of(subject)
        remedy = check.remedy
        if len(nodes) == 1 and check.remedy_alone:
            remedy = check.remedy_alone
        readable = {}
        for node, reading in readings.items():
            if not has_failed(reading):
                readable[node] = reading
                continue
            reason = reading["failed"]
            is_repeated = subject in REPEATING and (node, reason) in reasons_by_node
            if not is_repeated:
                judged.append(Finding(node, subject, "wrong", reason, remedy))
            reasons_by_node.add((node, reason))
        for node, reading in readable.items():
            verdict = check.rule(reading, list(readable.values()))
            judged.append(Finding(node, subject, verdict.state, verdict.text, verdict.remedy or remedy))
    return judged


def _by_subject(nodes: Mapping[str, Readings]) -> dict[str, dict[str, Any]]:
    """Return the readings by subject and node."""
    by_subject: dict[str, dict[str, Any]] = {}
    for node, readings in nodes.items():
        for subject, reading in readings.items():
            by_subject.setdefault(subject, {})[node] = reading
    return by_subject


def check_of(subject: str) -> Check:
    """Return the check of a subject, such as `files of dtd, val`; its key is the subject or begins it: `files of`."""
    keys = [key for key in CHECKS if f"{subject} ".startswith(f"{key} ")]
    return CHECKS[max(keys, key=len)]


# --- rules


def check_equal(value: str, values: Sequence[str]) -> Verdict:
    """Require what most nodes have; builds of torch for different devices, such as 2.9.0+cpu, are one version."""
    most_common = Counter(_release(version) for version in values).most_common(1)[0][0]
    if _release(value) == most_common:
        return Verdict("ok", value)
    return Verdict("wrong", value)


def _release(version: str) -> str:
    return version.partition("+")[0]


def check_library(name: str, version: str, versions: Sequence[str]) -> Verdict:
    """Require a version that this package allows, and the same one on every node."""
    allowed = SpecifierSet(allowed_versions(name))
    if not allowed.contains(_release(version), prereleases=True):
        return Verdict("wrong", f"{version}, but this package needs {allowed}", f"install {name}{allowed}")
    return check_equal(version, versions)


def check_equal_images(value: str, values: Sequence[str]) -> Verdict:
    verdict = check_equal(value, values)
    if verdict.state == "wrong":
        return verdict._replace(state="note")
    return verdict


def check_disk(value: Mapping[str, Any], _: Sequence[Any]) -> Verdict:
    text = f"{value['folder']}: {readable_size(value['free'])} free, written at {readable_size(int(value['speed']))}/s"
    if value["free"] < MIN_DISK:
        return Verdict("wrong", text)
    if value["free"] < GOOD_DISK:
        return Verdict("note", text)
    if value["speed"] < MIN_DISK_SPEED:
        return Verdict("note", text, "use a faster disk: workers wait for it")
    return Verdict("ok", text)


def check_memory(free: float, _: Sequence[Any]) -> Verdict:
    return Verdict(_state_of(free, MIN_MEMORY, GOOD_MEMORY), readable_size(int(free)))


def _state_of(value: float, minimum: float, good: float) -> State:
    if value < minimum:
        return "wrong"
    if value < good:
        return "note"
    return "ok"


def check_clock(offset: float, _: Sequence[Any]) -> Verdict:
    text = f"{offset:+.1f} s"
    if abs(offset) > MAX_CLOCK_OFFSET:
        return Verdict("wrong", text)
    if abs(offset) > NOTED_CLOCK_OFFSET:
        return Verdict("note", text)
    return Verdict("ok", text)


def check_token(mode: str, _: Sequence[Any]) -> Verdict:
    """Require a token that only its owner can read: a process that has the token can run code on the cluster."""
    if mode == "none":
        return Verdict("wrong", mode, "start Ray with RAY_AUTH_MODE=token; without a token anybody can run code")
    if _is_private(mode):
        return Verdict("ok", mode)
    return Verdict("wrong", mode)


def check_session_token(value: Mapping[str, Any], _: Sequence[Any]) -> Verdict:
    """Require a token that other users of this machine cannot read, as far as a sweep does not see to it itself."""
    mode = value["mode"]
    if mode == "new":
        return Verdict("ok", "created by the next sweep")
    if mode == "none":
        remedy = "unset RAY_AUTH_MODE: without a token, other users of this machine can run code in a session"
        return Verdict("note", mode, remedy)
    if _is_private(mode):
        return Verdict("ok", mode)
    if value["is_made_private"]:
        return Verdict("note", f"{mode}, which the next sweep changes; other users may have read the token")
    return Verdict("wrong", mode, f"chmod 600 {value['file']}")


def _is_private(mode: str) -> bool:
    """Return whether a token in the environment, or in a file of this mode, is its owner's alone."""
    return mode == "environment" or not int(mode, base=8) & 0o077


def check_gpus(value: Mapping[str, Any], values: Sequence[Mapping[str, Any]]) -> Verdict:
    if value["no_gpu"]:
        return Verdict("note", value["no_gpu"])
    text = f"{', '.join(value['listed']) or 'none'}; torch sees {value['torch']}"
    if value["torch"] < len(value["listed"]):
        return Verdict("wrong", text)
    kinds = {gpu for node in values for gpu in node["listed"]}
    if len(kinds) > 1:
        return Verdict("note", text, "expect small differences between results of different GPUs")
    return Verdict("ok", text)


def check_accuracy(value: Mapping[str, int], _: Sequence[Any]) -> Verdict:
    """Require more correct predictions than guessing gives but rarely, if there are enough images to tell."""
    images, classes = value["images"], value["classes"]
    text = f"{value['correct']} of {images} images classified correctly, {images / classes:.0f} by guessing"
    if not looks_like_guessing(value["correct"], images, classes):
        return Verdict("ok", text)
    needed = images_needed(classes)
    if images >= needed:
        return Verdict("wrong", text)
    remedy = "compare the order of class names and labels by eye, or take more images of each dataset"
    return Verdict("note", f"{text}; {needed} images would tell", remedy)


def check_classes(value: Mapping[str, Any], _: Sequence[Any]) -> Verdict:
    """Note classes without images: accuracy and calibration are then those of the other classes."""
    empty = value["empty"]
    if not empty:
        return Verdict("ok", f"{value['classes']}, each with images")
    return Verdict("note", f"{len(empty)} of {value['classes']} without images: {_first_names(empty)}")


def _first_names(names: Sequence[str]) -> str:
    shown = ", ".join(names[:NAMES_SHOWN])
    if len(names) > NAMES_SHOWN:
        shown += ", ..."
    return shown


def check_names(repeated: Sequence[str], _: Sequence[Any]) -> Verdict:
    """Note classes of one name: their texts are equal, so the first of them is predicted for the images of all."""
    if not repeated:
        return Verdict("ok", "each class has its own")
    return Verdict("note", f"several classes are called {_first_names(repeated)}")


def check_splits(shared: Sequence[str], _: Sequence[Any]) -> Verdict:
    """Require splits without common images: the test split must not have been seen in the search."""
    if shared:
        return Verdict("wrong", "; ".join(shared))
    return Verdict("ok", "share no image")


def check_size(value: Mapping[str, int], _: Sequence[Any]) -> Verdict:
    if value["images"] == value["published"]:
        return Verdict("ok", f"{plural(value['images'], 'image')}, as published")
    return Verdict("note", f"{plural(value['images'], 'image')}, but {value['published']} were published")


def check_files(value: Mapping[str, Any], _: Sequence[Any]) -> Verdict:
    text = f"{value['opened']} of {value['images']} images opened"
    problems = value["problems"]
    if not problems:
        return Verdict("ok", text)
    text = f"{text}, {len(problems)} cannot be read: {problems[0]}"
    if value["may_skip"] and len(problems) < value["opened"]:
        return Verdict("note", text, "replace these files, or go on: work.on_bad_image=skip leaves them out")
    return Verdict("wrong", text)


def check_start(_value: str, _: Sequence[Any]) -> Verdict:
    return Verdict("ok", "the settings can be used")


def check_room(value: Mapping[str, Any], _: Sequence[Any]) -> Verdict:
    if value["note"]:
        return Verdict("note", value["note"])
    return Verdict("ok", plural(value["workers"], "worker"))


def check_plan(value: Mapping[str, Any], _: Sequence[Any]) -> Verdict:
    if value["notes"]:
        return Verdict("note", "; ".join(value["notes"]))
    return Verdict("ok", f"{plural(value['methods'], 'method')} and {plural(value['prompts'], 'prompt')} can be used")


def check_mlflow(value: tuple[str, str], _: Sequence[Any]) -> Verdict:
    server, ours = value
    text = f"{server}, ours {ours}"
    if server == ours:
        return Verdict("ok", text)
    return Verdict("note", text, "use the same version on both sides")


def check_joined(missing: Sequence[str], _: Sequence[Any]) -> Verdict:
    if missing:
        return Verdict("wrong", "; ".join(missing))
    return Verdict("ok", "all nodes")


def check_placeholders(lines: Sequence[str], _: Sequence[Any]) -> Verdict:
    """Require other addresses and images than those of the shipped files, which exist nowhere."""
    if lines:
        return Verdict("wrong", "; ".join(lines))
    return Verdict("ok", "no address or image of the shipped file is left")


# --- all checks

SAME_CODE = Check(check_equal, "bring every node to the same commit, and start Ray there again")
SAME_LIBRARIES = "install the same versions everywhere, from one list of them"
REQUIRED = ("fpp_sweep", "code", "python", *LIBRARIES, "cache")  # a sweep does not begin if one of these is wrong
CHECKS: dict[str, Check] = {  # by the subject, or by the words that it begins with
    "fpp_sweep": SAME_CODE,
    "code": SAME_CODE,
    **{name: Check(partial(check_library, name), SAME_LIBRARIES) for name in ("python", *LIBRARIES)},
    "answer": Check(check_equal, "see with `ray status` whether the node is up"),
    "cache": Check(check_disk, "make room, allow writing, or name another folder with work.cache or FPP_SWEEP_CACHE"),
    "session token": Check(
        check_session_token, "chmod 600 of the file that RAY_AUTH_TOKEN_PATH names, or name one that has the token"
    ),
    "memory": Check(check_memory, "free memory, or raise the limit of the user, job or container"),
    "clock": Check(check_clock, "set the clock, with a service such as chrony"),
    "token": Check(check_token, "chmod 600 of the token's file: a user who can read the token can run code"),
    "same token": Check(check_equal, "copy one token to every node, and start Ray there again"),
    "GPUs": Check(check_gpus, "install a driver for torch's CUDA, or torch for the driver's CUDA"),
    "weights": Check(
        check_equal,
        "put the same file where work.model names it, on every node",
        "name weights that can be read with --model",
    ),
    "dataset": Check(
        check_equal,
        "copy the same dataset to the same folder on every node",
        "correct the dataset's name, folder or split file, or leave it out; doctor --datasets lists what splits lack",
    ),
    "classes of": Check(check_classes, "add images of these classes, or take their names out of the list of classes"),
    "names of": Check(check_names, "give each class its own name: of equal ones, the first is always predicted"),
    "splits of": Check(check_splits, "take these images out of one of the two splits"),
    "size of": Check(check_size, "restore the published split: other images give other results than the papers'"),
    "files of": Check(check_files, "replace these files; doctor --verify lists all damaged ones"),
    "images of": Check(check_equal_images, "copy files with their times (rsync -a): only then machines share features"),
    "accuracy on": Check(
        check_accuracy, "check that images, labels and class names belong together, and the model fits"
    ),
    "start of the sweep": Check(
        check_start, "correct the setting or plugin that is named there: `tune` would stop there, too"
    ),
    "room for workers": Check(
        check_room, "lower the setting that is named there, or run on a larger machine or cluster"
    ),
    "plan of the sweep": Check(check_plan, "correct the method, prompt, dataset or plugin that is named there"),
    "sweeps": Check(check_disk, "make room, allow writing, or name another folder with --out"),
    "MLflow": Check(check_mlflow, "name another store with --tracking-uri"),
    "joined": Check(check_joined, "see logs/monitor.* of Ray's session on the head, and start the node"),
    "cluster file": Check(check_placeholders, "put your own values into these lines of the cluster file"),
}
