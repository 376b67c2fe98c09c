"""Every reader of a file on nearly correct files: `python -m benchmarks.fuzz --inputs 1000000 --seed 0`.

A file of the corpus (tests/fuzz/corpus, written by the project's own writers) is changed in its structure or its bytes.
Its reader must return a value, or raise its documented exception with one printable line. It may run no code, write no
file and use a limited amount of memory. Every violation is printed, and its file is written to --keep.
"""

from __future__ import annotations

import argparse
import collections
import io
import json
import os
import random
import resource
import sys
import tempfile
import time
import traceback
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

from fpp_sweep.checks.cache_entries import read_entry
from fpp_sweep.core.datasets.custom import read_custom
from fpp_sweep.core.datasets.split_files import names_by_label, read_split_file, read_variant_list, read_variants
from fpp_sweep.core.images.chunks import Chunk, DamagedChunk
from fpp_sweep.core.models.checkpoints import read_checkpoint, read_tensors
from fpp_sweep.core.models.clip import Clip
from fpp_sweep.core.models.loading import load
from fpp_sweep.core.prompt import from_file
from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.reproduce.experiment_files import experiment_of
from fpp_sweep.reproduce.running import Reproduction
from fpp_sweep.reproduce.selection import Selection
from fpp_sweep.space.reading import load_space, read_config
from fpp_sweep.space.yamlfile import of_plain, parse
from fpp_sweep.spec.errors import MAX_MESSAGE, InputError
from fpp_sweep.tracking.desired import FrontDocument
from fpp_sweep.tracking.sync import mlflow_links
from fpp_sweep.tracking.sync_state import STATE_FILE
from fpp_sweep.trial.store import SEAL, TaskStore, _seal

CORPUS = Path(__file__).parent.parent / "tests" / "fuzz" / "corpus"
ROOM = 2**30  # bytes of address space that a reader may use for a file of some kB
KEY = "0" * 40
TRIAL = "trial-0000"  # the name in all records of trials of the corpus; another name is refused


@dataclass(frozen=True)
class Target:
    """A reader, the kind of its files, and its relative frequency."""

    read: Callable[[Path], object]
    kind: str
    file: str  # the path that the reader expects, below a private folder
    share: int
    raises: type[Exception] = InputError


@cache
def model() -> Clip:
    return load("tiny")


def _checkpoint(path: Path) -> None:
    read_tensors(path)
    read_checkpoint(path)


def _split(path: Path) -> None:
    names_by_label(path, read_split_file(path))


def _task(path: Path) -> None:
    TaskStore(path.parent.parent).get(KEY)


def _trial(path: Path) -> None:
    SweepFolder(path.parent.parent).trial(TRIAL)


def _experiment(path: Path) -> None:
    try:
        plain = json.loads(path.read_text())["experiment"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise InputError(error) from None
    experiment_of(of_plain(plain, str(path)), "main")


def _sync_state(path: Path) -> None:
    mlflow_links(SweepFolder(path.parent), "http://host:5000")


def _front(path: Path) -> None:
    FrontDocument.read(SweepFolder(path.parent.parent))


def _reproduction(path: Path) -> None:
    Reproduction(path.parent, Selection()).identity()


TARGETS = {
    "space": Target(load_space, "yaml", "space.yaml", 20),
    "config": Target(read_config, "yaml", "config.yaml", 20),
    "datasets": Target(read_custom, "yaml", "mine.yaml", 20),
    "split": Target(_split, "json", "split.json", 40),
    "variants": Target(read_variants, "text", "variants.txt", 10),
    "aircraft": Target(lambda path: read_variant_list(path, {"707-320": 0, "F/A-18": 1}), "text", "images.txt", 10),
    "checkpoint": Target(_checkpoint, "torch", "model.pt", 2),
    "safetensors": Target(_checkpoint, "safetensors", "model.safetensors", 10),
    "prompt": Target(lambda path: from_file(model(), path), "safetensors", "prompt.safetensors", 10),
    "coop": Target(lambda path: from_file(model(), path), "torch", "model.pth", 2),
    "task": Target(_task, "bytes", f"00/{KEY}.task", 10),
    "sealed": Target(_task, "task", f"00/{KEY}.task", 10),
    "chunk": Target(Chunk.read, "safetensors", "00000-0.safetensors", 10, DamagedChunk),
    "manifest": Target(lambda path: read_entry(path.parent).cells(0.0), "json", "manifest.json", 10),
    "sweep": Target(lambda path: SweepFolder(path.parent).info(), "json", "sweep.json", 20),
    "trial": Target(_trial, "json", f"trials/{TRIAL}.json", 20),
    "mlflow_sync": Target(_sync_state, "json", STATE_FILE, 20),
    "front": Target(_front, "json", "report/front.json", 10),
    "reproduction": Target(_reproduction, "json", "reproduction.json", 10),
    "experiment": Target(_experiment, "json", "table.json", 10),
}

ODD: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 0.5, -0.0, 1e308, float("nan"), float("inf"), 10**30, 2**63, "", " ", "a", "0"),
    *("1e999", ".nan", "x0.1", "x" * 5000, "\x1b[2J\n\u202e", "\x00", "../../a", "/", "\ud800", "none", "fpp", "ctx"),
    *([], {}, [[]], {"": None}, ["a", "a"], {"a": {"b": {"c": []}}}, [0, 10**12], [10**12], [-1], "F64", "F16"),
)
# bytes that are put into files; their order decides which of them a seed draws
PIECES: tuple[bytes, ...] = (
    *(b"\x00", b"\xff", b"\n", b"\r\n", b"{", b"[", b'"', b"- ", b": ", b"&a ", b"*a", b"!!python/object:os.system "),
    *(b"9" * 400, b"9" * 5000, b"[" * 3000, b"{a: " * 500, b"NaN", b"-1", b"1e400", b"\xf0\x9f\x92\xa9", b"<<: "),
    *(b"cos\nsystem\n(S'true'\ntR.", b"cbuiltins\nexec\n", b"\x80\x02", b"R", b"b", b"u", b"\x81", b"Q"),
    b"\xed\xa0\x80",
)


def mutated(draw: random.Random, kind: str, data: bytes, others: Sequence[bytes]) -> bytes:
    """Return the file with some changes, of its structure if it has one and otherwise of its bytes."""
    change = STRUCTURED.get(kind)
    if change is not None and draw.random() < 0.7:
        try:
            return change(draw, data)
        except (ValueError, RecursionError, KeyError, zipfile.BadZipFile, InputError, OverflowError):
            pass  # the file of the corpus is already damaged
    return bytewise(draw, data, others)


def bytewise(draw: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    for _ in range(draw.choice((1, 1, 1, 2, 4, 16))):
        at = draw.randrange(len(data) + 1)
        to = min(len(data), at + draw.choice((1, 1, 2, 8, 64, 512)))
        match draw.randrange(7):
            case 0 if at < len(data):
                data = data[:at] + bytes([data[at] ^ 1 << draw.randrange(8)]) + data[at + 1 :]
            case 1:
                data = data[:at]
            case 2:
                data = data[:at] + data[to:]
            case 3:
                data = data[:at] + data[at:to] * draw.choice((2, 3, 50)) + data[to:]
            case 4:
                other = draw.choice(others)
                cut = draw.randrange(len(other) + 1)
                data = data[:at] + other[cut : cut + draw.choice((8, 64, 4096))] + data[at:]
            case 5:
                data = data[:at] + draw.choice(PIECES) + data[draw.choice((at, to)) :]
            case _:
                data = data[:at] + draw.randbytes(draw.choice((1, 4, 8))) + data[to:]
    return data[: 2**16]


def restructured(draw: random.Random, value: Any) -> Any:
    """Return a document with one change at a random position."""
    if isinstance(value, dict | list) and value and draw.random() < 0.8:
        keys: list[Any] = list(value) if isinstance(value, dict) else list(range(len(value)))
        key = draw.choice(keys)
        new: Any = dict(value) if isinstance(value, dict) else list(value)
        match draw.randrange(10):
            case 0:
                del new[key]
            case 1 if isinstance(new, dict):
                new[str(draw.choice(ODD))] = new.pop(key)
            case 1 | 2 if isinstance(new, list):
                new.extend([new[key]] * draw.choice((1, 2, 100)))
            case 3:
                new[key] = new[draw.choice(keys)]
            case _:
                new[key] = restructured(draw, new[key])
        return new
    match draw.randrange(6):
        case 0:
            return [value]
        case 1:
            return {"a": value}
        case 2 if isinstance(value, int | float):
            return value * draw.choice((-1, 1000, 10**20)) if value < 1e200 else 0
        case 3 if isinstance(value, str) and value:
            at = draw.randrange(len(value))
            return value[:at] + draw.choice(("\x1b", "\n", "/", "..", "é", "\ud800", "0", ".")) + value[at + 1 :]
    return draw.choice(ODD)


def _document(draw: random.Random, value: Any) -> Any:
    for _ in range(draw.choice((1, 1, 2, 3))):
        value = restructured(draw, value)
    return value


def _json(draw: random.Random, data: bytes) -> bytes:
    return json.dumps(_document(draw, json.loads(data))).encode()


def _yaml(draw: random.Random, data: bytes) -> bytes:
    return json.dumps(_document(draw, parse(data.decode(), "x").plain()), ensure_ascii=draw.random() < 0.5).encode(
        errors="surrogatepass"
    )


def _safetensors(draw: random.Random, data: bytes) -> bytes:
    size = int.from_bytes(data[:8], "little")
    header = _json(draw, data[8 : 8 + size])
    return len(header).to_bytes(8, "little") + header + data[8 + size :]


def _zipped(draw: random.Random, data: bytes) -> bytes:
    """Return a valid archive with one changed member."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    pickled = [name for name in members if name.endswith(".pkl")]
    name = draw.choice(pickled if pickled and draw.random() < 0.8 else list(members))
    members[name] = bytewise(draw, members[name], list(members.values()))
    if draw.random() < 0.1:
        members[draw.choice(list(members))] = members.pop(name)
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return buffer.getvalue()


def _sealed_data(draw: random.Random, data: bytes) -> bytes:
    return data[:SEAL] + _zipped(draw, data[SEAL:])


STRUCTURED: dict[str, Callable[[random.Random, bytes], bytes]] = {
    "json": _json,
    "yaml": _yaml,
    "safetensors": _safetensors,
    "torch": _zipped,
    "task": _sealed_data,
}

FORBIDDEN = (
    *("os.system", "os.exec", "os.posix_spawn", "os.fork", "os.kill", "os.putenv", "subprocess.Popen"),
    *("os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.symlink", "os.chmod", "shutil.rmtree", "socket.connect"),
)
_seen: list[str] | None = None  # forbidden operations of the running reader; None while no reader runs


def _opens_to_write(flags: object) -> bool:
    return isinstance(flags, int) and bool(flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))


def _watch(event: str, arguments: tuple[Any, ...]) -> None:
    if _seen is not None:
        if event in FORBIDDEN or (event == "open" and _opens_to_write(arguments[2])):
            _seen.append(f"{event} {arguments[:1]}")


watching = cache(partial(sys.addaudithook, _watch))  # installed once, because a hook cannot be removed


@contextmanager
def guarded() -> Iterator[list[str]]:
    """Yield the list of forbidden operations within the block, and limit the block's memory."""
    global _seen
    watching()
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (taken + ROOM, hard))
    seen: list[str] = []
    _seen = seen
    try:
        yield seen
    finally:
        _seen = None
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def problem_of(target: Target, folder: Path, data: bytes) -> str | None:
    """Return the violation of a reader on a file with these bytes, or None."""
    path = folder / target.file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    message = ""
    with guarded() as seen:
        try:
            target.read(path)
        except target.raises as error:
            message = str(error)
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            where = traceback.extract_tb(error.__traceback__)[-1]
            return f"{type(error).__name__}: {str(error)[:200]} ({Path(where.filename).name}:{where.lineno})"
    if seen:
        return f"did {seen[0]}"
    if target.raises is InputError and (not message.isprintable() or len(message) > MAX_MESSAGE + 10):
        return f"says {message[:200]!r}, {len(message)} characters"
    return None


@cache
def corpus(name: str) -> tuple[bytes, ...]:
    return tuple(path.read_bytes() for path in sorted((CORPUS / name).iterdir()))


def example(draw: random.Random, name: str) -> bytes:
    """Return a changed file for a target."""
    files, kind = corpus(name), TARGETS[name].kind
    data = mutated(draw, kind, draw.choice(files), files)
    return _seal(KEY, data[SEAL:]) + data[SEAL:] if kind == "task" else data


def main(argv: Sequence[str] | None = None) -> None:
    args = arguments(argv)
    draw = random.Random(args.seed)
    names = args.targets or list(TARGETS)
    counts: collections.Counter[str] = collections.Counter()
    seconds = dict.fromkeys(names, 0.0)
    faults: set[tuple[str, str]] = set()  # target, and line of code
    model()  # loads libraries now, because loading sets environment variables
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        for name in draw.choices(names, [TARGETS[name].share for name in names], k=args.inputs):
            data = example(draw, name)
            start = time.monotonic()
            problem = problem_of(TARGETS[name], Path(folder) / name, data)
            seconds[name] += time.monotonic() - start
            counts[name] += 1
            if problem is None:
                continue
            fault = (name, problem.rpartition("(")[2])
            if fault not in faults:  # else another input has shown it
                faults.add(fault)
                print(f"{name}: {problem}", flush=True)
                if args.keep:
                    args.keep.mkdir(parents=True, exist_ok=True)
                    (args.keep / f"{name}-{len(faults):03d}").write_bytes(data)
    taken = time.monotonic() - began
    for name in names:
        print(f"{name:<12} {counts[name]:>8} inputs {1e3 * seconds[name] / max(1, counts[name]):>7.2f} ms each")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
    speed = f"{args.inputs} inputs in {taken:.0f} s, {args.inputs / taken:.0f}/s"
    print(f"{speed}, {len(faults)} faults, peak {peak:.0f} MiB")
    if faults:
        raise SystemExit(1)


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    options = argparse.ArgumentParser(prog="python -m benchmarks.fuzz", description=__doc__)
    options.add_argument("--inputs", type=int, default=10_000)
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--targets", nargs="+", choices=TARGETS)
    options.add_argument("--keep", type=Path, help="a folder for the files that break something")
    return options.parse_args(argv)


if __name__ == "__main__":
    main()
