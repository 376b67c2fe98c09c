"""The folder `sweeps/<name>/`, the only record of a sweep.

    sweep.json              space, objectives, provenance and state of the sweep
    trials/<name>.json      one record for each trial and baseline, rewritten whole at every change
    study.journal           the Optuna study for dashboards, written at the end of a driver
    tasks/                  results of tasks by key, so that no trial computes a result again
    artifacts/<name>/       a trial's prompts, predictions, reliability diagrams and log
    commands.jsonl          commands of `steer`, a line each, which the driver answers in sweep.json
    logs/                   the log of each worker, by machine and process
    report/                 the front as table, picture and page; best configs
    lock                    held by the driver while it runs

The driver and its trials write here first, and `steer` its commands; only the driver writes sweep.json. MLflow is
brought up to date from here when it can be reached.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, replace
from datetime import UTC, datetime
from io import FileIO
from pathlib import Path
from typing import Any, Literal, NoReturn, Self, TypeVar

from fpp_sweep.records.records import Command, Question, SplitResult, SweepInfo, TrialRecord, WorkTotals, baseline_name
from fpp_sweep.space.objectives import Objective
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
from fpp_sweep.spec.messages import plural, printable
from fpp_sweep.spec.validation import as_list, as_mapping, at_key, checked_record, require

FORMAT = 8
RECORDS = "[!.]*.json"  # names of records; a file that is being written begins with a dot
MAX_LOG_BYTES = 2**14  # read from the end of a log
MAX_RECORD_BYTES = 2**25  # the record of a trial on ten datasets has 2^15 bytes
LOCK_ATTEMPTS = 5
LOCK_PAUSE = 0.05  # seconds between two attempts

RUN_AGAIN = "delete it; the trial runs again"
CORRECT_LINE = "correct the line, or move the file away"
BEGIN_AGAIN = "begin another sweep with --name, which computes no cached result again"

Record = TypeVar("Record", Command, Question, SplitResult, TrialRecord, SweepInfo, WorkTotals)
Parsed = TypeVar("Parsed")


class SweepFolder:
    """The folder of a sweep: any process may read the folder, the holder of its lock writes."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()  # trials read it from processes with other working folders
        if ".." in path.parts:
            self.path = path.resolve()  # so that the last part of the path is the sweep's name
        self.info_file = self.path / "sweep.json"
        self.study_file = self.path / "study.journal"
        self.commands_file = self.path / "commands.jsonl"
        self.lock_file = self.path / "lock"
        self.tasks = self.path / "tasks"
        self.report = self.path / "report"
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

    def info(self) -> SweepInfo:
        with _naming_damaged(self.info_file, BEGIN_AGAIN):
            document = _read_document(self.info_file)
            objectives = _read_objectives(document.get("objectives"))
            work = _checked(WorkTotals, document.get("work", {}), "work")
            earlier = [_checked(Question, fields) for fields in as_list(document.get("earlier", []))]
            info = _checked(SweepInfo, document | {"objectives": objectives, "work": work, "earlier": earlier})
            if info.reference is not None:
                problem = f"has {plural(len(info.reference), 'value')} for {plural(len(objectives), 'objective')}"
                require(len(info.reference) == len(objectives), problem, "reference")
            return info

    def write_info(self, info: SweepInfo) -> None:
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

    def _cached(self, file: Path, read: Callable[[Path], Parsed]) -> Parsed:
        """Return a record, which `read` parses once for each version of its file."""
        try:
            stamp = stamp_of(file)
        except OSError:
            return read(file)  # raises the error with the file's name
        record: Parsed
        if file in self._parsed:
            parsed_stamp, record = self._parsed[file]
            if parsed_stamp == stamp:
                return record
        record = read(file)
        self._parsed[file] = stamp, record
        return record

    def write_trial(self, record: TrialRecord) -> None:
        write_json(self.trial_file(record.name), {"format": FORMAT, **asdict(record)})

    def measured_tasks(self) -> set[str]:
        """Return the keys of the tasks that have a result here."""
        return {file.stem for file in self.tasks.glob("*/*.task")}

    def trials(self) -> list[TrialRecord]:
        """Return all records: baselines, then trials by number."""
        return [self._cached(file, _read_trial) for file in self.trial_files()]

    def trial_files(self) -> list[Path]:
        return files_in(self.path / "trials", RECORDS)

    def commands(self) -> list[Command]:
        """Return the commands of `steer`, oldest first."""
        if not self.commands_file.exists():
            return []
        return self._cached(self.commands_file, _read_commands)

    def send_command(self, kind: Literal["add", "stop", "set"], words: Sequence[str]) -> Command:
        """Write a command for the running driver, or for the next one."""
        command = Command(kind=kind, words=words, written=time.time())
        line = json.dumps({"format": FORMAT, **asdict(command)}) + "\n"
        descriptor = os.open(self.commands_file, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, 0o666)
        with open(descriptor, "ab", buffering=0) as file:
            file.write(line.encode())  # one write, so that lines of two processes do not mix
        return command

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


def _enter_lock(stack: ExitStack, file: Path) -> None:
    """Take the lock of a driver in a few attempts: `is_locked` in another process may hold it for a moment."""
    for _ in range(LOCK_ATTEMPTS - 1):
        with suppress(LockHeldError):
            stack.enter_context(exclusive_lock(file, wait=False))
            return
        time.sleep(LOCK_PAUSE)
    stack.enter_context(exclusive_lock(file, wait=False))


class SweepRecord:
    """The record of a sweep in its driver, which alone writes it."""

    def __init__(self, folder: SweepFolder, info: SweepInfo) -> None:
        """Take the record as it shall be; it need not be written yet."""
        self.folder = folder
        self.info = info

    def update(self, **changes: Any) -> None:
        """Change fields of the record, and write it."""
        self.info = replace(self.info, **changes)
        self.folder.write_info(self.info)


def _read_objectives(rows: Any) -> tuple[Objective, ...]:
    objectives = []
    with at_key("objectives"):
        for fields in as_list(rows):
            objectives.append(Objective(**as_mapping(fields)))
        require(objectives, "must have at least 1 entry (none)")
        for objective in objectives:
            parts = objective.metric.split("/")  # a metric, and a dataset such as in `ece/dtd`: names of files
            require(len(parts) <= 2 and not {"", ".", ".."} & set(parts), f"{objective.metric!r} is no metric")
    return tuple(objectives)


def _read_trial(file: Path) -> TrialRecord:
    with _naming_damaged(file, RUN_AGAIN):
        document = _read_document(file)
        with at_key("results"):
            results = {}
            for split, result in as_mapping(document.get("results")).items():
                results[split] = _checked(SplitResult, result, split)
        record = _checked(TrialRecord, document | {"results": results})
        require(record.name == file.stem, f"is the record of {record.name}", "name")
        return record


def _read_commands(file: Path) -> list[Command]:
    commands = []
    with _naming_damaged(file, CORRECT_LINE):
        content = read_own(file, MAX_RECORD_BYTES).decode("utf-8")
        for number, line in enumerate(content.splitlines(), 1):
            with at_key(f"line {number}"):
                commands.append(_checked(Command, _document_of(line, file)))
    return commands


def _read_document(file: Path) -> dict[str, Any]:
    """Return the document of a record without its format."""
    return _document_of(read_own(file, MAX_RECORD_BYTES).decode("utf-8"), file)


def _document_of(content: str, file: Path) -> dict[str, Any]:
    document = dict(as_mapping(_DECODER.decode(content)))
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


_DECODER = json.JSONDecoder(parse_constant=_not_json)


def _checked(kind: type[Record], fields: Any, key: str = "") -> Record:
    """Return a record with fields that are checked by their types."""
    with at_key(key):
        return checked_record(kind, fields)


def write_line(file: Path, text: str, details: str = "") -> None:
    """Append a line with the time, and the details below, such as a traceback; ignore an error of the disk."""
    lines = [f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} {printable(text)}", *map(printable, details.splitlines())]
    content = "\n".join(lines) + "\n"
    with suppress(OSError), _open_at_end(file) as log:
        log.write(content.encode())


def _open_at_end(file: Path) -> FileIO:
    """Open a log without a buffer, which is four times as fast for a line; make its folder if that is missing."""
    file.parent.mkdir(parents=True, exist_ok=True)
    return open(file, "ab", buffering=0, opener=no_link)
