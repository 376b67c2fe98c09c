"""The page of a sweep and the picture of its front."""

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
from PIL import Image

from fpp_sweep.core.metrics import Confidences
from fpp_sweep.report.html import plotly_script
from fpp_sweep.report.writing import write_report
from fpp_sweep.statistics.block_stats import BlockStats
from tests.kit.measured import World, write_block_stats, write_measured_sweep
from tests.kit.names import TPT, ZERO_SHOT
from tests.kit.records import (
    ACCURACY,
    ECE,
    HOSTILE,
    NLL,
    SEARCHED_RANGES,
    SECONDS,
    all_baselines,
    baseline,
    below_floor,
    failed,
    searched_trials,
    split_result,
    sweep_info,
    sweep_with_effects,
    trial,
    write_sweep,
)

AXE = os.environ.get("AXE_CORE")  # path of axe.min.js, a file of the npm package axe-core
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
MOST_PIXELS, MOST_WORDS = 4_500, 1_200  # of the page of 16 trials in a window of 1,280 pixels
in_browser = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium")


def hostile_sweep():
    params = [{"prompt": f"{HOSTILE}{number}", HOSTILE: number % 2} for number in range(18)]
    trials = [trial(number, 70 + number, 5 + number, params=settings) for number, settings in enumerate(params)]
    info = sweep_info(versions={HOSTILE: HOSTILE}, command=HOSTILE, space={"question": HOSTILE, "params": {HOSTILE: 1}})
    return info, [*trials, failed(20, reason=HOSTILE), trial(21, name="<b>bold")]


def mixed_kinds():
    values = [None, True, "x", 2, 0.5, -1] * 3
    return [trial(number, 70 + number, params={"a": value}) for number, value in enumerate(values)]


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
    "equal trials": lambda: (sweep_info(), [trial(number, 70, 5) for number in range(18)]),
    "all infeasible": lambda: (sweep_info(), [trial(0, constraints={"ece": 1.0}), trial(1, constraints={"ece": 2.0})]),
    "all failed": lambda: (sweep_info(), [failed(0), failed(1)]),
    "nothing searched": lambda: (sweep_info(), [trial(number, params={}) for number in range(18)]),
    "mixed kinds": lambda: (sweep_info(), mixed_kinds()),
    "hostile": hostile_sweep,
}


def write_page(path, name):
    """Write one of the sweeps above, and return the folder of its report."""
    return report_of(path, *SWEEPS[name]())


def report_of(path, info, records):
    folder = write_sweep(path, info, records)
    write_report(folder, pages=True)
    return folder.report


def text_of(report):
    return (report / "sweep.html").read_text()


def page_data(report):
    """Return the data that the page's scripts read: charts and sections of trials, by name."""
    packed = re.search(r'<script type="text/plain" id="page-data">(.*?)</script>', text_of(report))[1]
    return json.loads(gzip.decompress(base64.b64decode(packed)))


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    return write_page(tmp_path_factory.mktemp("sweeps"), "two objectives")


# --- the file -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SWEEPS)
def test_every_sweep_has_a_picture_and_a_page_whose_charts_plotly_accepts(tmp_path, name):
    graph_objects = pytest.importorskip("plotly.graph_objects")
    report = write_page(tmp_path, name)
    Image.open(report / "front.png").verify()
    charts = page_data(report)["plots"]
    assert set(charts) == set(re.findall(r'class="plot"[^>]*? id="([\w-]+)"', text_of(report)))
    for chart in charts.values():
        graph_objects.Figure(data=chart["traces"], layout=chart["layout"])  # raises for an unknown or bad property


def test_the_page_is_one_file_that_loads_no_other_and_may_connect_to_nothing(report):
    page = re.sub(r"<script.*?</script>", "", text_of(report), flags=re.S)
    assert not re.search(r'(src|href)\s*=(?!"#)|url\(|@import', page)
    assert "default-src 'none'" in page
    assert "unsafe-eval" not in page


def test_plotlys_script_is_read_without_importing_plotly():
    assert plotly_script() == pytest.importorskip("plotly.offline").get_plotlyjs()


def test_only_pages_with_charts_contain_plotly(tmp_path, report):
    assert 1_500_000 < (report / "sweep.html").stat().st_size < 2_600_000
    assert (write_page(tmp_path, "nothing yet") / "sweep.html").stat().st_size < 26_000


def test_hostile_texts_are_escaped_on_the_page_and_in_the_sections_of_trials(tmp_path):
    report = write_page(tmp_path, "hostile")
    page = re.sub(r"<script>.*?</script>\s*(?=<script|</body>)", "", text_of(report), flags=re.S)
    sections = page_data(report)["trials"]
    for text in (page, *sections.values()):
        assert "&lt;script&gt;" in text or "bold" in text
        assert "<img" not in text
        assert "<script>document" not in text
        assert "<b>bold" not in text
    for chart in page_data(report)["plots"].values():
        for trace in chart["traces"]:
            assert "<b>bold" not in " ".join(trace.get("text") or ())


# --- what it says -------------------------------------------------------------------------------------


def test_sections_follow_the_order_of_questions_and_can_be_linked(report):
    page = text_of(report)
    assert re.findall(r"<h2>(.*?)</h2>", page) == ["Answer", "Front", "Trials", "What each setting does", "Origin"]
    links = re.findall(r'<a href="#(\w+)"', page.partition("</nav>")[0])
    assert links == ["answer", "front", "trials", "settings", "origin"]
    assert all(f'id="{link}"' in page for link in links)
    for legend in ("Blue rows: ", "a red bar is ", "triangles at the edge are "):
        assert legend in page


def test_the_page_of_a_sweep_without_a_finished_trial_says_so(tmp_path):
    assert "No trial is complete." in text_of(write_page(tmp_path / "none", "nothing yet"))
    page = text_of(write_page(tmp_path / "broken", "all infeasible"))
    assert "2 trials finished, 0 failed, 0 running; 0 on the front, 2 with a broken constraint." in page


def test_the_page_of_a_running_sweep_reloads_itself_and_shows_its_progress(tmp_path, report):
    states = [failed(number, None, state="running") for number in (3, 4)]
    records = [trial(0), trial(1), failed(2), *states]
    running = write_sweep(tmp_path, sweep_info(state="running", space={"search": {"trials": 16}}), records)
    with running.locked():
        write_report(running, pages=True)
    assert 'data-reload-seconds="60"' in text_of(running.report)
    line = re.search(r'<p class="lead">(3 trials ended.*?)</p>', text_of(running.report))[1]
    now = f"{datetime.now(UTC):%Y-%m-%d}"
    assert re.fullmatch(rf"3 trials ended, as of {now} \d\d:\d\d UTC, 19 % done, about 5:25 left", line)
    assert 'data-reload-seconds="0"' in text_of(report)
    assert ", as of" not in text_of(report)


def test_the_page_of_a_sweep_whose_driver_was_killed_says_that_it_stopped(tmp_path):
    info = sweep_info(state="running", space={"search": {"trials": 16}})
    page = text_of(report_of(tmp_path, info, [trial(0)]))
    assert 'data-reload-seconds="0"' in page
    assert re.search(r">stopped without notice; started 2026-11-20 .* UTC, last change 20\d\d-.* UTC\. ", page)
    for text in (", as of", "at this rate", "running; started"):
        assert text not in page


# --- charts -------------------------------------------------------------------------------------------


def test_every_finished_trial_is_inside_the_axes_of_every_chart(tmp_path):
    records = [trial(number, 70 + number / 10, 5 - number / 20) for number in range(18)]
    far = [below_floor(18, 3.0, 60.0), below_floor(19, 20.0, 0.1)]
    report = report_of(tmp_path, sweep_info(), [baseline(ZERO_SHOT, 66.0, 6.0), *records, *far])
    charts = page_data(report)["plots"]
    assert {name.partition("-")[0] for name in charts} == {"front", "setting"}
    for chart in charts.values():
        symbols = {}
        for trace in chart["traces"]:
            if trace["mode"] != "markers" or "customdata" not in trace:
                continue
            all_symbols = np.broadcast_to(trace["marker"]["symbol"], len(trace["x"]))
            for name, y, symbol in zip(trace["customdata"], trace["y"], all_symbols, strict=True):
                symbols[name] = symbol
                low, high = chart["layout"]["yaxis"]["range"]
                assert low < y < high
        assert set(symbols) >= {record.name for record in (*records, *far)}
        triangles = [name for name, symbol in symbols.items() if symbol == "triangle-down"]
        assert triangles == ["trial-0018", "trial-0019"]


def test_baselines_differ_in_color_and_marker_and_hollow_markers_show_the_test_split(report):
    traces = page_data(report)["plots"]["front-0"]["traces"]
    names = [record.label for record in all_baselines()]
    markers = [trace["marker"] for trace in traces if trace.get("name") in names]
    assert len({look["symbol"] for look in markers}) == len({look["color"] for look in markers}) == len(names)
    hollow = [trace for trace in traces if "-open" in str(trace.get("marker", {}).get("symbol"))]
    ends = {trace["customdata"][1]: trace["x"][1] for trace in hollow if trace["x"]}
    expected = {record.name: record.results["test"].average["accuracy"] for record in all_baselines()}
    assert ends == pytest.approx(expected)


@pytest.mark.parametrize("count", [15, 16])
def test_settings_have_charts_from_16_finished_trials_on(tmp_path, count):
    report = report_of(tmp_path, sweep_info(), [trial(number) for number in range(count)])
    assert ("What each setting does" in text_of(report)) == (count == 16)
    names = [name for name in page_data(report)["plots"] if name.startswith("setting-")]
    assert len(names) == (4 if count == 16 else 0)  # two settings, two objectives


def test_the_setting_that_makes_the_best_trials_comes_first_with_its_importance(tmp_path):
    report = report_of(tmp_path, *sweep_with_effects())
    charts = page_data(report)["plots"]
    for index, important in enumerate("ac"):
        titles = [charts[f"setting-{index}-{rank}"]["layout"]["xaxis"]["title"]["text"] for rank in range(4)]
        assert titles[0].startswith(f"{important}, importance ")
        shares = [float(title.rpartition(" ")[2]) for title in titles]
        assert shares == sorted(shares, reverse=True)
        assert sum(shares) == pytest.approx(1, abs=0.02)


def test_axes_of_settings_have_choices_logarithms_and_multiples_of_published_variances(tmp_path):
    records = []
    for number in range(18):
        params = {"fpp.context_var": 0.005 * 10.0 ** -(number % 3), "method": ["tpt", "ctpt"][number % 2]}
        if number % 2:
            params["adapt.penalty_weight"] = number
        records.append(trial(number, 70 + number % 5, params=params))
    charts = page_data(report_of(tmp_path, sweep_info(ranges=SEARCHED_RANGES), records))["plots"]
    axes, points = {}, {}
    for name, chart in charts.items():
        if name.startswith("setting-0"):
            axis = chart["layout"]["xaxis"]
            key = axis["title"]["text"].partition(",")[0]
            axes[key], points[key] = axis, chart["traces"][-1]["x"]
    assert (axes["fpp.context_var"]["type"], axes["fpp.context_var"]["tickprefix"]) == ("log", "x")
    assert sorted(set(points["fpp.context_var"])) == pytest.approx([0.01, 0.1, 1.0])
    assert (axes["method"]["type"], set(points["method"])) == ("category", {"tpt", "ctpt"})
    assert points["adapt.penalty_weight"] == [number if number % 2 else None for number in range(18)]


def test_settings_that_do_not_vary_are_named_in_a_sentence(report):
    assert "The same in all finished trials: fpp.draws = 4." in text_of(report)


# --- sections of trials -------------------------------------------------------------------------------


def test_a_section_begins_with_numbers_and_has_diagram_settings_command_log_and_prompts(tmp_path):
    measured = trial(0, 69.0, 5.0, params={"fpp.gamma2": 0.15}, test=True)
    written = write_sweep(tmp_path, sweep_info(), [*all_baselines()[:2], measured, failed(2)])
    folder = written.artifacts("trial-0000")
    (folder / "prompts").mkdir(parents=True)
    (folder / "prompts" / "digits.seed0.safetensors").write_bytes(b"prompt")
    (folder / "log.txt").write_text("\n".join(f"line {number}" for number in range(9)))
    confidences = Confidences(np.array([0.91, 0.93, 0.42], np.float32), np.array([True, False, True]))
    stats = BlockStats.of("digits", ["a", "b", "c"], confidences, np.zeros(3), np.zeros(3))
    write_block_stats(written, "trial-0000", "test", {("digits", 0): stats, ("scenes", 1): stats})
    write_report(written, pages=True)
    sections = page_data(written.report)["trials"]
    assert set(sections) == {record.name for record in written.trials()}
    section = sections["trial-0000"]
    titles = re.findall(r"<h4>(.*?)</h4>", section)
    assert titles == ["Numbers on val", "Numbers on test", "Reliability on test, all datasets and seeds together",
                      "Settings", "Repeat it", "Last lines of its log"]  # fmt: skip
    averages, deviations = re.findall(r'row">(?:average|standard deviation over seeds)</th>(.*?)</tr>', section)[-2:]
    assert averages.startswith("<td>68.30</td><td>5.00</td>")
    assert deviations.startswith("<td>0.31</td><td>0.12</td>")
    bars = re.findall(r'class="accuracy" x="([\d.]+)" y="([\d.]+)"', section)
    assert bars == [("40.0", "0.0"), ("90.0", "50.0")]
    assert "<dt>fpp.gamma2</dt><dd>0.15</dd>" in section
    assert "<dt>views.count</dt>" in section  # it is not searched, but the method reads it
    assert re.search(r"evaluate --trial \S*/trial-0000</pre>", section)
    assert "line 4\nline 5\nline 6\nline 7\nline 8</pre>" in section
    assert "artifacts/trial-0000/prompts/digits.seed0.safetensors" in section
    assert "FloatingPointError: non-finite objectives [&#39;ece&#39;]" in sections["trial-0002"]


def test_numbers_of_a_trial_begin_with_the_objectives_and_have_their_costs(tmp_path):
    average = {"accuracy": 70.0, "mce": 30.0, "sce": 2.0, "ece": 5.0, "brier": 0.4, "nll": 0.9, "ece@isotonic": 4.0}
    result = replace(split_result(), average=average, datasets={"digits": average}, deviation={})
    record = trial(0, results={"val": result}, values=[0.9, 45.0])
    report = report_of(tmp_path, sweep_info((NLL, SECONDS), reference=None), [record])
    section = page_data(report)["trials"]["trial-0000"]
    heads = re.findall(r'<th scope="col">(.*?)</th>', section)
    assert heads == ["nll", "seconds", "accuracy", "ece", "ece@isotonic", "mce", "sce", "brier"]
    assert '<th class="text" scope="row">average</th><td>0.9000</td><td>45.0</td>' in section


def test_sections_contain_no_text_of_files_outside_the_sweep(tmp_path):
    written = write_sweep(tmp_path, sweep_info(), [trial(0)])
    (tmp_path / "secret").write_text("not the sweep's")
    written.artifacts("trial-0000").mkdir(parents=True)
    for name in ("log.txt", "prompts"):
        (written.artifacts("trial-0000") / name).symlink_to(tmp_path / "secret")
    write_report(written, pages=True)
    section = page_data(written.report)["trials"]["trial-0000"]
    assert "not the sweep" not in section
    assert "its log" not in section


# --- in a browser -------------------------------------------------------------------------------------


@pytest.fixture
def browser():
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.mark.slow
@in_browser
def test_the_page_of_16_trials_is_short(tmp_path, browser):
    sides = {ZERO_SHOT: (0.6, 0.2), TPT: (0.62, 0.3)}
    sides |= {f"trial-{number:04}": (0.5 + 0.012 * number, 0.1 + 0.01 * (7 * number % 16)) for number in range(16)}
    folder = write_measured_sweep(tmp_path / "sweep", World(300), sides, ("val", "test"))
    write_report(folder, pages=True)
    window = browser.new_page(viewport={"width": 1280, "height": 900})
    window.goto((folder.report / "sweep.html").as_uri())
    window.locator("#front-0").scroll_into_view_if_needed()
    window.locator("#front-0 svg.main-svg").first.wait_for(timeout=60_000)
    assert window.evaluate("document.documentElement.scrollHeight") <= MOST_PIXELS
    assert window.evaluate("document.body.innerText.trim().split(/\\s+/).length") <= MOST_WORDS


@pytest.mark.slow
@in_browser
@pytest.mark.parametrize("scheme", [pytest.param("light", marks=pytest.mark.nightly), "dark"])
def test_the_page_works_in_a_sandboxed_frame_on_a_phone(tmp_path, browser, scheme):
    page_text = text_of(write_page(tmp_path, "hostile"))
    window = browser.new_page(viewport={"width": 390, "height": 800}, color_scheme=scheme)
    errors, requests = [], []
    window.on("pageerror", lambda error: errors.append(str(error)))
    window.on("request", lambda request: requests.append(request.url))
    window.set_content('<title>outside</title><iframe sandbox="allow-scripts" width="390" height="780"></iframe>')
    window.eval_on_selector("iframe", "(frame, text) => frame.srcdoc = text", page_text)
    frame = window.frame_locator("iframe")
    for name in ("front-0", "setting-0-0"):
        frame.locator(f"#{name}").scroll_into_view_if_needed()
        frame.locator(f"#{name} svg.main-svg").first.wait_for(timeout=60_000)
    frame.locator("[data-filter=all-trials]").fill("TRIAL-000 72.00")
    assert frame.locator("output[for=all-trials]").text_content() == "1 of 20"
    # the frame has no address, because its text was set
    frame.locator("#all-trials").get_by_role("link", name="trial-0002").press("Enter")
    frame.locator("#trial h3").get_by_text("trial-0002").wait_for(timeout=20_000)
    inside = window.frames[1]
    assert inside.title() == "perturb-20261120-185232"
    assert inside.evaluate("document.documentElement.scrollWidth <= innerWidth")
    paper = inside.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (paper == "rgb(255, 255, 255)") == (scheme == "light")
    window.emulate_media(media="print", color_scheme=scheme)  # printing draws the charts again, with black text
    title = 'getComputedStyle(document.querySelector("#front-0 .xtitle")).fill == "rgb(29, 33, 39)"'
    inside.wait_for_function(title, timeout=20_000)
    assert (errors, [url for url in requests if url.startswith("http")]) == ([], [])


@pytest.mark.slow
@in_browser
def test_a_reader_sorts_filters_and_opens_trials(tmp_path, browser):
    window = browser.new_page(viewport={"width": 1280, "height": 900})
    page = write_page(tmp_path, "two objectives") / "sweep.html"
    window.goto(f"{page.as_uri()}#trial-0007")
    window.locator("#trial h3").get_by_text("trial-0007").wait_for(timeout=60_000)
    rows = window.locator("#all-trials tbody tr:visible")
    assert rows.count() == 46
    window.locator("#all-trials").get_by_role("button", name="fpp.context_var").click()
    column = "rows => rows.map(row => row.cells[4].dataset.value).filter(value => value).map(Number)"
    values = window.locator("#all-trials tbody tr").evaluate_all(column)
    assert len(values) > 30
    assert values == sorted(values)
    window.locator("#front-0 svg.main-svg").first.wait_for(timeout=60_000)
    window.locator("[data-filter=all-trials]").fill("otpt trial")
    assert 0 < rows.count() < 46
    window.wait_for_function("document.getElementById('front-0').data.some(trace => trace.selectedpoints?.length)")
    window.locator("#front-0").scroll_into_view_if_needed()
    spot = window.locator("#front-0 .scatterlayer path.point").last.bounding_box()
    window.mouse.click(spot["x"] + spot["width"] / 2, spot["y"] + spot["height"] / 2)
    window.wait_for_function("location.hash != '#trial-0007'", timeout=20_000)


@pytest.mark.slow
@in_browser
def test_the_page_of_a_running_sweep_reloads_unless_it_is_used(tmp_path, browser):
    written = write_sweep(tmp_path, sweep_info(state="running"), searched_trials())
    with written.locked():
        write_report(written, pages=True)
    window = browser.new_page()
    window.clock.install()
    window.goto((written.report / "sweep.html").as_uri())
    window.locator("[data-filter=all-trials]").fill("trial")
    written.write_trial(trial(41, 72.0))
    with written.locked():
        write_report(written, pages=True)
    new = window.locator("[data-trial=trial-0041]").first
    window.clock.fast_forward(130_000)
    window.wait_for_timeout(2_000)  # enough for a reload to start
    assert not new.count()
    window.locator("[data-filter=all-trials]").fill("")
    window.clock.fast_forward(130_000)
    new.wait_for(state="attached", timeout=60_000)


@pytest.mark.slow
@in_browser
def test_a_printed_page_is_dark_on_white_without_controls_and_with_every_trial(tmp_path, browser):
    """A reader in dark mode prints the page."""
    window = browser.new_page(color_scheme="dark", viewport={"width": 1280, "height": 900})
    window.goto((write_page(tmp_path, "two objectives") / "sweep.html").as_uri())
    window.locator("#front-0 svg.main-svg").first.wait_for(timeout=60_000)
    query_field = window.locator("[data-filter=all-trials]")
    assert query_field.is_visible()
    window.emulate_media(media="print")
    assert window.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert window.evaluate("getComputedStyle(document.body).color") == "rgb(29, 33, 39)"
    assert query_field.is_hidden()
    table_height = window.evaluate("document.querySelector('#all-trials').offsetHeight")
    shown_height = window.evaluate("document.querySelector('#all-trials').parentElement.offsetHeight")
    assert shown_height >= table_height  # nothing of the table is hidden below a scroll bar


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None or AXE is None, reason="no Chromium, or AXE_CORE does not name axe.min.js")
@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 390)])
def test_axe_finds_no_violation_on_a_page_with_an_open_trial(tmp_path, browser, scheme, width):
    page = write_page(tmp_path, "two objectives") / "sweep.html"
    # the page's content security policy would refuse axe's script
    context = browser.new_context(color_scheme=scheme, viewport={"width": width, "height": 900}, bypass_csp=True)
    window = context.new_page()
    window.goto(f"{page.as_uri()}#trial-0007")
    window.locator("#trial h3").get_by_text("trial-0007").wait_for(timeout=60_000)
    window.evaluate("document.querySelectorAll('details').forEach(details => { details.open = true; })")
    window.wait_for_function("typeof Plotly === 'object'", timeout=60_000)
    window.evaluate("Object.keys(plots).forEach(draw)")
    window.locator("#front-0 svg.main-svg").first.wait_for(timeout=60_000)
    window.evaluate(Path(AXE).read_text())
    violations = window.evaluate("axe.run().then(result => result.violations)")
    assert [(violation["id"], violation["nodes"][0]["html"]) for violation in violations] == []
