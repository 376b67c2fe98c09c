"""Reading images and rendering their views, in this process or ahead of it in worker processes."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import resource_tracker
from types import FrameType, TracebackType

import torch
from torch import Tensor
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset

from fpp_sweep.core.datasets import BadImageError, Dataset
from fpp_sweep.core.images.views import normalize, plan_views, render_with_pillow, sample_rng
from fpp_sweep.core.models.clip import Preprocess
from fpp_sweep.spec.config import Auto, ViewConfig
from fpp_sweep.spec.errors import MachineError
from fpp_sweep.spec.process import ignore_ends_of_children

# beginnings of torch's message when a process of its loader is dead; the second one's thread fetches for a GPU
DEAD_PROCESS = ("DataLoader worker", "Pin memory thread")


@dataclass(frozen=True, slots=True)
class UnreadableImage:
    """The reason why an image cannot be read."""

    reason: str


ReadResult = Tensor | UnreadableImage


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Reader(TorchDataset[ReadResult]):
    """Views of samples by index; picklable, for worker processes.

    Views with AugMix are normalised float32, others bytes, a quarter of that to hand over.
    """

    dataset: Dataset
    config: ViewConfig
    preprocess: Preprocess
    seed: int
    augmix: bool
    flip: bool

    @classmethod
    def of(cls, dataset: Dataset, config: ViewConfig, preprocess: Preprocess, seed: int) -> Reader:
        """Return a reader with AugMix and mirror images as the config, or else the dataset, says."""
        augmix, flip = resolve_switches(config, dataset)
        return cls(dataset=dataset, config=config, preprocess=preprocess, seed=seed, augmix=augmix, flip=flip)

    def __getitem__(self, index: int) -> ReadResult:
        sample_id = self.dataset.ids[index]
        try:
            image = self.dataset.source.image(sample_id)
        except BadImageError as error:
            return UnreadableImage(str(error))
        rng = sample_rng(self.seed, self.dataset.name, self.dataset.split, sample_id)
        plan = plan_views(image.size, self.config, augmix=self.augmix, flip=self.flip, rng=rng)
        views = torch.from_numpy(render_with_pillow(image, plan, self.preprocess.size))
        if self.augmix:
            return normalize(views, self.preprocess)
        return views


def resolve_switches(config: ViewConfig, dataset: Dataset) -> tuple[bool, bool]:
    """Return whether AugMix and mirror images are on; `auto` leaves the choice to the dataset."""
    return _is_on(config.augmix, dataset.augmix), _is_on(config.flip, dataset.flip)


def _is_on(setting: Auto, default: bool) -> bool:
    if setting == "auto":
        return default
    return setting == "on"


def read_views(reader: Reader, indices: Iterable[int], *, workers: int, pin: bool) -> Iterator[ReadResult]:
    """Return an iterator over what the reader gives for these indices, in order.

    With workers, some indices are taken from the iterable ahead of time.
    """
    context = None
    if workers:
        context = "spawn"
    loader = DataLoader(
        reader,
        batch_size=None,
        sampler=indices,
        num_workers=workers,
        multiprocessing_context=context,
        pin_memory=workers > 0 and pin,
        worker_init_fn=silence_lost_parent,
        generator=torch.Generator(),  # the default would draw a seed from the global stream
    )
    with ctrl_c_for_parent_only(workers):
        return iter(loader)


@contextmanager
def dead_process_as_machine_error(views: Iterator[ReadResult]) -> Iterator[None]:
    """Raise MachineError if a worker process of `read_views` dies during the block."""
    try:
        yield
    except (RuntimeError, ConnectionError, EOFError) as error:  # the last two: it died while it handed views over
        if not _means_dead_process(error):
            raise
        _shut_down(views)
        reason = str(error).partition(". ")[0]
        advice = "where memory ran out, start fewer with --set work.loaders=N"
        raise MachineError(f"a process that reads images has died ({reason}); {advice}") from error


def _means_dead_process(error: Exception) -> bool:
    message = str(error)
    if message.startswith("Caught "):  # torch's word for an error that a worker process raised; the process lives
        return False
    if isinstance(error, RuntimeError):
        return message.startswith(DEAD_PROCESS)
    return True


def _shut_down(views: Iterator[ReadResult]) -> None:
    """End the other processes; meanwhile the end of one raises nothing."""
    if threading.current_thread() is not threading.main_thread():
        views._shutdown_workers()  # type: ignore[attr-defined]
        return
    handler = signal.getsignal(signal.SIGCHLD)
    ignore_ends_of_children()
    views._shutdown_workers()  # type: ignore[attr-defined]
    signal.signal(signal.SIGCHLD, handler)


def silence_lost_parent(worker: int) -> None:
    """Print no traceback in a worker process whose parent ends while they exchange data."""
    print_traceback = sys.excepthook

    def excepthook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if not issubclass(kind, EOFError | ConnectionError):
            print_traceback(kind, error, trace)

    sys.excepthook = excepthook


@contextmanager
def ctrl_c_for_parent_only(workers: int) -> Iterator[None]:
    """Let processes that start in this block ignore Ctrl-C, and raise it in this process when the block ends.

    A terminal sends Ctrl-C to every process of a command. The parent ends its workers; each of them would print a
    traceback if it reacted too.
    """
    in_main_thread = threading.current_thread() is threading.main_thread()
    if not workers or not in_main_thread or not hasattr(signal, "pthread_sigmask"):
        yield
        return
    resource_tracker.ensure_running()  # the tracker unblocks the signal when it starts, so start it first
    received: list[int] = []

    def remember(number: int, frame: FrameType | None) -> None:
        received.append(number)

    # blocked in this thread only: the signal may reach another one, and Python then calls the handler in this one
    handler = signal.signal(signal.SIGINT, remember)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # inherited by child processes
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        signal.signal(signal.SIGINT, handler)
    if received:
        signal.raise_signal(signal.SIGINT)
