"""Reading images and rendering their views, in this process or ahead of it in processes of their own."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from types import TracebackType

import torch
from torch import Tensor
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset

from fpp_sweep.core.datasets import BadImageError, Dataset
from fpp_sweep.core.datasets.dataset import ImageSource
from fpp_sweep.core.images.views import normalize, plan_views, render_with_pillow, sample_rng
from fpp_sweep.core.models.clip import Preprocess
from fpp_sweep.spec.config import Auto, ViewConfig
from fpp_sweep.spec.errors import InputError, MachineError, first_line


@dataclass(frozen=True, slots=True)
class UnreadableImage:
    """The reason why an image cannot be read."""

    reason: str


ReadResult = Tensor | UnreadableImage  # an error of another process would lose its type and its one line


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """Renders the views of a dataset's samples; small enough to be sent to another process with each sample.

    Views with AugMix are normalised float32, others bytes, a quarter of that to hand over.
    """

    source: ImageSource
    dataset: str
    split: str
    config: ViewConfig
    preprocess: Preprocess
    seed: int
    augmix: bool
    flip: bool

    @classmethod
    def of(cls, dataset: Dataset, config: ViewConfig, preprocess: Preprocess, seed: int) -> Reader:
        """Return a reader with AugMix and mirror images as the config, or else the dataset, says."""
        augmix, flip = resolve_switches(config, dataset)
        return cls(
            source=dataset.source,
            dataset=dataset.name,
            split=dataset.split,
            config=config,
            preprocess=preprocess,
            seed=seed,
            augmix=augmix,
            flip=flip,
        )

    def __call__(self, sample_id: str) -> ReadResult:
        try:
            image = self.source.image(sample_id)
        except BadImageError as error:
            return UnreadableImage(str(error))
        rng = sample_rng(self.seed, self.dataset, self.split, sample_id)
        plan = plan_views(image.size, self.config, augmix=self.augmix, flip=self.flip, rng=rng)
        views = torch.from_numpy(render_with_pillow(image, plan, self.preprocess))
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


Request = tuple[Reader, str]  # with a sample id


class _AnyImages(TorchDataset[ReadResult]):
    """The results of requests, whatever their dataset."""

    def __getitem__(self, request: Request) -> ReadResult:
        reader, sample_id = request
        return reader(sample_id)


class _Requests:
    """The requests of the current run, which a loader asks for each time that it begins anew."""

    def __init__(self) -> None:
        self.current: Iterable[Request] = ()

    def __iter__(self) -> Iterator[Request]:
        return iter(self.current)


class ImageLoader:
    """Reads images in some processes, which start with the first run and serve all later ones; with 0, in this one."""

    def __init__(self, processes: int, *, pin: bool) -> None:
        """Prepare a loader; with `pin`, results come in memory that a GPU can fetch from."""
        self._processes = processes
        self._pin = pin
        self._requests = _Requests()
        self._loader: DataLoader[ReadResult] | None = None

    def read(self, requests: Iterable[Request]) -> Iterator[Tensor]:
        """Yield the result of each request, in order; with processes, requests are taken ahead of time.

        Raise InputError for an image that cannot be read, and MachineError if a process dies: the next run starts
        others.
        """
        self._requests.current = requests
        if self._loader is None:
            self._loader = self._make_loader()
        try:
            for result in _begin(self._loader):
                if isinstance(result, UnreadableImage):
                    raise InputError(
                        f"{result.reason}; replace or remove the image (doctor --verify opens all images of a dataset)"
                    )
                yield result
        except (RuntimeError, ConnectionError, EOFError) as error:  # the last two: it died while it handed views over
            self._loader = None
            advice = "where memory ran out, start fewer with --set work.loaders=N"
            raise MachineError(f"a process that reads images has failed ({first_line(error)}); {advice}") from error

    def _make_loader(self) -> DataLoader[ReadResult]:
        has_processes = self._processes > 0
        return DataLoader(
            _AnyImages(),
            batch_size=None,
            sampler=self._requests,
            num_workers=self._processes,
            multiprocessing_context="spawn" if has_processes else None,
            persistent_workers=has_processes,
            pin_memory=has_processes and self._pin,
            worker_init_fn=_leave_ctrl_c_to_parent,
            generator=torch.Generator(),  # the default would draw a seed from the global stream
        )


def _leave_ctrl_c_to_parent(_: int) -> None:
    """Print no traceback in a process when Ctrl-C, which a terminal sends to all processes, ends its parent."""
    print_traceback = sys.excepthook

    def excepthook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if not issubclass(kind, EOFError | ConnectionError):
            print_traceback(kind, error, trace)

    sys.excepthook = excepthook
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _begin(loader: DataLoader[ReadResult]) -> Iterator[ReadResult]:
    """Begin a run of a loader; its processes start with the first.

    Torch would raise an error at any line of the main thread when a process ends, which would hide an interrupt. It
    notices a dead process within 5 seconds without that, too.
    """
    handler = signal.getsignal(signal.SIGCHLD)
    results = iter(loader)
    if signal.getsignal(signal.SIGCHLD) is not handler:  # torch sets its handler in the main thread only
        signal.signal(signal.SIGCHLD, handler or signal.SIG_DFL)
    return results
