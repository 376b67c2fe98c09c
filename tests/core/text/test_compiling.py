"""The engine with torch.compile: results equal the eager ones, and compilations are few."""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from torch._dynamo.utils import counters
from torch._inductor.exc import InductorError

from fpp_sweep.core.compute.compiling import EAGER_CALLS, MAX_SHAPES, Compiler, eagerly
from fpp_sweep.core.compute.memory import run_in_batches
from fpp_sweep.core.compute.precision import computing
from fpp_sweep.core.fpp import draw_noise, draw_start, pretrain
from fpp_sweep.core.images.features import FeatureCache
from fpp_sweep.core.methods import TextModel
from fpp_sweep.core.methods.gradients import ByJacobian, ByPullback
from fpp_sweep.core.methods.penalties import dispersion
from fpp_sweep.core.methods.tpt import Tpt, TptState
from fpp_sweep.core.text.classes import ClassTexts
from fpp_sweep.spec.config import AdaptConfig, FppConfig, ViewConfig
from fpp_sweep.spec.errors import InputError
from fpp_sweep.spec.messages import warn_once
from fpp_sweep.spec.specs import WorkerSpec
from fpp_sweep.trial.worker import Worker
from tests.kit.compiling import break_torch_compile
from tests.kit.datasets import painted_dataset
from tests.kit.models import WordTokenizer, small_vit
from tests.kit.texts import CLASSES, twins

MISSING = shutil.which(os.environ.get("CXX", "g++")) is None
CPU = pytest.param(
    "cpu", marks=[pytest.mark.slow, pytest.mark.nightly, pytest.mark.skipif(MISSING, reason="no C++ compiler")]
)
DEVICES = pytest.mark.parametrize("device", [CPU, pytest.param("cuda", marks=pytest.mark.gpu)])

BATCH = 4


@pytest.fixture(autouse=True)
def _fresh_compiler():
    yield
    torch.compiler.reset()
    counters.clear()


def compilations():
    """Return the number of compiled graphs; fail if a function was not compiled as a whole."""
    assert not counters["graph_break"]
    return counters["stats"]["unique_graphs"]


def eager_and_compiled(device):
    """Return eager and compiled class texts, the context and some views."""
    pair = twins()
    tower = pair.texts.tower.to(device)
    texts = ClassTexts.of_names(tower, WordTokenizer(), CLASSES)
    views = pair.views(BATCH * (EAGER_CALLS + 4), 8).to(device)
    compiled = replace(texts, tower=tower.compiled())
    counters.clear()
    return texts, compiled, pair.context.to(device), views


@DEVICES
def test_compiled_features_equal_eager_features(device):
    texts, compiled, context, _ = eager_and_compiled(device)
    contexts = context + torch.randn(BATCH, *context.shape, generator=torch.Generator().manual_seed(0)).to(device) / 10
    model = TextModel(texts=compiled, logit_scale=100.0)
    with torch.no_grad():
        for _ in range(EAGER_CALLS + 1):
            actual = model.features(contexts)
        assert compilations() == 1
        torch.testing.assert_close(actual, texts.features(contexts), atol=1e-5, rtol=0)


@DEVICES
def test_results_survive_the_next_run_of_the_same_graph(device):
    texts, compiled, context, _ = eager_and_compiled(device)
    with torch.no_grad():
        eager_pullback, compiled_pullback = ByPullback(texts, context), ByPullback(compiled, context)
        shape = (2 * BATCH, *eager_pullback.features.shape)
        gradients = torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(device)
        compiled_pullback._batch_size = BATCH
        for _ in range(EAGER_CALLS):
            actual = compiled_pullback.backward(gradients)
        assert compilations() == 1
        torch.testing.assert_close(actual, eager_pullback.backward(gradients), atol=1e-5, rtol=1e-5)


@DEVICES
@pytest.mark.parametrize(("form", "steps"), [(ByPullback, 1), (ByJacobian, 2)])
def test_compiled_adaptation_equals_eager_adaptation_and_other_batch_sizes_are_not_compiled(form, steps, device):
    texts, compiled, context, views = eager_and_compiled(device)
    method = Tpt(adapt=AdaptConfig(steps=steps), penalty=dispersion, weight=1.0)
    batches = [*views.split(BATCH), views[:1], views[:2], views[:3], views[:BATCH]]

    def probabilities(texts):
        model = TextModel(texts=texts, logit_scale=100.0)
        with torch.no_grad():
            first = form(texts, context)
        start = TptState(context, first, 0.0)
        return torch.cat([method.predict(model, start, batch)[0].softmax(-1) for batch in batches])

    expected = probabilities(texts)
    assert not compilations()
    torch.testing.assert_close(probabilities(compiled), expected, atol=1e-4, rtol=0)
    # one graph each for the prediction, for the backward pass, and for the backward pass of a second step
    assert compilations() == 1 + (form is ByPullback) + (steps > 1)


@DEVICES
@pytest.mark.parametrize("settings", [{}, {"detach": "none"}], ids=str)
def test_fifty_compiled_steps_of_pretraining_equal_eager_steps(settings, device):
    texts, compiled, context, _ = eager_and_compiled(device)
    config = FppConfig(steps=50, draws=2, **settings)

    def pretrained(texts, weight):
        generator = torch.Generator().manual_seed(0)
        start = draw_start(context, config, generator)
        noise = draw_noise(texts, len(context), config, generator)
        return pretrain(texts, context, config, flatness_weight=weight, start=start, noise=noise)

    for weight in (1.7, 2.5):  # trials of a sweep have different weights, which must not compile again
        actual, expected = pretrained(compiled, weight), pretrained(texts, weight)
        torch.testing.assert_close(actual.losses, expected.losses, atol=1e-5, rtol=1e-5)
        with torch.no_grad():
            features = texts.features(torch.stack([actual.context, expected.context]))
        torch.testing.assert_close(*features, atol=1e-5, rtol=0)
    assert compilations() == 1


@DEVICES
def test_towers_with_and_without_deep_prompts_are_compiled_separately(device):
    texts, compiled, context, _ = eager_and_compiled(device)
    deep = (torch.randn(context.shape, generator=torch.Generator().manual_seed(0)).to(device),)
    deep_texts = replace(texts, tower=texts.tower.with_deep(deep))
    deep_compiled = replace(compiled, tower=compiled.tower.with_deep(deep))
    contexts, gradients = context.expand(BATCH, -1, -1), torch.randn(BATCH, len(CLASSES), 16, device=device)
    with torch.no_grad():
        for eager, fast in [(texts, compiled), (deep_texts, deep_compiled)]:
            model, pullback = TextModel(texts=fast, logit_scale=100.0), ByPullback(fast, context)
            for _ in range(EAGER_CALLS + 2):
                features, actual = model.features(contexts), pullback.backward(gradients)
            torch.testing.assert_close(features, eager.features(contexts), atol=1e-5, rtol=0)
            expected = ByPullback(eager, context).backward(gradients)
            torch.testing.assert_close(actual, expected, atol=1e-5, rtol=1e-5)
    assert compilations() == 4


@DEVICES
def test_noise_per_class_is_not_compiled(device):
    _, compiled, context, _ = eager_and_compiled(device)
    config = FppConfig(steps=EAGER_CALLS + 2, draws=2, noise_shared=False)
    noise = draw_noise(compiled, len(context), config, torch.Generator().manual_seed(0))
    pretrain(compiled, context, config, flatness_weight=1.7, start=context, noise=noise)
    assert not compilations()


@DEVICES
def test_no_further_shape_is_compiled_after_torchs_limit_of_shapes(device):
    compiler = Compiler(torch.device(device), frozen=[], constant_types=())
    counters.clear()
    for size in range(1, MAX_SHAPES + 5):
        for _ in range(EAGER_CALLS + 1):
            rows = torch.arange(size, device=device)
            assert compiler(doubled, rows).tolist() == [2 * row for row in range(size)]
    assert compilations() == MAX_SHAPES


@DEVICES
def test_shapes_are_counted_separately_for_each_precision_as_in_torch(device, monkeypatch):
    monkeypatch.setattr("fpp_sweep.core.compute.precision.require_precision_support", lambda *arguments: None)
    compiler = Compiler(torch.device(device), frozen=[], constant_types=(), eager_calls=0)
    counters.clear()
    for precision in ("float32", "tf32"):
        with computing(precision, torch.device(device)):
            for size in range(1, MAX_SHAPES):
                rows = torch.arange(size, device=device)
                assert compiler(doubled, rows).tolist() == [2 * row for row in range(size)]
    assert compilations() == MAX_SHAPES


def doubled(rows):
    return rows * 2


def untraceable(rows):
    if rows.sum() > 0:  # torch cannot trace a branch that depends on a tensor's values
        return rows * 2
    return rows


def test_a_second_compiler_has_as_many_shapes_as_the_first(monkeypatch):
    """Torch itself traces and counts; its simplest backend runs what it has traced."""
    torch_compile = torch.compile
    monkeypatch.setattr(
        torch, "compile", lambda function, **_: torch_compile(function, backend="eager", dynamic=False, fullgraph=True)
    )
    for _ in range(2):
        compiler = Compiler(torch.device("cpu"), frozen=[], constant_types=(), eager_calls=0)
        counters.clear()
        for rows in range(MAX_SHAPES):
            assert compiler(doubled, torch.ones(2 + rows)).sum() == 2 * (2 + rows)
        assert not compiler.failures
        assert compilations() == MAX_SHAPES


@DEVICES
def test_a_function_that_torch_cannot_compile_runs_eagerly_and_the_log_says_so_once(device, caplog):
    compiler = Compiler(torch.device(device), frozen=[], constant_types=(), eager_calls=1)
    warn_once.cache_clear()
    rows = torch.arange(3, device=device)
    for _ in range(4):
        assert compiler(untraceable, rows).tolist() == [0, 2, 4]
        assert compiler(doubled, rows).tolist() == [0, 2, 4]
    assert list(compiler._compiled) == [untraceable, doubled]
    (line,) = [record.getMessage() for record in caplog.records if record.name.startswith("fpp_sweep")]
    assert line.startswith("work.compile: torch.compile fails on untraceable: ")
    assert line.endswith("; it runs uncompiled from now on")
    assert list(compiler.failures) == [untraceable]


def test_after_a_failed_compilation_a_function_runs_eagerly(monkeypatch, caplog):
    failed = break_torch_compile(monkeypatch, "doubled", RuntimeError("no Triton\nand a trace"))
    warn_once.cache_clear()
    compiler = Compiler(torch.device("cpu"), frozen=[], constant_types=(), eager_calls=0)
    for _ in range(2):
        assert compiler(doubled, torch.arange(3)).tolist() == [0, 2, 4]
    assert failed == [doubled]  # its second call is no longer a compiled one
    (line,) = [record.getMessage() for record in caplog.records]
    assert line == "work.compile: torch.compile fails on doubled: no Triton; it runs uncompiled from now on"


@pytest.fixture
def torchs_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    return tmp_path


def test_a_library_in_torchs_cache_that_cannot_be_loaded_is_built_anew(torchs_cache, monkeypatch):
    """The stand-in for torch.compile loads a library, and builds it first if it is missing."""
    library = torchs_cache / "half.so"
    library.write_bytes(b"")
    loads = []

    def load_and_call(function):
        def call(*arguments):
            loads.append(library.exists())
            if library.exists() and not library.read_bytes():
                raise InductorError(ImportError(f"{library}: file too short", path=str(library)), None)
            library.write_bytes(b"whole")
            return function(*arguments)

        return call

    monkeypatch.setattr(torch, "compile", lambda function, **_: load_and_call(function))
    compiler = Compiler(torch.device("cpu"), frozen=[], constant_types=(), eager_calls=0)
    assert compiler(doubled, torch.arange(3)).tolist() == [0, 2, 4]
    assert loads == [True, False, True]
    assert not compiler.failures


@pytest.mark.parametrize("is_in_cache", [True, False])
def test_a_library_that_stays_damaged_is_removed_once_and_only_from_torchs_cache(
    torchs_cache, tmp_path_factory, monkeypatch, is_in_cache
):
    folder = torchs_cache if is_in_cache else tmp_path_factory.mktemp("elsewhere")
    library = folder / "half.so"
    library.write_bytes(b"")
    break_torch_compile(
        monkeypatch, "doubled", InductorError(ImportError(f"{library}: file too short", path=str(library)), None)
    )
    compiler = Compiler(torch.device("cpu"), frozen=[], constant_types=(), eager_calls=0)
    assert compiler(doubled, torch.arange(3)).tolist() == [0, 2, 4]
    assert list(compiler.failures) == [doubled]
    assert library.exists() != is_in_cache


COMPILE = """
import torch
from fpp_sweep.core.compute.compiling import Compiler

def shifted(rows):
    return rows.sin() + 1

compiler = Compiler(torch.device("cpu"), frozen=[], constant_types=(), eager_calls=0)
assert compiler(shifted, torch.zeros(3)).tolist() == [1, 1, 1]
assert not compiler.failures, compiler.failures
"""


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.skipif(MISSING, reason="no C++ compiler")
def test_torch_compiles_again_after_its_libraries_were_cut_off(torchs_cache):
    subprocess.run([sys.executable, "-c", COMPILE], check=True)
    libraries = list(torchs_cache.rglob("*.so"))
    assert libraries
    for library in libraries:
        os.truncate(library, 0)
    subprocess.run([sys.executable, "-c", COMPILE], check=True)


def test_a_lack_of_memory_in_compiled_code_is_raised_and_does_not_end_compilation(monkeypatch):
    break_torch_compile(monkeypatch, "doubled", torch.OutOfMemoryError("CUDA out of memory"))
    compiler = Compiler(torch.device("cpu"), frozen=[], constant_types=(), eager_calls=0)
    with pytest.raises(torch.OutOfMemoryError):
        compiler(doubled, torch.arange(3))
    assert not compiler.failures


@pytest.mark.parametrize(
    "error", [torch.OutOfMemoryError("CUDA out of memory"), RuntimeError("CUDA error: uncorrectable ECC error")]
)
def test_a_full_or_broken_device_is_not_taken_for_one_without_torch_compile(monkeypatch, error):
    from_compiler = InductorError(error, None)
    for raised in (error, from_compiler):
        break_torch_compile(monkeypatch, "neg", raised)
        with pytest.raises(type(error)) as caught:
            Compiler(torch.device("cpu"), frozen=[], constant_types=())
        assert caught.value is error


def test_torch_without_a_compiler_is_wrong_input(monkeypatch):
    break_torch_compile(monkeypatch, "neg", InductorError(RuntimeError("no C++ compiler\nand a trace"), None))
    expected = "^work.compile: torch.compile cannot be used on cpu: no C\\+\\+ compiler$"
    with pytest.raises(InputError, match=expected):
        Compiler(torch.device("cpu"), frozen=[], constant_types=())


@DEVICES
def test_the_image_tower_is_not_compiled(device, tmp_path):
    clip = small_vit()
    compiled = replace(clip, visual=clip.visual.to(device), text=clip.text.to(device)).compiled()
    counters.clear()
    cache = FeatureCache(tmp_path, exact=True)
    features = cache.features(compiled, painted_dataset(70), ViewConfig(count=3), 0)
    assert features.of(features.sample_indices).shape[:2] == (70, 3)
    assert not compilations()


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.skipif(MISSING, reason="no C++ compiler")
def test_out_of_memory_in_compiled_code_halves_the_batch():
    compiler = Compiler(torch.device("cpu"), frozen=[], constant_types=())
    counters.clear()
    for _ in range(EAGER_CALLS + 2):
        actual = run_in_batches(lambda part: compiler(too_large_for_two_rows, part), torch.arange(2), 2)
        assert actual.shape == (2, 0)
    assert compilations() == 2


def too_large_for_two_rows(rows):
    return torch.zeros(len(rows), 1 << 50 if len(rows) > 1 else 0)


def test_towers_are_eager_by_default():
    assert twins().texts.tower.run is eagerly


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.skipif(MISSING, reason="no C++ compiler")
def test_evaluate_and_workers_compile_the_text_tower_with_work_compile(tmp_path):
    line = [sys.executable, "-m", "fpp_sweep.evaluate", "--datasets", "digits", "--limit", "12"]
    line += ["--out", str(tmp_path), "--method", "tpt", "--prompt", "fpp"]
    keys = ["--set", f"fpp.steps={EAGER_CALLS + 4}", f"work.cache={tmp_path}/cache", "work.device=cpu"]
    actual = {}
    for name, options in (("eager", []), ("compiled", ["work.compile=true"])):
        done = subprocess.run(
            [*line, *keys, *options, "--name", name],
            env=os.environ | {"TORCH_LOGS": "graph_code"},  # torch prints the code of every graph
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert ("_terms_and_gradient" in done.stderr) == bool(options)
        results = json.loads((tmp_path / name / "results.json").read_text())
        actual[name] = results["trials"][0]["datasets"]["digits"]
    assert actual["compiled"] == pytest.approx(actual["eager"], abs=1e-3)
    assert len(list((tmp_path / "cache").glob("features/*"))) == 1  # both runs use the same image features
    worker = Worker(WorkerSpec(model="tiny", device="cpu", compile=True))
    assert isinstance(worker.clip.text.run, Compiler)
    assert worker.model_info().arithmetic.endswith(", compiled text tower")


@pytest.mark.nightly
@pytest.mark.slow
def test_a_missing_compiler_is_reported_in_one_line(tmp_path):
    line = [sys.executable, "-m", "fpp_sweep.evaluate", "--datasets", "digits", "--out", str(tmp_path)]
    line += ["--set", "work.compile=true", "work.device=cpu"]
    done = subprocess.run(line, env=os.environ | {"CXX": "/nowhere/g++"}, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "error: work.compile: torch.compile cannot be used on cpu: No working C++ compiler found" in done.stderr
    assert "Traceback" not in done.stderr
