"""Reading images and drawing their views, in this process or ahead of it in worker processes."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import resource_tracker
from types import TracebackType

import torch
from torch import Tensor
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset

from fpp_sweep.core.datasets import BadImageError, Dataset
from fpp_sweep.core.images.device_views import Planned
from fpp_sweep.core.images.views import draw, normalised, plan, sample_rng
from fpp_sweep.core.models.clip import Preprocess
from fpp_sweep.spec.config import Auto, ViewConfig
from fpp_sweep.spec.errors import MachineError

Read = Tensor | Planned | str

DEAD = "DataLoader worker", "Pin memory thread"  # which torch's line begins with; the latter fetches for a GPU


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Reader(TorchDataset["Read"]):
    """Views of samples by index, or the reason why an image cannot be read; picklable, for worker processes.

    Views with AugMix are normalised float32; others are bytes, a quarter of that to hand over. Where they are drawn
    later, it gives decoded images and plans.
    """

    dataset: Dataset
    config: ViewConfig
    preprocess: Preprocess
    seed: int
    augmix: bool
    flip: bool
    draws: bool = True  # here, by Pillow

    @classmethod
    def of(cls, dataset: Dataset, config: ViewConfig, preprocess: Preprocess, seed: int) -> Reader:
        """A reader that has AugMix and mirror images on where the config, or else the dataset, says so."""
        augmix, flip = resolve(config, dataset)
        return cls(dataset=dataset, config=config, preprocess=preprocess, seed=seed, augmix=augmix, flip=flip)

    def __getitem__(self, index: int) -> Read:
        sample = self.dataset.ids[index]
        try:
            image = self.dataset.source.image(sample)
        except BadImageError as error:
            return str(error)
        rng = sample_rng(self.seed, self.dataset.name, self.dataset.split, sample)
        chosen = plan(image.size, self.config, augmix=self.augmix, flip=self.flip, rng=rng)
        if not self.draws:
            return Planned.of(image, chosen, self.preprocess.size)
        views = torch.from_numpy(draw(image, chosen, self.preprocess.size))
        return normalised(views, self.preprocess) if self.augmix else views


def resolve(config: ViewConfig, dataset: Dataset) -> tuple[bool, bool]:
    """Whether AugMix and mirror images are on; `auto` leaves it to the dataset."""
    return _switch(config.augmix, dataset.augmix), _switch(config.flip, dataset.flip)


def _switch(setting: Auto, default: bool) -> bool:
    return default if setting == "auto" else setting == "on"


def read(reader: Reader, indices: Iterable[int], *, workers: int, pin: bool) -> Iterator[Read]:
    """What the reader gives for these indices, in order; with workers, some indices are taken ahead of time."""
    loader = DataLoader(
        reader,
        batch_size=None,
        sampler=indices,
        num_workers=workers,
        multiprocessing_context="spawn" if workers else None,
        pin_memory=workers > 0 and pin,
        worker_init_fn=silence_lost_parent,
        generator=torch.Generator(),  # the default would draw a seed from the global stream
    )
    with ctrl_c_for_parent_only(workers):
        return iter(loader)


@contextmanager
def watched(views: Iterator[Read]) -> Iterator[None]:
    """A MachineError where a worker process that `read` has started dies during the block."""
    try:
        yield
    except (RuntimeError, ConnectionError, EOFError) as error:  # the last two where it died while it handed over
        reason = str(error).partition(". ")[0]
        told_by_it = reason.startswith("Caught ")  # what happened in it, and it lives
        if told_by_it or (isinstance(error, RuntimeError) and not reason.startswith(DEAD)):
            raise
        _shut_down(views)
        advice = "where memory ran out, start fewer with --set work.loaders=N"
        raise MachineError(f"a process that reads images has died ({reason}); {advice}") from error


def _shut_down(views: Iterator[Read]) -> None:
    """End the others; until that is done, torch's handler in the main thread raises again at each that ends."""
    if threading.current_thread() is not threading.main_thread():
        views._shutdown_workers()  # type: ignore[attr-defined]
        return
    handler = signal.getsignal(signal.SIGCHLD)
    with suppress(RuntimeError):
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    views._shutdown_workers()  # type: ignore[attr-defined]
    signal.signal(signal.SIGCHLD, handler)


def silence_lost_parent(worker: int) -> None:
    """In a worker process: no traceback when the parent process ends while the worker exchanges data with it."""
    print_traceback = sys.excepthook

    def excepthook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if not issubclass(kind, EOFError | ConnectionError):
            print_traceback(kind, error, trace)

    sys.excepthook = excepthook


@contextmanager
def ctrl_c_for_parent_only(workers: int) -> Iterator[None]:
    """Processes that start in this block ignore Ctrl-C; it is raised in this process when the block ends.

    A terminal sends Ctrl-C to every process of a command. The parent ends its workers; each of them would print a
    traceback if it reacted too.
    """
    in_main_thread = threading.current_thread() is threading.main_thread()
    if not workers or not in_main_thread or not hasattr(signal, "pthread_sigmask"):
        yield
        return
    resource_tracker.ensure_running()  # it unblocks the signal when it starts, which would be with the first worker
    received: list[int] = []
    # blocked in this thread only: the signal may reach another one, and Python then calls the handler in this one
    handler = signal.signal(signal.SIGINT, lambda number, frame: received.append(number))
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # inherited by child processes
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        signal.signal(signal.SIGINT, handler)
    if received:
        signal.raise_signal(signal.SIGINT)
