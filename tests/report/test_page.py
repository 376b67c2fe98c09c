"""The HTML page of a sweep and the picture of its front."""

import base64
import gzip
import json
import os
import re
import shutil
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest
import yaml
from PIL import Image

from fpp_sweep.core.metrics import Confidences
from fpp_sweep.records.answer import statistics_of
from fpp_sweep.records.front import front_of
from fpp_sweep.records.records import IMPORTED
from fpp_sweep.records.reliability import write_reliability
from fpp_sweep.report.document import Plot
from fpp_sweep.report.effects import Curve
from fpp_sweep.report.html import plotly_script
from fpp_sweep.report.plots import front_plots, hypervolume_plot, without_outliers
from fpp_sweep.report.settings_plots import _curve_traces, color_axis
from fpp_sweep.report.writing import write_report
from fpp_sweep.statistics.block_stats import BlockStats, to_bytes
from tests.kit.records import (
    ACCURACY,
    ECE,
    HOSTILE,
    NLL,
    SEARCHED_RANGES,
    SECONDS,
    all_baselines,
    baseline,
    failed,
    searched_trials,
    split_result,
    sweep_info,
    trial,
    write_sweep,
)

AXE = os.environ.get("AXE_CORE")  # path of axe.min.js, a file of the npm package axe-core
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


def hostile_sweep():
    params = [{"prompt": f"{HOSTILE}{number}", HOSTILE: number % 2} for number in range(12)]
    trials = [trial(number, 70 + number, 5 + number, params=settings) for number, settings in enumerate(params)]
    return sweep_info(versions={HOSTILE: HOSTILE}, command=HOSTILE, space={"question": HOSTILE}), [
        *trials,
        failed(20, reason=HOSTILE),
    ]


SWEEPS = {
    "one objective": lambda: (
        sweep_info((ACCURACY,), ranges=SEARCHED_RANGES),
        [*all_baselines((ACCURACY,)), *searched_trials(objectives=(ACCURACY,))],
    ),
    "two objectives": lambda: (sweep_info(ranges=SEARCHED_RANGES), [*all_baselines(), *searched_trials()]),
    "three objectives": lambda: (
        sweep_info((ACCURACY, ECE, NLL), ranges=SEARCHED_RANGES),
        [*all_baselines((ACCURACY, ECE, NLL)), *searched_trials(objectives=(ACCURACY, ECE, NLL))],
    ),
    "nothing yet": lambda: (sweep_info(), []),
    "baselines only": lambda: (sweep_info(), all_baselines()),
    "one trial": lambda: (sweep_info(reference=None), [trial(0)]),
    "equal trials": lambda: (sweep_info(), [trial(number, 70, 5) for number in range(12)]),
    "all infeasible": lambda: (sweep_info(), [trial(0, constraints={"ece": 1.0}), trial(1, constraints={"ece": 2.0})]),
    "all failed": lambda: (sweep_info(), [failed(0), failed(1)]),
    "nothing searched": lambda: (sweep_info(), [trial(0, params={}), trial(1, 71, params={})]),
    "mixed kinds": lambda: (
        sweep_info(),
        [trial(number, 70 + number, params={"a": value}) for number, value in enumerate([None, True, "x", 2, 0.5, -1])],
    ),
    "hostile": hostile_sweep,
}


def write_page(path, name):
    information, records = SWEEPS[name]()
    folder = write_sweep(path, information, records)
    write_report(folder, pages=True)
    return folder.report


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_page(tmp_path_factory.mktemp("sweeps"), "two objectives")


def page_data(folder):
    """Return the data that the page's scripts read: plots and trials by name."""
    text = (folder / "sweep.html").read_text()
    match = re.search(r'<script type="text/plain" id="page-data">(.*?)</script>', text)
    if match is None:
        return {"plots": {}, "trials": {}}
    return json.loads(gzip.decompress(base64.b64decode(match[1])))


def plots(folder):
    return page_data(folder)["plots"]


def merge(old, changes):
    """Merge changes into an old value as plots.js does."""
    if not isinstance(changes, dict):
        return changes
    result = dict(old or {})
    for key, value in changes.items():
        result[key] = merge(result.get(key), value)
    return result


def drawn_choices(plot):
    """Yield the traces and the layout that plots.js draws for each choice of a plot."""
    for choice in list(plot["choices"].values()) or [{}]:
        changes = choice.get("traces", [{}] * len(plot["traces"]))
        traces = [merge(trace, change) for trace, change in zip(plot["traces"], changes, strict=True)]
        layout = merge(plot["layout"], choice.get("layout", {}))
        ranges = {axis: {"range": ends} for axis, ends in choice.get("zoom", plot["zoom"]).items()}
        yield traces, merge(layout, ranges)


@pytest.mark.parametrize("name", SWEEPS)
def test_every_sweep_has_a_picture_and_a_page_whose_plots_plotly_accepts(tmp_path, name):
    graph_objects = pytest.importorskip("plotly.graph_objects")
    folder = write_page(tmp_path, name)
    Image.open(folder / "front.png").verify()
    plot_ids = set(re.findall(r'class="plot"[^>]*? id="([\w-]+)"', (folder / "sweep.html").read_text()))
    assert set(plots(folder)) == plot_ids
    for plot in plots(folder).values():
        for traces, layout in drawn_choices(plot):
            graph_objects.Figure(data=traces, layout=layout)  # raises for an unknown or bad property


def test_the_page_is_one_file_that_loads_no_other(folder):
    page = (folder / "sweep.html").read_text()
    outside = re.sub(r"<script.*?</script>", "", page, flags=re.S)
    assert not re.search(r'(src|href)\s*=(?!"#)|url\(|@import', outside)
    assert "default-src 'none'" in outside


def test_plotlys_script_is_read_without_importing_plotly():
    assert plotly_script() == pytest.importorskip("plotly.offline").get_plotlyjs()


def test_only_pages_with_plots_contain_plotly_compressed(tmp_path, folder):
    assert 1_500_000 < (folder / "sweep.html").stat().st_size < 2_600_000
    assert (write_page(tmp_path, "nothing yet") / "sweep.html").stat().st_size < 26_000


def test_a_page_with_plots_says_without_javascript_that_it_needs_it(tmp_path, folder):
    line = "<noscript><p>Plots, the filter and the sections of trials need JavaScript, which is off.</p></noscript>"
    page = (folder / "sweep.html").read_text()
    assert page.index("<header>") < page.index(line) < page.index("<main>")
    assert "<noscript>" not in (write_page(tmp_path, "nothing yet") / "sweep.html").read_text()


def test_sections_begin_with_the_answer_and_can_be_linked(folder):
    page = (folder / "sweep.html").read_text()
    heads = re.findall(r"<h2>(.*?)</h2>", page)
    assert heads == ["Answer", "Front", "Trials", "Settings", "Datasets", "Progress", "Provenance"]
    assert page.index("How much noise should") < page.index("<h2>Answer")
    links = re.findall(r'href="#(\w+)"', page)
    assert links == [head.lower() for head in heads]
    assert all(f'id="{link}"' in page for link in links)
    datasets = page[page.index('id="datasets"') : page.index('id="progress"')]
    assert "<tbody>\n<tr" in datasets  # the table below the heat map
    front = page[page.index('id="front"') : page.index('id="trials"')]
    assert "<tbody>\n<tr" in front


def test_only_the_page_of_a_running_sweep_reloads_itself(tmp_path, folder):
    running = write_sweep(tmp_path, sweep_info(state="running"), [trial(0)])
    with running.locked():
        write_report(running, pages=True)
    assert 'data-reload-seconds="60"' in (running.report / "sweep.html").read_text()
    assert 'data-reload-seconds="0"' in (folder / "sweep.html").read_text()


def test_the_page_of_a_sweep_whose_driver_was_killed_says_that_it_stopped(tmp_path):
    killed = write_sweep(tmp_path, sweep_info(state="running", space={"search": {"trials": 16}}), [trial(0)])
    write_report(killed, pages=True)
    page = (killed.report / "sweep.html").read_text()
    assert 'data-reload-seconds="0"' in page
    assert re.search(r">stopped without notice; started 2026-11-20 .* UTC, last change 20\d\d-.* UTC<", page)
    for text in (", as of", "at this rate", "running; started"):
        assert text not in page


def test_the_page_of_a_running_sweep_shows_its_progress_and_its_time(tmp_path, folder):
    space = {"search": {"trials": 16}}
    records = [trial(0), trial(1), failed(2), *(failed(number, None, state="running") for number in (3, 4))]
    running = write_sweep(tmp_path, sweep_info(state="running", space=space), records)
    with running.locked():
        write_report(running, pages=True)
    line = re.search(r'<p class="lead">(3 trials ended.*?)</p>', (running.report / "sweep.html").read_text())[1]
    assert re.fullmatch(
        rf"3 trials ended, as of {datetime.now(UTC):%Y-%m-%d} \d\d:\d\d UTC, 19 % done, about 5:25 left", line
    )
    assert ", as of" not in (folder / "sweep.html").read_text()


def test_the_growth_of_the_hypervolume_has_titles_on_its_axes(folder):
    layout = plots(folder)["hypervolume"]["layout"]
    titles = [layout[axis]["title"]["text"] for axis in ("xaxis", "yaxis")]
    assert titles == ["trials, in the order they finished", "hypervolume"]


def test_an_outlier_does_not_stretch_the_axes(tmp_path):
    records = [trial(number, 70 + number / 10, 5 - number / 20) for number in range(20)]
    far = write_sweep(tmp_path, sweep_info(), [*records, trial(20, 3.0, 60.0)])
    write_report(far, pages=True)
    front = plots(far.report)["front-0"]
    (low, high), (least, most) = front["zoom"]["xaxis"], front["zoom"]["yaxis"]
    assert (60 < low < 70, 71.9 < high < 80, 3 < least < 4.05, 5 < most < 8) == (True,) * 4
    assert ">Show all: 1 more</button>" in (far.report / "sweep.html").read_text()
    near = write_sweep(tmp_path, sweep_info(name="near"), records)
    write_report(near, pages=True)
    assert plots(near.report)["front-0"]["zoom"] == {}
    assert "data-show-all=" not in (near.report / "sweep.html").read_text().partition("<script>")[0]


def test_a_trial_outside_the_axes_is_counted_once_for_the_chosen_metric(tmp_path):
    """An outlying baseline has a marker, a hollow one for the test split, and a line between them."""
    records = [trial(number, 70 + number / 10, 5 - number / 20) for number in range(20)]
    far = write_sweep(tmp_path, sweep_info(), [*records, baseline("tpt", 3.0, 60.0), trial(20, 3.0, 4.5)])
    write_report(far, pages=True)
    page = (far.report / "sweep.html").read_text()
    assert '<button type="button" data-show-all="front-0" aria-pressed="false">Show all: 2 more</button>' in page
    assert '<button type="button" data-show-all="slices" aria-pressed="false">Show all: 1 more</button>' in page
    choices = plots(far.report)["slice-0"]["choices"]
    assert (choices["accuracy"]["n_outliers"], choices["ece"].get("n_outliers", 0)) == (1, 0)


def test_baselines_differ_in_color_and_marker_and_hollow_markers_show_the_test_split(folder):
    traces = plots(folder)["front-0"]["traces"]
    names = [record.label for record in all_baselines()]
    markers = [
        trace["marker"] for trace in traces if trace.get("name") in names and "-open" not in trace["marker"]["symbol"]
    ]
    assert len({look["symbol"] for look in markers}) == len({look["color"] for look in markers}) == len(names)
    hollow = [trace for trace in traces if "-open" in str(trace.get("marker", {}).get("symbol"))]
    ends = {trace["customdata"][1]: trace["x"][1] for trace in hollow if trace["x"]}
    assert ends == {
        record.name: pytest.approx(record.results["test"].average["accuracy"]) for record in all_baselines()
    }
    for trace in hollow:  # lines of start, end and gap: only the end has a marker
        n_lines = len(trace["x"]) // 3
        assert trace["marker"]["size"] == [0, 10, 0] * n_lines


def test_the_trial_table_has_trials_of_every_state(tmp_path):
    others = [failed(2), failed(3, "lower after 2 of 5 datasets", state="stopped"), failed(4, None, state="waiting")]
    imported = replace(baseline("theirs", 60.0, 5.0), started=0.0, origin=IMPORTED)
    records = [*all_baselines()[:1], imported, trial(0), trial(1, 70, test=True), *others]
    written = write_sweep(tmp_path, sweep_info(), records)
    write_report(written, pages=True)
    body = (written.report / "sweep.html").read_text().partition('<table id="all-trials">')[2].partition("</table>")[0]
    rows = {re.search(r'data-trial="(.*?)"', row)[1]: row for row in body.split("<tr")[2:]}
    assert set(rows) == {record.name for record in written.trials()}
    assert "lower after 2 of 5 datasets" in rows["trial-0003"]
    assert [rows[name].count("69.30") for name in ("trial-0000", "trial-0001")] == [0, 1]
    assert "<td>waiting</td>" in rows["trial-0004"]
    in_minutes = [">0.8<" in rows[name] for name in ("trial-0000", imported.name)]
    assert in_minutes == [True, False]  # predictions that were imported have no start
    assert not re.search(r">\d{6,}\.\d<", rows[imported.name])


def test_parallel_coordinates_slices_and_heat_map_can_show_every_metric(folder):
    figures = plots(folder)
    metrics = ["accuracy", "ece", "nll", "sce", "brier"]
    assert list(figures["parallel"]["choices"]) == metrics
    assert list(figures["slice-0"]["choices"]) == metrics
    assert list(figures["heat"]["choices"]) == ["accuracy", "ece", "nll", "brier"]
    page = (folder / "sweep.html").read_text()
    width = re.search(r'id="heat"[^>]*min-width:(\d+)px', page)[1]
    assert int(width) > 110  # in a narrower window the plot scrolls
    assert [
        figures["parallel"]["choices"][name]["traces"][0]["line"]["reversescale"] for name in ("accuracy", "ece")
    ] == [False, True]
    assert len({json.dumps(choice) for choice in figures["slice-0"]["choices"].values()}) == len(metrics)


def test_slices_share_the_readers_choice(folder):
    figures = plots(folder)
    groups = [figure["group"] for name, figure in figures.items() if name.startswith("slice-")]
    assert len(groups) > 1
    assert len(set(groups)) == 1


def test_a_slice_draws_the_band_around_the_line():
    curve = Curve(
        np.array([1.0, 2.0, 3.0]), np.array([5.0, 6.0, 7.0]), np.array([4.0, 5.0, 6.0]), np.array([6.0, 7.0, 8.0])
    )
    band, line = _curve_traces(curve)
    assert band == {"x": [1.0, 2.0, 3.0, 3.0, 2.0, 1.0], "y": [6.0, 7.0, 8.0, 6.0, 5.0, 4.0]}
    assert line == {"x": [1.0, 2.0, 3.0], "y": [5.0, 6.0, 7.0]}


@pytest.mark.parametrize(
    ("metric", "is_reversed"), [("accuracy", False), ("ece", True), ("nll", True), ("auroc", False)]
)
def test_the_better_end_of_a_scale_of_colours_is_the_same_for_every_metric(metric, is_reversed):
    axis = color_axis(sweep_info(), metric, [1.0, 2.0], np.array([False, False]))
    assert axis == {"color": [1.0, 2.0], "cmin": 1.0, "cmax": 2.0, "reversescale": is_reversed}


def test_the_axis_of_a_slice_has_a_margin_on_both_sides(tmp_path):
    records = [trial(number, 70 + number / 10, params={"fpp.gamma2": 10 * number}) for number in range(11)]
    written = write_sweep(tmp_path, sweep_info(), records)
    write_report(written, pages=True)
    low, high = plots(written.report)["slice-0"]["layout"]["xaxis"]["range"]
    assert low < 0 < 100 < high
    assert high - 100 == pytest.approx(-low)


def test_the_range_of_a_slice_leaves_out_outliers(tmp_path):
    records = [trial(number, 70 + number / 10, params={"fpp.gamma2": number}) for number in range(20)]
    written = write_sweep(tmp_path, sweep_info(), [*records, trial(20, 3.0, params={"fpp.gamma2": 20})])
    write_report(written, pages=True)
    choice = plots(written.report)["slice-0"]["choices"]["accuracy"]
    assert choice["traces"][0]["y"][-1] == 3.0
    assert choice["zoom"]["yaxis"][0] > 60


def test_the_heat_map_shows_gains_over_the_datasets_median(tmp_path):
    records = [trial(number, 70 + number, test=False) for number in range(5)]
    written = write_sweep(tmp_path, sweep_info(), records)
    write_report(written, pages=True)
    heat = plots(written.report)["heat"]
    ((trace,), _), *_ = drawn_choices(heat)
    assert trace["y"][0] == "trial-0004"
    assert trace["z"] == [[gain] * 3 for gain in (2.0, 1.0, 0.0, -1.0, -2.0)]
    assert trace["text"][0] == ["73.00", "74.00", "75.00"]


def write_sweep_with_artifacts(path):
    """Write a trial with all contents of a section, two baselines, a trial without files and a failed trial."""
    measured = trial(0, 69.0, 5.0, params={"fpp.gamma2": 0.15}, test=True)
    written = write_sweep(path, sweep_info(), [*all_baselines()[:2], measured, trial(1), failed(2)])
    folder = written.artifacts("trial-0000")
    (folder / "prompts").mkdir(parents=True)
    (folder / "prompts" / "digits.seed0.safetensors").write_bytes(b"prompt")
    (folder / "log.txt").write_text("\n".join(f"line {number}" for number in range(9)))
    confidences = Confidences(np.array([0.91, 0.93, 0.42], np.float32), np.array([True, False, True]))
    stats = BlockStats.of("digits", ["a", "b", "c"], confidences, np.zeros(3), np.zeros(3))
    (folder / "test").mkdir()
    table = {("digits", 0): stats, ("digits", 1): stats}
    (folder / "test" / "block_stats.npz").write_bytes(to_bytes(table))
    write_reliability(folder / "test", table)
    write_report(written, pages=True)
    return written


def test_each_trial_has_a_section_with_its_settings_numbers_diagrams_log_and_files(tmp_path):
    written = write_sweep_with_artifacts(tmp_path)
    page = (written.report / "sweep.html").read_text()
    trials = page_data(written.report)["trials"]
    assert [name for name in trials if f'<section class="trial" id="section-{name}"' in page] == list(trials)
    assert set(trials) == {record.name for record in written.trials()}
    section = trials["trial-0000"]
    assert section["settings"][0] == ["fpp.gamma2", "0.15"]
    assert "views.count" in dict(section["settings"])  # it is not searched, but the method reads it
    assert section["numbers"]["test"][0][:3] == ["", "accuracy", "ece"]
    averages = section["numbers"]["test"][-1]
    assert averages[:2] == ["average", "68.30±0.31"]
    assert section["diagrams"] == {"val": {}, "test": {"digits": "8 2 2 420,18 4 2 920"}}
    assert section["log"] == [f"line {number}" for number in range(4, 9)]
    assert section["prompts"] == ["artifacts/trial-0000/prompts/digits.seed0.safetensors"]
    for name, other in trials.items():
        if name.startswith("trial-"):
            assert re.search(rf"evaluate --trial \S*/{name}$", other["repeat"])
    assert yaml.safe_load(section["yaml"])["config"] == dict(written.trial("trial-0000").config)
    assert trials["trial-0002"]["reason"] == "FloatingPointError: non-finite objectives ['ece']"
    assert trials["trial-0000"]["reason"] == ""


def test_sections_contain_no_text_of_files_outside_the_sweep(tmp_path):
    written = write_sweep(tmp_path, sweep_info(), [trial(0)])
    (tmp_path / "secret").write_text("not the sweep's")
    written.artifacts("trial-0000").mkdir(parents=True)
    for name in ("log.txt", "prompts"):
        (written.artifacts("trial-0000") / name).symlink_to(tmp_path / "secret")
    (written.artifacts("trial-0000") / "val").symlink_to(tmp_path)
    write_report(written, pages=True)
    section = page_data(written.report)["trials"]["trial-0000"]
    assert (section["log"], section["prompts"], section["diagrams"]) == ([], [], {"val": {}})


def test_trials_are_sorted_by_merit_with_their_settings_beside_the_name(tmp_path):
    dominated, best = trial(0, 60.0, 9.0), trial(1, 72.0, 3.0)
    broken = trial(2, 73.0, constraints={"ece": 1.0})
    written = write_sweep(tmp_path, sweep_info(), [*all_baselines()[:1], dominated, best, broken, failed(3)])
    write_report(written, pages=True)
    body = (written.report / "sweep.html").read_text().partition('<table id="all-trials">')[2].partition("</table>")[0]
    heads = re.findall(r"<th[^>]*>([^<]*)</th>", body.partition("</thead>")[0])
    assert heads[:4] == ["trial", "fpp.gamma2", "fpp.class_var", "accuracy"]
    assert re.findall(r'data-trial="(.*?)"', body) == [
        "trial-0001",
        "trial-0000",
        "trial-0002",
        "baseline-zero_shot",
        "trial-0003",
    ]


def test_intervals_of_the_front_are_inside_the_frame(folder):
    front = plots(folder)["front-0"]
    (members,) = (trace for trace in front["traces"] if trace.get("name") == "front")
    for axis, values in (("xaxis", members["x"]), ("yaxis", members["y"])):
        if axis in front["zoom"]:
            low, high = front["zoom"][axis]
            assert all(low <= value <= high for value in values)
    assert is_in_range([1.0, 1.1, 1.2, 1.3, 50.0], [0.4, 1.5]) == (True, True, False)


def is_in_range(xs, kept):
    """Return, for each kept value and for the last point, if the range of the plot contains it."""
    trace = {"mode": "markers", "x": xs, "y": [0.0] * len(xs), "customdata": [str(x) for x in xs]}
    low, high = without_outliers(Plot(name="made", traces=[trace]), [(x, 0.0) for x in kept]).zoom["xaxis"]
    return (*(low <= value <= high for value in kept), low <= xs[-1] <= high)


def test_hostile_texts_are_escaped(tmp_path):
    page = (write_page(tmp_path, "hostile") / "sweep.html").read_text()
    page_without_our_scripts = re.sub(r"<script>.*?</script>\s*(?=<script>|</body>)", "", page, flags=re.S)
    assert "&lt;/script&gt;&lt;script&gt;" in page_without_our_scripts
    assert "<img" not in page_without_our_scripts
    assert "</script><script>document" not in page_without_our_scripts


def test_a_record_of_any_name_breaks_no_part_of_the_page_and_is_drawn_as_text(tmp_path):
    names = ["page-data", "plotly", "front-0", "<b>bold"]
    records = [trial(number, name=name, test=True) for number, name in enumerate(names)]
    written = write_sweep(tmp_path, sweep_info(), records)
    write_report(written, pages=True)
    page = (written.report / "sweep.html").read_text()
    for name in ("page-data", "plotly", "front-0"):
        assert page.count(f'id="{name}"') == 1
    for plot in plots(written.report).values():
        for trace in plot["traces"]:
            assert "%{customdata}" not in trace.get("hovertemplate", "")
            texts = [text for text in trace.get("text", ()) if isinstance(text, str)]
            assert "<b>bold" not in " ".join(texts)


def test_infeasible_trials_are_drawn_and_failed_ones_have_their_reason(folder):
    front = plots(folder)["front-0"]
    (broken,) = (trace for trace in front["traces"] if trace.get("name") == "break a constraint")
    assert broken["customdata"]
    assert "non-finite objectives" in (folder / "sweep.html").read_text()


def test_stopped_and_waiting_trials_are_counted_and_stopped_ones_have_a_reason(tmp_path):
    stopped = failed(1, "lower after 2 of 5 datasets", state="stopped")
    written = write_sweep(tmp_path, sweep_info(), [trial(0), stopped, failed(2, None, state="waiting")])
    write_report(written, pages=True)
    page = (written.report / "sweep.html").read_text()
    assert "1 trial finished, 0 failed, 0 running, 1 stopped, 1 waiting; 1 on the front" in page
    assert "lower after 2 of 5 datasets" in page


def test_a_condition_leaves_a_gap_in_the_parallel_coordinates(folder):
    parallel = plots(folder)["parallel"]
    axes = {axis["label"]: axis for axis in parallel["traces"][0]["dimensions"]}
    weight = "adapt.pen…y_weight"  # shortened to the width of an axis
    assert list(axes) == ["fpp.context_var", "fpp.gamma2", "method", weight, "accuracy", "ece"]
    assert axes[weight]["ticktext"][0] == "not set"
    assert axes[weight]["values"].count(axes[weight]["tickvals"][0]) > 5
    assert -5 <= min(axes["fpp.context_var"]["values"]) <= max(axes["fpp.context_var"]["values"]) <= -2  # log10


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium")
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_works_in_a_sandboxed_frame_of_a_browser(tmp_path, scheme):
    playwright = pytest.importorskip("playwright.sync_api")
    page_text = (write_page(tmp_path, "hostile") / "sweep.html").read_text()
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        window = browser.new_page(viewport={"width": 390, "height": 800}, color_scheme=scheme)
        errors, requests = [], []
        window.on("pageerror", lambda error: errors.append(str(error)))
        window.on("request", lambda request: requests.append(request.url))
        window.set_content('<title>outside</title><iframe sandbox="allow-scripts" width="390" height="780"></iframe>')
        window.eval_on_selector("iframe", "(frame, text) => frame.srcdoc = text", page_text)
        frame = window.frame_locator("iframe")
        for name in ("front-0", "parallel", "slice-0", "hypervolume"):
            frame.locator(f"#{name}").scroll_into_view_if_needed()
            frame.locator(f"#{name} svg.main-svg").first.wait_for(timeout=60_000)
        frame.locator("#front-0 .scatterlayer .trace").last.locator("path.point").first.scroll_into_view_if_needed()
        spot = frame.locator("#front-0 .scatterlayer path.point").last.bounding_box()
        window.mouse.move(spot["x"] + spot["width"] / 2, spot["y"] + spot["height"] / 2)
        assert "trial-00" in frame.locator("#front-0 .hoverlayer .hovertext").text_content(timeout=20_000)
        window.mouse.down()
        window.mouse.up()
        assert "views.count" in frame.locator("section.trial dl").text_content(timeout=20_000)
        head = frame.locator("th[aria-sort]").nth(1)
        head.locator("button").click()
        assert head.get_attribute("aria-sort") == "ascending"
        frame.locator("[data-filter=all-trials]").fill("accuracy>75 state=complete")
        assert frame.locator("output[for=all-trials]").text_content() == "6 of 13"
        assert frame.locator("#all-trials tbody tr:visible").count() == 6
        frame.get_by_role("link", name="trial-0007").last.press(
            "Enter"
        )  # the frame has no address, because its text was set
        assert frame.locator("#section-trial-0007 h3").text_content() == "trial-0007Close"
        frame.get_by_role("button", name="Close").press("Enter")
        assert not frame.locator("section.trial:visible").count()
        inside = window.frames[1]
        assert inside.title() == "perturb-20261120-185232"
        assert inside.evaluate("document.documentElement.scrollWidth <= innerWidth")
        paper = inside.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (paper == "rgb(255, 255, 255)") == (scheme == "light")
        window.emulate_media(media="print", color_scheme=scheme)  # printing draws the plots again, with black text
        title = 'getComputedStyle(document.querySelector("#front-0 .xtitle")).fill == "rgb(29, 33, 39)"'
        inside.wait_for_function(title, timeout=20_000)
        assert (errors, [url for url in requests if url.startswith("http")]) == ([], [])
        browser.close()


def test_numbers_of_a_trial_begin_with_the_objectives_and_the_metrics_of_every_table(tmp_path):
    average = {"accuracy": 70.0, "mce": 30.0, "sce": 2.0, "ece": 5.0, "brier": 0.4, "nll": 0.9, "ece@isotonic": 4.0}
    result = replace(split_result(), average=average, datasets={"digits": average}, deviation={})
    objectives = (NLL,)
    record = trial(0, objectives=objectives, results={"val": result}, values=[0.9])
    written = write_sweep(tmp_path, sweep_info(objectives), [record])
    write_report(written, pages=True)
    heads = page_data(written.report)["trials"]["trial-0000"]["numbers"]["val"][0]
    assert heads == ["", "nll", "accuracy", "ece", "ece@isotonic", "mce", "sce", "brier"]


def test_numbers_of_a_trial_have_the_cost_that_is_an_objective(tmp_path):
    record = trial(0, 70, 5, values=[70.0, 45.0])
    written = write_sweep(tmp_path, sweep_info((ACCURACY, SECONDS), reference=None), [record])
    write_report(written, pages=True)
    heads, *_, averages = page_data(written.report)["trials"]["trial-0000"]["numbers"]["val"]
    assert dict(zip(heads, averages, strict=True))["seconds"] == "45.0"


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium")
def test_the_label_of_a_diagram_has_the_numbers_of_the_table_and_its_bars_those_of_the_file(tmp_path):
    """The diagram pools all seeds, and the ECE of the pool differs from the mean over seeds in the table."""
    playwright = pytest.importorskip("playwright.sync_api")
    written = write_sweep_with_artifacts(tmp_path)
    rows = page_data(written.report)["trials"]["trial-0000"]["numbers"]["test"]
    numbers = {dataset: f"accuracy {accuracy}, ece {ece}" for dataset, accuracy, ece, *_ in rows}
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        window = browser.new_page()
        window.goto(f"{(written.report / 'sweep.html').as_uri()}#trial-0000")
        diagrams = window.locator("#section-trial-0000 .diagrams svg")
        diagrams.first.wait_for(timeout=60_000)
        labels = diagrams.evaluate_all("all => all.map(one => one.getAttribute('aria-label'))")
        read = "text => Object.entries(binsOf(text)).filter(([index, bin]) => bin.images)"
        bins = window.evaluate(read, page_data(written.report)["trials"]["trial-0000"]["diagrams"]["test"]["digits"])
        assert bins == [
            ["8", {"images": 2, "correct": 2, "confidence": 0.84}],
            ["18", {"images": 4, "correct": 2, "confidence": 3.68}],
        ]
        assert window.evaluate(read, "") == window.evaluate(read, None) == []  # None: a baseline lacks the dataset
        browser.close()
    assert labels == [f"trial-0000 on all datasets: {numbers['average']}", f"trial-0000 on digits: {numbers['digits']}"]


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium")
def test_a_link_opens_a_trial_and_a_selection_applies_to_charts_and_table(tmp_path):
    playwright = pytest.importorskip("playwright.sync_api")
    page = write_page(tmp_path, "two objectives") / "sweep.html"
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        window = browser.new_page(viewport={"width": 1280, "height": 900}, accept_downloads=True)
        window.goto(f"{page.as_uri()}#trial-0007")
        section = window.locator("#section-trial-0007")
        section.wait_for(timeout=60_000)
        assert window.locator("section.trial:visible").count() == 1
        with window.expect_download() as download:
            section.get_by_role("button", name="Download YAML").click()
        assert yaml.safe_load(Path(download.value.path()).read_text())["config"]["method"]
        window.goto(page.as_uri())
        window.locator("#front-0 svg.main-svg").first.wait_for(timeout=60_000)
        box = window.locator("#front-0 .nsewdrag").first.bounding_box()
        window.mouse.move(box["x"] + 2, box["y"] + 2)
        window.mouse.down()
        window.mouse.move(box["x"] + box["width"] * 0.6, box["y"] + box["height"] * 0.6, steps=5)
        window.mouse.up()
        rows = window.locator("#all-trials tbody tr:visible")
        window.locator(".marks").wait_for(timeout=20_000)
        marked = sorted(window.evaluate("[...marked]"))
        assert sorted(rows.locator("th").evaluate_all("all => all.map(one => one.dataset.trial)")) == marked
        assert 0 < len(marked) < 46
        faint = "document.getElementById('front-0').data.some(trace => trace.selectedpoints)"
        window.wait_for_function(faint, timeout=20_000)
        window.locator("#parallel").scroll_into_view_if_needed()
        window.wait_for_function("document.getElementById('parallel').data", timeout=20_000)
        lines = window.evaluate("document.getElementById('parallel').data[0].dimensions[0].values.length")
        assert lines == sum(name.startswith("trial-") for name in marked)
        window.get_by_role("button", name="Show all trials").click()
        assert rows.count() == 46
        window.locator("[data-filter=all-trials]").fill("accuracy>70")
        window.wait_for_function("marked && marked.size < 46", timeout=20_000)
        window.get_by_text("Columns", exact=True).click()
        window.get_by_label("fpp.gamma2", exact=True).uncheck()
        with window.expect_download() as download:
            window.get_by_role("button", name="Download CSV").click()
        lines = Path(download.value.path()).read_text().splitlines()
        assert "fpp.gamma2" not in lines[0]
        assert len(lines) == 1 + rows.count()
        browser.close()


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium")
def test_a_reader_changes_plots_and_the_page_of_a_running_sweep_reloads(tmp_path):
    playwright = pytest.importorskip("playwright.sync_api")
    information, records = sweep_info(state="running"), [*searched_trials(), trial(40, 3.0, 60.0)]
    written = write_sweep(tmp_path, information, records)
    with written.locked():
        write_report(written, pages=True)
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        window = browser.new_page(viewport={"width": 1280, "height": 900})
        window.clock.install()
        window.goto((written.report / "sweep.html").as_uri())
        window.locator("#front-0 svg.main-svg").first.wait_for(timeout=60_000)
        shown = "document.getElementById('{}').layout.{}"
        assert window.evaluate(shown.format("front-0", "xaxis.range"))[0] > 50
        window.get_by_role("button", name="Show all: 1 more").first.click()
        assert window.evaluate(shown.format("front-0", "xaxis.range"))[0] < 3
        window.locator("#slice-1").scroll_into_view_if_needed()
        window.locator("#slice-1 svg.main-svg").first.wait_for(timeout=60_000)
        window.locator("select[data-choice=slices]").select_option("ece")
        assert window.evaluate(shown.format("slice-1", "yaxis.title.text")) == "ece"
        output = window.locator("output[for=all-trials]")
        rows = window.locator("#all-trials tbody tr:visible")
        n_rows = rows.count()
        for query, answer in (("accuracy > 0", " of "), ("accuracy != 3 accuracy == 3", "0 of ")):
            window.locator("[data-filter=all-trials]").fill(query)
            assert answer in output.text_content()
        for query, problem in (
            ("acc>66", "no column acc; did you mean accuracy?"),
            ("gamma2>1", "no column gamma2; did you mean fpp.gamma2?"),
            ("acuracy>66", "no column acuracy; did you mean accuracy?"),
            ("val/accuracy>66", "no column val/accuracy; did you mean accuracy?"),
            ("nix=1", "no column nix"),
            ("accuracy > high", "high is not a number; use = for words"),
            ("accuracy >", "a comparison has a column and a value, such as accuracy>66"),
        ):
            window.locator("[data-filter=all-trials]").fill(query)
            assert (output.text_content(), rows.count()) == (problem, n_rows)
            assert window.locator(".marks").is_hidden()
        window.locator("[data-filter=all-trials]").fill("ece<4")
        window.locator("[data-filter=all-trials]").press("End")  # a key press restarts the time until the reload
        written.write_trial(trial(41, 72.0))
        with written.locked():
            write_report(written, pages=True)
        window.clock.fast_forward(50_000)
        window.locator("[data-filter=all-trials]").press("End")
        new = window.locator("[data-trial=trial-0041]").first  # the filter hides the row, but it is in the table
        window.clock.fast_forward(30_000)
        window.wait_for_timeout(2_000)  # enough for a reload to start
        assert not new.count()  # the page does not reload while the reader types
        window.clock.fast_forward(130_000)
        new.wait_for(state="attached", timeout=60_000)
        window.wait_for_function("document.querySelector('output[for=all-trials]').textContent.includes(' of ')")
        assert window.locator("[data-filter=all-trials]").input_value() == "ece<4"
        browser.close()


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium")
def test_a_printed_page_is_dark_on_white_without_controls_and_with_every_trial(tmp_path):
    """A reader in dark mode prints the page."""
    playwright = pytest.importorskip("playwright.sync_api")
    page = write_page(tmp_path, "two objectives") / "sweep.html"
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        window = browser.new_page(color_scheme="dark", viewport={"width": 1280, "height": 900})
        window.goto(page.as_uri())
        window.locator("#front-0 svg.main-svg").first.wait_for(timeout=60_000)
        rows = window.locator("#all-trials tbody tr")
        query_field = window.locator("[data-filter=all-trials]")
        assert query_field.is_visible()
        background = "getComputedStyle(document.body).backgroundColor"
        assert window.evaluate(background) != "rgb(255, 255, 255)"
        window.emulate_media(media="print")
        assert window.evaluate(background) == "rgb(255, 255, 255)"
        assert window.evaluate("getComputedStyle(document.body).color") == "rgb(29, 33, 39)"
        assert query_field.is_hidden()
        table_height = window.evaluate("document.querySelector('#all-trials').offsetHeight")
        shown_height = window.evaluate("document.querySelector('#all-trials').parentElement.offsetHeight")
        assert rows.count() > 20
        assert shown_height >= table_height  # nothing of the table is hidden below a scroll bar
        browser.close()


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None or AXE is None, reason="no Chromium, or AXE_CORE does not name axe.min.js")
@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 1280), ("light", 390)])
def test_axe_finds_no_violation_on_a_page_with_an_open_trial(tmp_path, scheme, width):
    playwright = pytest.importorskip("playwright.sync_api")
    page = write_page(tmp_path, "two objectives") / "sweep.html"
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        viewport = {"width": width, "height": 900}
        context = browser.new_context(
            color_scheme=scheme, viewport=viewport, bypass_csp=True
        )  # the page's content security policy would refuse axe's script
        window = context.new_page()
        window.goto(f"{page.as_uri()}#trial-0007")
        window.locator("#section-trial-0007").wait_for(timeout=60_000)
        window.evaluate("document.querySelectorAll('details').forEach(details => { details.open = true; })")
        window.evaluate("Object.keys(plots).forEach(name => { drawn.add(name); draw(name); })")
        window.locator("#front-0 svg.main-svg").first.wait_for()
        window.evaluate(Path(AXE).read_text())
        violations = window.evaluate("axe.run().then(result => result.violations)")
        browser.close()
    assert [(violation["id"], violation["nodes"][0]["html"]) for violation in violations] == []


def test_sentences_of_the_page_are_true_of_few_and_of_infeasible_trials(tmp_path):
    constant = {"fpp.gamma2": 3.0}
    records = [trial(0, params=constant), trial(1, params=constant), failed(2, params={"fpp.gamma2": 9.0})]
    one = write_sweep(tmp_path, sweep_info(name="one"), records[:1])
    two = write_sweep(tmp_path, sweep_info(name="two"), records)
    for written, is_said in ((one, False), (two, True)):
        write_report(written, pages=True)
        page = (written.report / "sweep.html").read_text()
        assert ("The same in all finished trials: fpp.gamma2 = 3." in page) == is_said
        assert "The same in all trials" not in page
    assert "Hollow markers are the same trials on later splits, at the end of a solid line in the final stage." in page
    broken = write_page(tmp_path, "all infeasible")
    page = (broken / "sweep.html").read_text()
    assert "No trial that finished keeps all constraints." in page
    assert "No trial is complete." not in page
    assert "2 trials finished, 0 failed, 0 running; 0 on the front, 2 with a broken constraint." in page


def test_the_explanation_of_a_curve_says_how_many_trials_its_model_uses(folder):
    assert "a Gaussian process of at most 150 finished trials" in (folder / "sweep.html").read_text()


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium")
def test_a_table_of_one_trial_can_be_filtered_and_saved_and_a_variant_has_its_own_outliers(tmp_path):
    playwright = pytest.importorskip("playwright.sync_api")
    single = write_page(tmp_path, "one trial") / "sweep.html"
    records = [trial(number, 70 + number / 10, 5 - number / 20) for number in range(20)]
    far = write_sweep(tmp_path, sweep_info(name="far"), [*records, trial(20, 3.0, 4.5, name="page-data")])
    write_report(far, pages=True)
    errors = []
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        window = browser.new_page()
        window.on("pageerror", lambda error: errors.append(error))
        window.goto(single.as_uri())
        window.get_by_role("button", name="Download CSV").wait_for(timeout=20_000)
        window.locator("[data-filter=all-trials]").fill("accuracy>99")
        window.get_by_text("0 of 1", exact=True).wait_for(timeout=20_000)
        window.goto(f"{(far.report / 'sweep.html').as_uri()}#page-data")
        window.locator("#section-page-data h3").wait_for(timeout=60_000)
        button = window.locator("[data-show-all=slices]")
        assert button.text_content() == "Show all: 1 more"
        window.locator("#slice-0").scroll_into_view_if_needed()
        window.wait_for_function("document.getElementById('slice-0').data", timeout=20_000)
        window.locator("[data-choice=slices]").select_option("ece")
        button.wait_for(state="hidden", timeout=20_000)
        browser.close()
    assert errors == []


def test_the_page_of_a_sweep_without_a_finished_trial_says_so(tmp_path):
    folder = write_sweep(tmp_path / "sweep", sweep_info(), [])
    write_report(folder, pages=True)
    assert "No trial is complete." in (folder.report / "sweep.html").read_text()
    (plot,) = front_plots(folder.info(), statistics_of(folder, folder.info(), []))
    assert plot.placeholder == "No trial is complete."
    front = front_of(folder.info(), [])
    assert hypervolume_plot(front).placeholder == "No trial is complete."
    assert hypervolume_plot(replace(front, reference=None)).placeholder == "The sweep has no reference point."
