"""The folder `sweeps/<name>/`, the one record of what has happened in a sweep.

    sweep.json              what the sweep is: space, objectives, provenance, state; sweep.json.copy is the same again
    study.db                the Optuna study, named after the sweep
    trials/<name>.json      one record for each trial and baseline, rewritten whole at every change
    tasks/                  results of tasks by key, so that no trial computes one again
    artifacts/<name>/       a trial's prompts, predictions, reliability diagrams and log
    race/<name>/            its sums after each block of a race, and what was decided there
    steering/<time>.json    commands to a sweep that was begun, each rewritten once it is applied
    logs/                   what each worker did when, by machine and process
    report/                 the front as table, picture and page; best configs; importances
    lock                    held by the driver while it runs

The driver and its trials write here first, and `steer` its commands; MLflow is brought up to date from here when it
can be reached.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, NoReturn, Self, TypeVar

from fpp_sweep.records.records import Command, SplitResult, SweepInfo, TrialRecord, WorkTotals
from fpp_sweep.space.objectives import Objective
from fpp_sweep.space.rules import as_list, as_mapping, check_fields, expect, under
from fpp_sweep.space.work import STEERED, Search
from fpp_sweep.spec.errors import InputError, unknown
from fpp_sweep.spec.files import no_link, require_inside, set_aside, stamp_of, write_json
from fpp_sweep.spec.messages import masked

FORMAT = 3
MOST_BYTES = 2**25  # of a record: one of ten datasets has 2^15

REMEDY = "; going on with the sweep (--resume) mends it"

Made = TypeVar("Made", Command, SplitResult, TrialRecord, SweepInfo, WorkTotals)


class SweepFolder:
    """A sweep's folder: any process may read it, the holder of its lock writes it."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()  # trials read it from processes with other working folders
        self.info_file = self.path / "sweep.json"
        self.info_copy = self.path / "sweep.json.copy"
        self.study_file = self.path / "study.db"
        self.tasks = self.path / "tasks"
        self.report = self.path / "report"
        self._known: dict[Path, tuple[object, Any]] = {}  # records, each with what tells that its file changed

    def __reduce__(self) -> tuple[type[Self], tuple[Path]]:
        """Other processes read for themselves."""
        return type(self), (self.path,)

    @classmethod
    def open(cls, path: Path) -> Self:
        """An existing sweep."""
        folder = cls(path)
        if not folder.begun:
            raise InputError(f"{path} is not a sweep's folder (it has no sweep.json)")
        return folder

    @property
    def begun(self) -> bool:
        """Whether it is a sweep's."""
        return self.info_file.is_file() or self.info_copy.is_file()

    def artifacts(self, trial: str) -> Path:
        return self.path / "artifacts" / trial

    def race(self, trial: str) -> Path:
        return self.inside(self.path / "race" / trial)

    def inside(self, path: Path) -> Path:
        """Return a path of this folder; raise InputError if a link on the way leads out of the folder."""
        return require_inside(self.path, path)

    def info(self) -> SweepInfo:
        return self._info(self.info_file)

    def _info(self, file: Path) -> SweepInfo:
        with _reading(file) as document:
            with under("objectives"):
                goals = [Objective.recorded(**as_mapping(fields)) for fields in as_list(document.get("objectives"))]
            work = _made(WorkTotals, document.get("work", {}), "work")
            return _made(SweepInfo, document | {"objectives": tuple(goals), "work": work})

    def restored_info(self) -> tuple[SweepInfo, str | None]:
        """The same, made again from its copy where it cannot be read, and what to say of that."""
        try:
            return self.info(), None
        except InputError as error:
            problem = str(error).removesuffix(REMEDY)
        try:
            known = self._info(self.info_copy)
        except InputError as error:
            advice = f"begin another with --name; {self.tasks}, moved to its folder, saves computing again"
            raise InputError(f"{problem}, and its copy is not either: {advice}") from error
        kept = f"kept as {set_aside(self.info_file)}, and " if self.info_file.exists() else ""
        self.write_info(known)
        return known, f"{problem}; {kept}made again from its copy, so that nothing is lost"

    def write_info(self, info: SweepInfo) -> None:
        secret = masked(info.tracking_uri) != info.tracking_uri
        for file in (self.info_file, self.info_copy):
            write_json(file, {"format": FORMAT, **asdict(info)}, mode=0o600 if secret else 0o666)

    def trial_file(self, name: str) -> Path:
        return self.path / "trials" / f"{name}.json"

    def trial(self, name: str) -> TrialRecord:
        """A trial's record."""
        return self._read(self.trial_file(name), _trial)

    def known_trial(self, name: str) -> TrialRecord:
        """The same by a name that somebody gave."""
        names = [file.stem for file in self.trial_files()]
        if name not in names:
            raise unknown(f"trial of {self.path.name}", name, names)
        return self.trial(name)

    def _read(self, file: Path, read: Callable[[Path], Made]) -> Made:
        """A record, parsed once for each time that it was written."""
        with suppress(OSError):  # which to read it will tell
            stamp = stamp_of(file)
            known = self._known.get(file)
            if known is None or known[0] != stamp:
                known = self._known[file] = stamp, read(file)
            record: Made = known[1]
            return record
        return read(file)

    def write_trial(self, record: TrialRecord) -> None:
        write_json(self.trial_file(record.name), {"format": FORMAT, **asdict(record)})

    def trials(self) -> list[TrialRecord]:
        """All records: baselines, then trials by number."""
        return [self.trial(file.stem) for file in self.trial_files()]

    def trial_files(self) -> list[Path]:
        return sorted((self.path / "trials").glob("[!.]*.json"))

    def command_files(self) -> list[Path]:
        return sorted((self.path / "steering").glob("[!.]*.json"))

    def command(self, file: Path) -> Command:
        return self._read(file, _command)

    def commands(self) -> list[Command]:
        """In the order in which they were given; one that cannot be read is left to --resume, which tells it."""
        found = []
        for file in self.command_files():
            with suppress(InputError):
                found.append(self.command(file))
        return found

    def ask(self, kind: Literal["add", "stop", "budget"], values: Mapping[str, Any]) -> Command:
        """Have a driver do it, the one that runs or the next."""
        name = f"{datetime.now(UTC):%Y%m%d-%H%M%S-%f}-{os.getpid()}"
        command = Command(name=name, kind=kind, written=time.time(), values=values)
        self._write_command(command)
        return command

    def has_applied(self, command: Command, outcome: str = "", number: int | None = None) -> None:
        self._write_command(replace(command, applied=time.time(), outcome=outcome, number=number))

    def _write_command(self, command: Command) -> None:
        write_json(self.path / "steering" / f"{command.name}.json", {"format": FORMAT, **asdict(command)})

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Be the only driver of this sweep; the lock goes with the process, however that ends."""
        with ExitStack() as held:
            try:
                self.path.mkdir(parents=True, exist_ok=True)
                file = held.enter_context(open(self.path / "lock", "a+", errors="replace", opener=no_link))
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                file.truncate(0)
                os.write(file.fileno(), str(os.getpid()).encode())
            except BlockingIOError:
                file.seek(0)
                owner = file.read(40).strip() or "another process"
                raise InputError(f"sweep {self.path.name} is being run by process {owner}; wait, or stop it") from None
            except OSError as error:
                problem = f"{self.path / 'lock'} cannot be written and locked ({error.strerror})"
                raise InputError(f"{problem}; make that possible, or give another place with --out") from error
            yield


def _trial(file: Path) -> TrialRecord:
    with _reading(file) as document:
        with under("results"):
            given = as_mapping(document.get("results"))
            document["results"] = {split: _made(SplitResult, result, split) for split, result in given.items()}
        record = _made(TrialRecord, document)
        expect(record.name == file.stem, f"is the record of {record.name}", "name")
        return record


def _command(file: Path) -> Command:
    with _reading(file) as document:
        command = _made(Command, document)
        expect(command.name == file.stem, f"is the command {command.name}", "name")
        if command.kind == "budget":
            expect(set(command.values) <= set(STEERED), f"are not of {', '.join(STEERED)}", "values")
            Search(**command.values)
        expect(command.kind != "stop" or "trial" in command.values, "has no trial", "values")
        return command


@contextmanager
def _reading(file: Path) -> Iterator[dict[str, Any]]:
    """A record's document; what is wrong with it, or with what is made of it, is told in a line."""
    version = None
    try:
        expect(file.stat().st_size <= MOST_BYTES, f"it has more than {MOST_BYTES >> 20} MiB")
        document = dict(as_mapping(_DECODER.decode(file.read_text("utf-8"))))
        expect("format" in document, "it has no format")
        version = document.pop("format")
        if version == FORMAT:
            yield document
    except (OSError, ValueError, TypeError, RecursionError) as error:
        problem = " ".join(str(error).split())
        raise InputError(f"{file}: not readable as a record of a sweep ({problem}){REMEDY}") from error
    if version != FORMAT:
        raise InputError(f"{file}: written by another version of fpp_sweep; use that one to read it")


def _not_json(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no number")


_DECODER = json.JSONDecoder(parse_constant=_not_json)


def _made(kind: type[Made], fields: Any, key: str = "") -> Made:
    """A record, each field of which is what its type says."""
    with under(key):
        made = kind(**as_mapping(fields))
        check_fields(made)
        return made
