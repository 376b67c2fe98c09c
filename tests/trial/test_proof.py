"""The proof of a device. The tests check a CPU against itself, and a CPU whose computations they break."""

import json
import threading
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from fpp_sweep.core.compute import memory
from fpp_sweep.core.compute.compiling import Compiler
from fpp_sweep.core.images import device_views, fused_kernels
from fpp_sweep.core.models.loading import load
from fpp_sweep.core.text import packing
from fpp_sweep.spec import catalogue
from fpp_sweep.spec.errors import InputError, MachineError
from fpp_sweep.spec.messages import warn_once
from fpp_sweep.spec.specs import WorkerSpec
from fpp_sweep.sweep.device_report import print_proof
from fpp_sweep.trial import proof, proof_checks, proof_views, proving
from fpp_sweep.trial.proof import CheckResult, DeviceKind, Proof
from fpp_sweep.trial.proof_bench import Bench
from fpp_sweep.trial.worker import Worker
from tests.kit.compiling import break_torch_compile
from tests.kit.waiting import LONG

CPU = torch.device("cpu")
KIND = DeviceKind(name="GPU X", driver="1.2", torch_version="2.9", cudnn="9", pillow="12", engine="engine 2, views 2")


@pytest.fixture(scope="module")
def bench():
    return Bench(device=CPU)


@pytest.fixture(scope="module")
def broken(bench):
    """A bench whose device has slightly different weights from the CPU's."""
    clip = bench.clip
    other = Bench(device=CPU)
    visual = load("tiny").visual
    with torch.no_grad():
        next(visual.parameters()).mul_(1.001)
    weight, bias = clip.text.projection
    text = replace(clip.text, projection=(weight + 1e-3 * torch.eye(*weight.shape), bias))
    other.__dict__["clip"] = replace(clip, visual=visual, text=text)
    return other


def check_result(name, state="passed"):
    return CheckResult(name=name, state=state, text="text")


def test_views_of_the_device_pass_only_with_pillows_bits(bench, monkeypatch):
    assert proof_views.check_views(bench, images=8).state == "passed"
    normalize = device_views.normalize
    monkeypatch.setattr(device_views, "normalize", lambda pixels, preprocess: normalize(pixels, preprocess) + 1e-7)
    failed = proof_views.check_views(bench, images=8)
    assert failed.state == "failed"
    assert failed.text.startswith("8 of 8 images")


@pytest.mark.parametrize("broken_step", ["resampling", "mixing"])
def test_a_wrong_resize_or_mix_fails_the_check_of_views(bench, monkeypatch, broken_step):
    if broken_step == "resampling":
        resize = device_views.resize
        monkeypatch.setattr(device_views, "resize", lambda *arguments: resize(*arguments).roll(1, 0))
    else:
        mix = device_views.mix
        monkeypatch.setattr(device_views, "mix", lambda *arguments: mix(*arguments).float() * (1 + 1e-6))
    result = proof_views.check_views(bench, images=6)
    assert result.state == "failed"
    assert result.figures["differing"] >= 3


def test_a_failing_compiler_fails_the_check_of_compiled_views(bench, monkeypatch):
    def fail(*_):
        raise RuntimeError("no compiler")

    monkeypatch.setattr(torch, "compile", lambda function, **options: fail)
    result = proof_views.check_compiled_views(bench, images=2)
    assert (result.state, result.text) == ("failed", "torch.compile failed (no compiler)")


def test_compiled_kernels_with_other_bits_fail_the_check_of_compiled_views(bench, monkeypatch):
    """The compiler is replaced by one that adds one to the bytes of every table and crop."""

    def compile_wrongly(function, **options):
        def call(*arguments):
            result = function(*arguments)
            is_table_or_crop = result.dtype != torch.float64 and result.numel() != fused_kernels.PROBES
            return result + 1 if is_table_or_crop else result

        return call

    monkeypatch.setattr(torch, "compile", compile_wrongly)
    result = proof_views.check_compiled_views(bench, images=4)
    assert result.state == "failed"
    assert result.figures["differing"] >= 3  # one image has a single pixel


def test_towers_methods_and_pretraining_pass_on_the_cpu_and_fail_with_other_weights(bench, broken, monkeypatch):
    monkeypatch.setattr(catalogue, "BUILT_IN", ("zero_shot", "tpt", "tda"))
    for check in (
        lambda bench: proof_checks.check_tower(bench, "float32"),
        proof_checks.check_methods,
        proof_checks.check_pretraining,
        proof_checks.check_memory,
    ):
        assert check(bench).state == "passed"
        failed = check(broken)
        assert failed.state == "failed", failed
        assert "differs by at most" in failed.text


def test_the_check_of_methods_says_nothing_about_released_settings(bench, monkeypatch, caplog):
    monkeypatch.setattr(catalogue, "BUILT_IN", ("tda", "boostadapter"))
    warn_once.cache_clear()
    assert proof_checks.check_methods(bench).state == "passed"
    assert not caplog.records


def test_each_stage_of_the_speed_has_a_rate_of_an_h100(bench, monkeypatch):
    monkeypatch.setattr(proof_views, "SPEED_SECONDS", 0.0)
    monkeypatch.setattr(proof_views, "WHOLE_VIEWS", 1)
    speed = proof_views.measure_speed(bench)
    assert speed.figures.keys() == proof_views.H100_RATES.keys()
    assert min(speed.figures.values()) > 0
    assert "H100" not in speed.text
    assert proof_views.describe_rates(speed.figures, beside_h100=True).count("(H100: ") == len(speed.figures)


def test_a_rate_counts_all_calls_but_the_first(monkeypatch):
    """Each call takes 0.3 s of a clock that only calls move."""
    clock = [0.0]

    def work():
        clock[0] += 0.3

    monkeypatch.setattr(proof_views, "perf_counter", lambda: clock[0])
    assert proof_views._rate(10, work) == pytest.approx(10 / 0.3)
    assert clock == [pytest.approx(5 * 0.3)]


def test_half_precision_has_another_tolerance(bench, monkeypatch):
    assert proof_checks.check_tower(bench, "fp16").state == "passed"
    monkeypatch.setitem(proof_checks.TOWER_TOLERANCE, "fp16", proof_checks.TOWER_TOLERANCE["float32"])
    assert proof_checks.check_tower(bench, "fp16").state == "failed"


def test_numbers_that_are_not_finite_fail():
    nan = torch.full((2, 3), float("nan"))
    assert proof_checks._largest_difference(nan, torch.zeros(2, 3)) == float("inf")


def test_a_shortage_of_memory_that_is_not_recognised_fails(bench, monkeypatch):
    monkeypatch.setattr(memory, "OUT_OF_MEMORY_PHRASES", ())
    result = proof_checks.check_memory(bench)
    assert result.state == "failed"
    assert result.text.startswith("a shortage of memory was not survived")


@pytest.mark.parametrize(
    "error", [torch.OutOfMemoryError("CUDA out of memory"), RuntimeError("CUDA error: uncorrectable ECC error")]
)
def test_a_device_that_fills_up_or_breaks_during_the_check_of_memory_is_no_failed_check(bench, monkeypatch, error):
    """The error comes after a batch of views has its features."""
    image_features = type(bench.clip).image_features
    batch_sizes = []

    def fail_later(clip, pixels):
        if clip is bench.clip:
            batch_sizes.append(len(pixels))
        if len(batch_sizes) > 1:
            raise error
        return image_features(clip, pixels)

    monkeypatch.setattr(type(bench.clip), "image_features", fail_later)
    with pytest.raises(type(error)) as raised:
        proof_checks.check_memory(bench)
    assert raised.value is error
    assert len(batch_sizes) > 1


@pytest.mark.parametrize("form", proof_checks.GRADIENT_FORMS)
def test_a_wrong_form_of_the_first_gradient_fails_the_check_of_methods(bench, monkeypatch, form):
    monkeypatch.setattr(catalogue, "BUILT_IN", ("zero_shot",))
    assert proof_checks.check_methods(bench).state == "passed"
    build = proof_checks.GRADIENT_FORMS[form]

    def build_wrongly(texts, context):
        first = build(texts, context)
        return SimpleNamespace(features=first.features, backward=lambda gradients: 1.001 * first.backward(gradients))

    monkeypatch.setitem(proof_checks.GRADIENT_FORMS, form, build_wrongly)
    failed = proof_checks.check_methods(bench)
    assert failed.state == "failed"
    assert f"the worst is {form}" in failed.text


def test_methods_are_checked_with_attention_in_one_group_and_in_several(bench, monkeypatch):
    groups = set()
    attention_mask = packing._attention_mask

    def record(*arguments):
        mask = attention_mask(*arguments)
        groups.add(mask.groups)
        return mask

    monkeypatch.setattr(packing, "_attention_mask", record)
    monkeypatch.setattr(catalogue, "BUILT_IN", (catalogue.TPT,))
    proof_checks.check_methods(bench)
    assert min(groups) == 1
    assert max(groups) > 1


def test_the_text_of_a_failed_check_has_the_first_line_of_the_error(bench, monkeypatch):
    def fail(*_):
        raise RuntimeError("the cause\nand a trace")

    monkeypatch.setattr(proof_checks, "run_in_batches", fail)
    assert proof_checks.check_memory(bench).text.endswith("was not survived: the cause")


def test_differences_between_two_runs_are_noted_and_restrict_nothing(bench, monkeypatch):
    monkeypatch.setattr(catalogue, "BUILT_IN", ("zero_shot",))
    same = proof_checks.check_repeat(bench)
    assert same.state == "passed"
    assert same.figures == {"image tower": 0.0, "pretraining": 0.0, "pretraining, compositions": 0.0, "zero_shot": 0.0}
    probabilities, calls = Bench.probabilities, []

    def drift(self, clip, method):
        calls.append(method)
        return probabilities(self, clip, method) + 1e-7 * len(calls)

    monkeypatch.setattr(Bench, "probabilities", drift)
    noted = proof_checks.check_repeat(bench)
    assert noted.state == "noted"
    assert "zero_shot" in noted.text


def test_a_compiled_text_tower_with_other_results_fails(bench, monkeypatch):
    """The compiler is replaced by one that changes every result by about a thousandth."""

    class WrongCompiler:
        def __init__(self, *_, **__):
            self.calls = 0

        def __call__(self, function, *arguments, **named):
            result = function(*arguments, **named)
            return result if isinstance(result, tuple) else result * 1.001 + 1e-3

    monkeypatch.setattr("fpp_sweep.core.text.tower.Compiler", WrongCompiler)
    monkeypatch.setattr(proof_checks, "EAGER_CALLS", 0)
    assert proof_checks.check_compiled_text(bench).state == "failed"


@pytest.mark.parametrize("function", ["features", "_terms_and_gradient"])
def test_a_function_that_torch_cannot_compile_fails_the_check_of_the_compiled_text_tower(bench, monkeypatch, function):
    """A stand-in for torch.compile fails on the text features, or on a step of pretraining."""
    break_torch_compile(monkeypatch, function, RuntimeError("no Triton"))
    result = proof_checks.check_compiled_text(bench)
    assert (result.state, result.text) == ("failed", f"torch.compile fails on {function}: no Triton")


UNPROVEN = Proof(kind=DeviceKind.of(CPU), created="")


def test_a_check_that_raises_has_failed(tmp_path):
    def check(bench):
        raise RuntimeError("no kernel for this architecture")

    proven = proving._run_checks({"views": check}, UNPROVEN, CPU, tmp_path)
    assert [(result.state, result.text) for result in proven.checks] == [
        ("failed", "RuntimeError: no kernel for this architecture")
    ]


@pytest.mark.parametrize(
    "error", [torch.OutOfMemoryError("CUDA out of memory. 2 GiB"), RuntimeError("CUDA error: uncorrectable ECC error")]
)
def test_a_full_or_broken_device_is_no_failed_check(tmp_path, few_checks, monkeypatch, error):
    ran, _ = few_checks
    all_checks = proving._all_checks

    def check(bench):
        raise error

    monkeypatch.setattr(proving, "_all_checks", lambda *_: {**all_checks(*_), proof.METHODS: check})
    with pytest.raises(MachineError, match="cpu: the check `method rows` could not run: CUDA") as raised:
        proving.prove_once(CPU, tmp_path, ["float32"], compiled=False)
    assert str(raised.value).endswith("; free or replace the device, then start again")
    monkeypatch.setattr(proving, "_all_checks", all_checks)
    ran.clear()
    proven = proving.prove_once(CPU, tmp_path, ["float32"], compiled=False)
    assert proof.METHODS in ran
    assert not proven.failures(proof.REQUIRED)


def test_doctors_proof_keeps_no_result_of_an_earlier_one(tmp_path, few_checks):
    stale = UNPROVEN.with_results([check_result("a check that no longer exists", "failed")], "2026-01-01")
    proof.write_proof(tmp_path, stale)
    proven = proving.prove_fully(CPU, tmp_path, lambda result: None)
    assert {result.state for result in proven.checks} == {"passed"}
    assert proof.read_proof(tmp_path, proven.kind) == proven


@pytest.fixture
def few_checks(monkeypatch):
    """Replace the checks with recorders; return the list of checks that ran and the set of checks that fail."""
    ran, failing = [], set()

    def checks(device, images):
        names = [*proof.REQUIRED, proof.VIEWS, proof.tower_check("fp16"), proof.COMPILED_TEXT, proof.SPEED]

        def check_of(name):
            def check(bench):
                ran.append(name)
                return check_result(name, "failed" if name in failing else "passed")

            return check

        return {name: check_of(name) for name in names}

    monkeypatch.setattr(proving, "_all_checks", checks)
    return ran, failing


def test_a_kind_of_device_is_proven_once_and_again_after_a_change(tmp_path, few_checks, monkeypatch):
    ran, _ = few_checks
    for expected in (5, 0):
        proving.prove_once(CPU, tmp_path, ["float32"], compiled=False)
        assert len(ran) == expected
        ran.clear()
    proving.prove_once(CPU, tmp_path, ["float32", "fp16"], compiled=True)
    assert sorted(ran) == sorted([proof.tower_check("fp16"), proof.COMPILED_TEXT])
    ran.clear()
    for change in (
        {"name": "GPU Y"},
        {"driver": "9"},
        {"torch_version": "3"},
        {"cudnn": "90"},
        {"pillow": "99"},
        {"engine": "engine 99"},
    ):
        other = replace(DeviceKind.of(CPU), **change)
        monkeypatch.setattr(DeviceKind, "of", lambda device, other=other: other)
        proving.prove_once(CPU, tmp_path, ["float32"], compiled=False)
        assert len(ran) == 5
        ran.clear()
    assert len(list(tmp_path.glob("*.json"))) == 7


def test_without_the_drivers_file_its_library_tells_the_version(tmp_path, monkeypatch):
    """Containers and WSL do not show the file."""
    monkeypatch.setattr(proof, "DRIVER_FILE", tmp_path / "missing")

    def get_version(pointer):
        pointer._obj.value = 13020

    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "GPU X")
    monkeypatch.setattr(proof.ctypes, "CDLL", lambda name: SimpleNamespace(cuDriverGetVersion=get_version))
    assert DeviceKind.of(torch.device("cuda")).driver == "CUDA 13.2"
    monkeypatch.undo()
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "GPU X")
    monkeypatch.setattr(proof, "DRIVER_FILE", tmp_path / "missing")
    monkeypatch.setattr(proof, "DRIVER_LIBRARY", str(tmp_path / "missing.so"))
    assert DeviceKind.of(torch.device("cuda")).driver == ""


def test_a_damaged_report_is_made_anew(tmp_path, few_checks):
    ran, _ = few_checks
    proving.prove_once(CPU, tmp_path, [], compiled=False)
    (path,) = tmp_path.glob("*.json")
    assert {check["state"] for check in json.loads(path.read_text())["checks"]} == {"passed"}
    path.write_text("{")
    ran.clear()
    proving.prove_once(CPU, tmp_path, [], compiled=False)
    assert len(ran) == 5


@pytest.mark.parametrize("name", proof.REQUIRED)
def test_a_gpu_whose_results_differ_is_refused_in_one_line(tmp_path, name):
    proven = Proof(kind=KIND, created="", checks=(check_result(name, "failed"),))
    with pytest.raises(InputError) as error:
        proving.require_proven(proven, [], tmp_path)
    assert str(error.value) == (
        f"GPU X fails a check of its results: {name}: text; compute with work.device=cpu, and attach "
        f"{tmp_path / KIND.file_name} to an issue"
    )


def test_failed_half_precision_is_refused_only_for_trials_that_request_it(tmp_path):
    proven = Proof(kind=KIND, created="", checks=(check_result(proof.tower_check("fp16"), "failed"),))
    proving.require_proven(proven, ["float32"], tmp_path)
    with pytest.raises(
        InputError, match="precision fp16: GPU X fails a check: text; set precision=float32 if you agree"
    ):
        proving.require_proven(proven, ["float32", "fp16"], tmp_path)


@pytest.mark.parametrize(
    ("views", "compiled", "use", "replacement"),
    [
        ("passed", "passed", "compiled", None),
        ("passed", "failed", "eager", "views are rendered without compiled kernels"),
        ("passed", None, "eager", None),
        ("failed", "passed", "off", "Pillow renders the views"),
        (None, None, "off", None),
    ],
)
def test_only_passed_features_are_used_and_each_failure_has_a_note(views, compiled, use, replacement):
    states = {proof.VIEWS: views, proof.COMPILED_VIEWS: compiled}
    checks = tuple(check_result(name, state) for name, state in states.items() if state)
    proven = Proof(kind=KIND, created="", checks=checks)
    assert proven.device_views == use
    failed = proof.VIEWS if views == "failed" else proof.COMPILED_VIEWS
    assert proven.notes() == ([f"GPU X: {failed}: text; {replacement}"] if replacement else [])


@pytest.fixture
def worker_on_gpu(tmp_path, monkeypatch, few_checks):
    """Return a function that makes workers whose CPU needs a proof, as a GPU does."""

    def make(**spec):
        worker = Worker(WorkerSpec(model="tiny", cache=str(tmp_path), device="cpu", **spec))
        monkeypatch.setattr(type(worker.model), "needs_proof", True)
        return worker

    return make


def test_a_gpu_needs_a_proof_and_a_cpu_does_not(tmp_path):
    worker = Worker(WorkerSpec(model="tiny", cache=str(tmp_path), device="cpu"))
    assert not worker.model.needs_proof
    assert worker.model.proof is None
    worker.model.device = torch.device("cuda")
    assert worker.model.needs_proof


def test_doctor_prints_what_a_failed_check_turns_off(tmp_path, monkeypatch, capsys, few_checks):
    monkeypatch.setenv("FPP_SWEEP_CACHE", str(tmp_path))
    _, failing = few_checks
    assert print_proof("cpu")
    assert "note: " not in capsys.readouterr().out
    failing.add(proof.VIEWS)
    assert not print_proof("cpu")
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(": views: ")[2] for line in lines if line.startswith("note: ")] == [
        "text; Pillow renders the views"
    ]
    assert lines[-2] == "failed: views; attach the report to an issue"
    assert lines[-1].startswith(f"report: {tmp_path}/proofs/")


def test_a_worker_uses_a_gpu_as_far_as_it_is_proven(worker_on_gpu, few_checks):
    ran, _ = few_checks
    worker = worker_on_gpu()
    assert worker.clip.device_views == "eager"
    assert worker.check([], [], [], LONG).notes == worker.model_info().notes == ()
    assert set(ran) == {*proof.REQUIRED, proof.VIEWS}


def test_a_worker_reports_the_features_that_it_does_not_use_on_a_gpu(worker_on_gpu, few_checks):
    _, failing = few_checks
    failing.update((proof.VIEWS, proof.COMPILED_TEXT))
    worker = worker_on_gpu(compile=True)
    assert worker.clip.device_views == "off"
    assert "compiled" not in worker.model_info().arithmetic
    views, towers = worker.check([], [], [], LONG).notes
    assert views.endswith("views: text; Pillow renders the views")
    assert towers.endswith("compiled text tower: text; the text tower runs without torch.compile")
    assert worker.model_info().notes == (views, towers)


def test_a_worker_refuses_a_gpu_with_wrong_results(worker_on_gpu, few_checks):
    _, failing = few_checks
    failing.add(proof.METHODS)
    with pytest.raises(InputError, match="fails a check of its results: method rows"):
        worker_on_gpu().model_info()


def test_graphs_are_refused_in_another_thread(monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda function, **options: function)
    compiler = Compiler(CPU, frozen=[], constant_types=(), eager_calls=0)
    compiler._thread = threading.get_ident()  # as a compiler with CUDA graphs has
    values = torch.ones(2)
    assert torch.equal(compiler(torch.neg, values), -values)
    errors = []

    def call():
        try:
            compiler(torch.neg, values)
        except RuntimeError as error:
            errors.append(str(error))

    thread = threading.Thread(target=call)
    thread.start()
    thread.join()
    assert errors == ["CUDA graphs must be built and replayed in the thread that made their compiler"]
