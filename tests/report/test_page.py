"""The picture, the importances and the page of a sweep."""

import json
import re
import shutil
from dataclasses import replace
from types import SimpleNamespace

import pytest
from PIL import Image

from fpp_sweep.report import write_report
from fpp_sweep.report.importance import importances
from fpp_sweep.report.page import setting_cells
from tests.names import TPT
from tests.report.made import (
    ACCURACY,
    ECE,
    HOSTILE,
    NLL,
    baseline,
    baselines,
    driven,
    failed,
    info,
    searched,
    trial,
    write,
)

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


def hostile():
    params = [{"prompt": f"{HOSTILE}{number}", HOSTILE: number % 2} for number in range(12)]
    trials = [trial(number, 70 + number, 5 + number, params=each) for number, each in enumerate(params)]
    return info(tags={HOSTILE: HOSTILE}, space={"question": HOSTILE}), [*trials, failed(20, reason=HOSTILE)]


SWEEPS = {
    "one objective": lambda: (info((ACCURACY,)), [*baselines((ACCURACY,)), *searched(objectives=(ACCURACY,))]),
    "two objectives": lambda: (info(), [*baselines(), *searched()]),
    "three objectives": lambda: (
        info((ACCURACY, ECE, NLL)),
        [*baselines((ACCURACY, ECE, NLL)), *searched(objectives=(ACCURACY, ECE, NLL))],
    ),
    "nothing yet": lambda: (info(), []),
    "baselines only": lambda: (info(), baselines()),
    "one trial": lambda: (info(reference=None), [trial(0)]),
    "equal trials": lambda: (info(), [trial(number) for number in range(12)]),
    "all infeasible": lambda: (info(), [trial(0, constraints={"ece": 1.0}), trial(1, constraints={"ece": 2.0})]),
    "all failed": lambda: (info(), [failed(0), failed(1)]),
    "nothing searched": lambda: (info(), [trial(0, params={}), trial(1, 71, params={})]),
    "mixed kinds": lambda: (
        info(),
        [trial(number, 70 + number, params={"a": value}) for number, value in enumerate([None, True, "x", 2, 0.5, -1])],
    ),
    "hostile": hostile,
}


def report(path, name):
    information, records = SWEEPS[name]()
    folder = write(path, information, records)
    write_report(folder, pages=True)
    return folder.report


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return report(tmp_path_factory.mktemp("sweeps"), "two objectives")


def sheet(folder):
    text = (folder / "sweep.html").read_text()
    found = re.findall(r'<script type="application/json" id="sheet">(.*?)</script>', text)
    return json.loads(found[0]) if found else {"plots": []}


@pytest.mark.parametrize("name", SWEEPS)
def test_every_sweep_has_a_picture_and_a_page_whose_plots_plotly_accepts(tmp_path, name):
    graph_objects = pytest.importorskip("plotly.graph_objects")
    folder = report(tmp_path, name)
    Image.open(folder / "front.png").verify()
    places = set(re.findall(r'class="plot" id="([\w-]+)"', (folder / "sweep.html").read_text()))
    assert {plot["name"] for plot in sheet(folder)["plots"]} == places
    for plot in sheet(folder)["plots"]:
        graph_objects.Figure(data=plot["traces"], layout=plot["layout"])  # raises for an unknown or bad property


def test_the_page_is_one_file_that_asks_for_nothing(folder):
    page = (folder / "sweep.html").read_text()
    outside = re.sub(r"<script>.*?</script>", "", page, flags=re.S)
    assert not re.search(r"(src|href)\s*=|url\(|@import", outside)
    assert "default-src 'none'" in outside


def test_plotly_comes_along_only_where_it_draws(tmp_path, folder):
    assert (folder / "sweep.html").stat().st_size > 3_000_000
    assert (report(tmp_path, "nothing yet") / "sweep.html").stat().st_size < 20_000


def test_hostile_texts_are_only_texts(tmp_path):
    page = (report(tmp_path, "hostile") / "sweep.html").read_text()
    ours = re.sub(r"<script>.*?</script>\s*(?=<script>|</body>)", "", page, flags=re.S)
    assert "&lt;/script&gt;&lt;script&gt;" in ours
    assert "<img" not in ours
    assert "</script><script>document" not in ours


def test_a_baseline_shows_the_settings_that_it_reads():
    learned = baseline("fpp_code", 70.0, 5.0)
    words = replace(learned, config={**learned.config, "prompt": "a photo of a"})
    gamma = learned.config["fpp.gamma2"]
    assert setting_cells(learned, ["fpp.gamma2", "method"]) == [f"<td>{gamma:g}</td>", f"<td>{TPT}</td>"]
    assert setting_cells(words, ["fpp.gamma2", "method"]) == ["<td></td>", f"<td>{TPT}</td>"]


def test_infeasible_trials_are_shown_and_failed_ones_told(folder):
    front = next(plot for plot in sheet(folder)["plots"] if plot["name"] == "front-0")
    (broken,) = (trace for trace in front["traces"] if trace.get("name") == "break a constraint")
    assert broken["customdata"]
    assert "ece is not finite" in (folder / "sweep.html").read_text()


def test_stopped_and_waiting_trials_are_counted_and_stopped_ones_have_a_reason(tmp_path):
    stopped = failed(1, "lower after 2 of 5 datasets", state="stopped")
    written = write(tmp_path, info(), [trial(0), stopped, failed(2, None, state="waiting", finished=None)])
    write_report(written, pages=True)
    page = (written.report / "sweep.html").read_text()
    assert "1 trials finished, 0 failed, 1 stopped, 0 running, 1 waiting; 1 on the front" in page
    assert "lower after 2 of 5 datasets" in page
    assert "<th>trial-0002" not in page


def test_a_condition_leaves_a_gap_in_the_parallel_coordinates(folder):
    (parallel,) = (plot for plot in sheet(folder)["plots"] if plot["name"] == "parallel")
    axes = {axis["label"]: axis for axis in parallel["traces"][0]["dimensions"]}
    assert list(axes) == ["fpp.context_var", "fpp.gamma2", "method", "adapt.penalty", "accuracy", "ece"]
    assert axes["adapt.penalty"]["ticktext"][0] == "not set"
    assert axes["adapt.penalty"]["values"].count(axes["adapt.penalty"]["tickvals"][0]) > 5
    assert -5 <= min(axes["fpp.context_var"]["values"]) <= max(axes["fpp.context_var"]["values"]) <= -2  # log10


def test_each_objective_has_the_setting_that_makes_its_best_trials_on_top():
    accuracy, ece = importances(*driven())
    assert (accuracy.metric, ece.metric) == ("accuracy", "ece")
    assert (next(iter(accuracy.shares)), next(iter(ece.shares))) == ("a", "c")
    for each in (accuracy, ece):
        assert sum(each.shares.values()) == pytest.approx(1)
        assert list(each.shares.values()) == sorted(each.shares.values(), reverse=True)


def test_the_page_and_its_file_have_each_objectives_own_importances(tmp_path):
    information, trials = driven()
    written = write(tmp_path, information, trials)
    write_report(written, pages=True)
    shares = {each.metric: dict(each.shares) for each in importances(information, trials)}
    assert json.loads((written.report / "importances.json").read_text()) == shares
    (plot,) = (plot for plot in sheet(written.report)["plots"] if plot["name"] == "importances")
    bars = {trace["name"]: dict(zip(trace["y"], trace["x"], strict=True)) for trace in plot["traces"]}
    assert bars == {metric: pytest.approx(each) for metric, each in shares.items()}


def test_ten_trials_are_enough_for_importances_and_nine_are_not():
    information, trials = driven()
    assert [bool(each.shares) for each in importances(information, trials[:10])] == [True, True]
    assert [each.skipped for each in importances(information, trials[:9])] == [
        "9 finished trials; importances need 10"
    ] * 2


@pytest.fixture
def asked_of_optuna(monkeypatch):
    """The last study that importances were asked for, and which share of its trials counted as good."""
    import optuna.importance

    evaluator, evaluate = optuna.importance.PedAnovaImportanceEvaluator, optuna.importance.get_param_importances
    asked = SimpleNamespace()

    def made(*, target_quantile):
        asked.good = target_quantile
        return evaluator(target_quantile=target_quantile)

    def called(study, **named):
        asked.study = study
        return evaluate(study, **named)

    monkeypatch.setattr(optuna.importance, "PedAnovaImportanceEvaluator", made)
    monkeypatch.setattr(optuna.importance, "get_param_importances", called)
    return asked


@pytest.mark.parametrize(("count", "good"), [(10, 0.5), (20, 0.25), (50, 0.1), (200, 0.1)])
def test_good_trials_are_a_tenth_but_never_fewer_than_five(asked_of_optuna, count, good):
    importances(*driven(count))
    assert asked_of_optuna.good == good


def test_importances_are_over_the_range_that_was_searched_and_points_beside_it(asked_of_optuna):
    from optuna.distributions import CategoricalDistribution, FloatDistribution

    space = {
        "log": {"low": 1e-5, "high": 1e-2, "log": True},
        "log and zero": {"low": 1e-5, "high": 1e-2, "log": True},
        "beside": {"low": 1.0, "high": 2.0},
        "words": {"choices": ["x", 1]},
    }
    trials = [
        trial(number, 70 + number, params={"log": 1e-4 * (1 + number), "log and zero": 1e-4 * number, "beside": 1.5})
        for number in range(10)
    ]
    beside = [{"beside": 0.5, "words": "x"}, {"beside": 4.0, "words": 1}]
    trials += [trial(number, 60 + number, params=each) for number, each in enumerate(beside, start=10)]
    importances(info(space={"params": space}), trials)
    ranges = {key: each for one in asked_of_optuna.study.trials for key, each in one.distributions.items()}
    assert ranges == {
        "log": FloatDistribution(1e-5, 1e-2, log=True),
        "log and zero": FloatDistribution(0.0, 1e-2),
        "beside": FloatDistribution(0.5, 4.0),
        "words": CategoricalDistribution(["1", "x"]),
    }


@pytest.mark.parametrize(
    ("records", "reason"),
    [
        ([trial(0)], "1 finished trials"),
        ([trial(number, 70 + number) for number in range(12)], "fewer than two settings"),
        ([trial(number, params={"a": number, "b": -number}) for number in range(12)], "the same accuracy"),
    ],
)
def test_importances_that_cannot_be_told_are_a_sentence(records, reason):
    found = importances(info(), records)[0]
    assert reason in found.skipped
    assert not found.shares


def test_importances_leave_optunas_log_level_alone(capfd):
    import optuna

    before = optuna.logging.get_verbosity()
    importances(info(), [each for each in searched() if each.values])
    assert optuna.logging.get_verbosity() == before
    assert capfd.readouterr() == ("", "")


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium")
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_comes_alive_in_a_sandboxed_frame_of_a_browser(tmp_path, scheme):
    playwright = pytest.importorskip("playwright.sync_api")
    page_text = (report(tmp_path, "hostile") / "sweep.html").read_text()
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        window = browser.new_page(viewport={"width": 390, "height": 800}, color_scheme=scheme)
        errors, requests = [], []
        window.on("pageerror", lambda error: errors.append(str(error)))
        window.on("request", lambda request: requests.append(request.url))
        window.set_content('<title>outside</title><iframe sandbox="allow-scripts" width="390" height="780"></iframe>')
        window.eval_on_selector("iframe", "(frame, text) => frame.srcdoc = text", page_text)
        frame = window.frame_locator("iframe")
        for name in ("front-0", "parallel", "hypervolume"):
            frame.locator(f"#{name} svg.main-svg").first.wait_for(timeout=60_000)
        frame.locator("#front-0 .scatterlayer .trace").last.locator("path.point").first.scroll_into_view_if_needed()
        spot = frame.locator("#front-0 .scatterlayer path.point").last.bounding_box()
        window.mouse.move(spot["x"] + spot["width"] / 2, spot["y"] + spot["height"] / 2)
        assert "trial-00" in frame.locator("#front-0 .hoverlayer .hovertext").text_content(timeout=20_000)
        window.mouse.down()
        window.mouse.up()
        assert "fpp.gamma2" in frame.locator("#details dl").text_content(timeout=20_000)
        head = frame.locator("th[aria-sort]").nth(1)
        head.locator("button").click()
        assert head.get_attribute("aria-sort") == "ascending"
        inside = window.frames[1]
        assert inside.title() == "perturb-20261120-185232"
        assert inside.evaluate("document.documentElement.scrollWidth <= innerWidth")
        paper = inside.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (paper == "rgb(255, 255, 255)") == (scheme == "light")
        window.emulate_media(media="print", color_scheme=scheme)  # plots are drawn again, in black
        title = 'getComputedStyle(document.querySelector("#front-0 .xtitle")).fill == "rgb(29, 33, 39)"'
        inside.wait_for_function(title, timeout=20_000)
        assert (errors, [url for url in requests if url.startswith("http")]) == ([], [])
        browser.close()
