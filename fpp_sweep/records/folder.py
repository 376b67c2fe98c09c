"""The folder `sweeps/<name>/`, the only record of a sweep.

    sweep.json              space, objectives, provenance and state of the sweep
    trials/<name>.json      one record for each trial and baseline, rewritten whole at every change
    study.journal           the Optuna study for dashboards, written at the end of a driver
    tasks/                  results of tasks by key, so that no trial computes a result again
    artifacts/<name>/       a trial's prompts, predictions, reliability diagrams and log
    steering/<time>.json    commands to the sweep, each rewritten once it is applied
    logs/                   the log of each worker, by machine and process
    report/                 the front as table, picture and page; best configs; importances
    lock                    held by the driver while it runs

The driver and its trials write here first, and `steer` its commands; MLflow is brought up to date from here when it
can be reached.
"""

from __future__ import annotations

import fcntl
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal, NoReturn, Self, TypeVar

from fpp_sweep.records.records import (
    Command,
    SplitResult,
    SweepInfo,
    TrialRecord,
    WorkTotals,
    baseline_name,
    check_metric_name,
    check_plain,
    check_setting_values,
    check_space,
)
from fpp_sweep.space.objectives import Objective
from fpp_sweep.space.work import STEERED, Search
from fpp_sweep.spec.errors import InputError, is_full_disk, message_in_one_line, problem_of_system, unknown
from fpp_sweep.spec.files import (
    FileTooLargeError,
    LockHeldError,
    NotAFileError,
    exclusive_lock,
    files_in,
    no_link,
    read_end,
    read_own,
    stamp_of,
    write_json,
)
from fpp_sweep.spec.messages import plural
from fpp_sweep.spec.validation import as_list, as_mapping, at_key, check_fields, require

FORMAT = 5
RECORDS = "[!.]*.json"  # names of records; a file that is being written begins with a dot
COMMAND_TIME = "%Y%m%d-%H%M%S-%f"  # the beginning of a command's name, by which commands are sorted
MAX_LOG_BYTES = 2**14  # read from the end of a log
MAX_RECORD_BYTES = 2**25  # the record of a trial on ten datasets has 2^15 bytes
LOCK_ATTEMPTS = 5
LOCK_PAUSE = 0.05  # seconds between two attempts

RUN_AGAIN = "delete it; the trial runs again"
SEND_AGAIN = "delete it, and send the command again"
BEGIN_AGAIN = "begin another sweep with --name; tasks/, moved to its folder, saves computing again"

Record = TypeVar("Record", Command, SplitResult, TrialRecord, SweepInfo, WorkTotals)


class SweepFolder:
    """The folder of a sweep: any process may read the folder, the holder of its lock writes."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()  # trials read it from processes with other working folders
        if ".." in path.parts:
            self.path = path.resolve()  # so that the last part of the path is the sweep's name
        self.info_file = self.path / "sweep.json"
        self._parsed: dict[Path, tuple[object, Any]] = {}  # file -> its stamp when it was parsed, and its record

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.path)!r})"

    def __reduce__(self) -> tuple[type[Self], tuple[Path]]:
        """Pickle the path only: other processes read the files themselves."""
        return type(self), (self.path,)

    @classmethod
    def open(cls, path: Path) -> Self:
        """Return the folder of an existing sweep."""
        folder = cls(path)
        if not os.path.exists(path):
            raise InputError(f"{path}: there is no such sweep; `show` lists the sweeps")
        if not folder.has_sweep:
            raise InputError(f"{path} is not a sweep's folder (it has no sweep.json)")
        return folder

    @property
    def has_sweep(self) -> bool:
        """True if a sweep was begun in this folder."""
        return self.info_file.is_file()

    @property
    def study_file(self) -> Path:
        return self.path / "study.journal"

    @property
    def tasks(self) -> Path:
        return self.path / "tasks"

    @property
    def report(self) -> Path:
        return self.path / "report"

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    def artifacts(self, trial: str) -> Path:
        return self.path / "artifacts" / trial

    def log_file(self, trial: str) -> Path:
        return self.artifacts(trial) / "log.txt"

    def last_log_lines(self, trial: str, count: int) -> list[str]:
        """Return the last lines of a trial's log; none without a log."""
        try:
            text = read_end(self.log_file(trial), MAX_LOG_BYTES)
        except FileNotFoundError:
            return []
        return text.splitlines()[-count:]

    def prompt_files(self, trial: str) -> list[Path]:
        """Return the prompts that were pretrained for a trial."""
        return files_in(self.artifacts(trial) / "prompts", "*.safetensors")

    def read_artifact(self, trial: str, name: str, max_bytes: int) -> bytes:
        """Return the content of a trial's file; raise OSError if it cannot be read."""
        return read_own(self.artifacts(trial) / name, max_bytes)

    def info(self) -> SweepInfo:
        with _naming_damaged(self.info_file, BEGIN_AGAIN):
            document = _read_document(self.info_file)
            objectives = _read_objectives(document.get("objectives"))
            work = _checked(WorkTotals, document.get("work", {}), "work")
            info = _checked(SweepInfo, document | {"objectives": objectives, "work": work})
            if info.reference is not None:
                problem = f"has {plural(len(info.reference), 'value')} for {plural(len(objectives), 'objective')}"
                require(len(info.reference) == len(objectives), problem, "reference")
            _check_spaces(info)
            return info

    def write_info(self, info: SweepInfo) -> None:
        _check_spaces(info)  # else no reader would accept the record
        write_json(self.info_file, {"format": FORMAT, **asdict(info)})

    def trial_file(self, name: str) -> Path:
        return self.path / "trials" / f"{name}.json"

    def trial(self, name: str) -> TrialRecord:
        """Return a trial's record."""
        return self._cached(self.trial_file(name), _read_trial)

    def known_trial(self, name: str) -> TrialRecord:
        """Return the record of a trial that the user names, or of a baseline, also without its prefix.

        Raise InputError if there is none.
        """
        names = [file.stem for file in self.trial_files()]
        for full_name in (name, baseline_name(name)):
            if full_name in names:
                return self.trial(full_name)
        raise unknown(f"trial of {self.path.name}", name, names)

    def _cached(self, file: Path, read: Callable[[Path], Record]) -> Record:
        """Return a record, which `read` parses once for each version of its file."""
        try:
            stamp = stamp_of(file)
        except OSError:
            return read(file)  # raises the error with the file's name
        record: Record
        if file in self._parsed:
            parsed_stamp, record = self._parsed[file]
            if parsed_stamp == stamp:
                return record
        record = read(file)
        self._parsed[file] = stamp, record
        return record

    def write_trial(self, record: TrialRecord) -> None:
        write_json(self.trial_file(record.name), {"format": FORMAT, **asdict(record)})

    def trials(self) -> list[TrialRecord]:
        """Return all records: baselines, then trials by number."""
        return [self._cached(file, _read_trial) for file in self.trial_files()]

    def trial_files(self) -> list[Path]:
        return files_in(self.path / "trials", RECORDS)

    def command_files(self) -> list[Path]:
        return files_in(self.path / "steering", RECORDS)

    def command(self, file: Path) -> Command:
        return self._cached(file, _read_command)

    def commands(self) -> list[Command]:
        """Return the commands, oldest first."""
        commands = []
        for file in self.command_files():
            commands.append(self.command(file))
        return commands

    def send_command(self, kind: Literal["add", "stop", "budget"], values: Mapping[str, Any]) -> Command:
        """Write a command for the running driver, or for the next one."""
        command = Command(name=self._new_command_name(), kind=kind, written=time.time(), values=values)
        self._write_command(command)
        return command

    def _new_command_name(self) -> str:
        """Return a name that sorts after those of all commands; the clock of a machine that wrote one may be ahead."""
        moment = datetime.now(UTC)
        for file in self.command_files():
            with suppress(ValueError, OverflowError):  # not the name of a command
                earlier = datetime.strptime(file.stem.rpartition("-")[0], COMMAND_TIME).replace(tzinfo=UTC)
                moment = max(moment, earlier + timedelta(microseconds=1))
        return f"{moment.strftime(COMMAND_TIME)}-{os.getpid()}"

    def record_applied(self, command: Command, outcome: str = "", number: int | None = None) -> None:
        """Record that a command has been applied; `number` is that of the trial which tries an added point."""
        self._write_command(replace(command, applied=time.time(), outcome=outcome, number=number))

    def remove_command(self, command: Command) -> None:
        self._command_file(command).unlink(missing_ok=True)

    def _write_command(self, command: Command) -> None:
        write_json(self._command_file(command), {"format": FORMAT, **asdict(command)})

    def _command_file(self, command: Command) -> Path:
        return self.path / "steering" / f"{command.name}.json"

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the lock of the sweep's driver; the lock is released when the process ends, however it ends."""
        with ExitStack() as lock:
            try:
                self.path.mkdir(parents=True, exist_ok=True)
                _enter_lock(lock, self.lock_file)
            except LockHeldError as owner:
                raise InputError(f"sweep {self.path.name} is being run by {owner}; wait, or stop it") from None
            except OSError as error:
                if is_full_disk(error):
                    raise
                problem = f"{self.lock_file} cannot be written and locked ({error.strerror})"
                raise InputError(f"{problem}; allow this user to write there") from error
            yield

    def is_locked(self) -> bool:
        """Return True if a driver runs this sweep."""
        try:
            with open(self.lock_file, opener=no_link) as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:  # no driver has ever locked it, or its file system has no locks
            return False
        return False

    @property
    def lock_file(self) -> Path:
        return self.path / "lock"


def _enter_lock(stack: ExitStack, file: Path) -> None:
    """Take the lock of a driver in a few attempts: `is_locked` in another process may hold it for a moment."""
    for _ in range(LOCK_ATTEMPTS - 1):
        with suppress(LockHeldError):
            stack.enter_context(exclusive_lock(file, wait=False))
            return
        time.sleep(LOCK_PAUSE)
    stack.enter_context(exclusive_lock(file, wait=False))


def _check_spaces(info: SweepInfo) -> None:
    for key, space in (("space", info.space), ("initial_space", info.initial_space)):
        with at_key(key):
            check_space(space)


def _read_objectives(rows: Any) -> tuple[Objective, ...]:
    objectives = []
    with at_key("objectives"):
        for fields in as_list(rows):
            objectives.append(Objective.recorded(**as_mapping(fields)))
        require(objectives, "must have at least 1 entry (none)")
        for objective in objectives:
            check_metric_name(objective.metric)
    return tuple(objectives)


def _read_trial(file: Path) -> TrialRecord:
    with _naming_damaged(file, RUN_AGAIN):
        document = _read_document(file)
        with at_key("results"):
            results = {}
            for split, result in as_mapping(document.get("results")).items():
                results[split] = _checked(SplitResult, result, split)
        record = _checked(TrialRecord, document | {"results": results})
        check_setting_values(record.params, "params")
        check_setting_values(record.config, "config")
        require(record.name == file.stem, f"is the record of {record.name}", "name")
        return record


def _read_command(file: Path) -> Command:
    with _naming_damaged(file, SEND_AGAIN):
        document = _read_document(file)
        command = _checked(Command, document)
        require(command.name == file.stem, f"is the command {command.name}", "name")
        with at_key("values"):
            check_plain(command.values)
        if command.kind == "budget":
            require(set(command.values) <= set(STEERED), f"are not of {', '.join(STEERED)}", "values")
            Search(**command.values)
        if command.kind == "stop":
            require(isinstance(command.values.get("trial"), str), "must have the name of a trial", "values")
        return command


def _read_document(file: Path) -> dict[str, Any]:
    """Return the document of a record without its format."""
    content = read_own(file, MAX_RECORD_BYTES)
    document = dict(as_mapping(_DECODER.decode(content.decode("utf-8"))))
    require("format" in document, "it has no format")
    version = document.pop("format")
    if version != FORMAT:
        raise _OtherVersionError(f"{file}: written by another version of fpp_sweep; use that one to read it")
    return document


class _OtherVersionError(InputError):
    """A record that is sound, and of another version of this package."""


@contextmanager
def _naming_damaged(file: Path, remedy: str) -> Iterator[None]:
    """Turn an error of the block, which reads a record, into an InputError that names the file and what to do."""
    try:
        yield
    except _OtherVersionError:
        raise
    except (FileNotFoundError, FileTooLargeError, NotAFileError, ValueError, TypeError, RecursionError) as error:
        reason = message_in_one_line(error)
        if isinstance(error, OSError) and error.strerror:
            reason = error.strerror  # without the path, which the message has already
        raise InputError(f"{file}: not readable as a record of a sweep ({reason}); {remedy}") from error
    except OSError as error:  # the file may be sound
        raise InputError(problem_of_system(error)) from error


def _not_json(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not a finite number")


def _interned(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object with one copy of each text in the process: records of a large sweep take half the memory."""
    interned = {}
    for key, value in pairs:
        if type(value) is str:
            value = sys.intern(value)
        interned[sys.intern(key)] = value
    return interned


_DECODER = json.JSONDecoder(parse_constant=_not_json, object_pairs_hook=_interned)


def _checked(kind: type[Record], fields: Any, key: str = "") -> Record:
    """Return a record with fields that are checked by their types."""
    with at_key(key):
        if not isinstance(fields, dict):  # the keys of JSON are text
            fields = as_mapping(fields)
        record = kind(**fields)
        check_fields(record)
        return record
