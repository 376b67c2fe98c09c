"""The page of a reproduction, and the command that writes pages."""

import json
import re
import shutil

import pytest

from fpp_sweep.reproduce.experiments import find, load
from fpp_sweep.reproduce.output import write_reproduction
from fpp_sweep.reproduce.tables import save_experiment
from fpp_sweep.show import main
from fpp_sweep.spec.errors import InputError
from tests.kit.experiments import two_seed_result, write_experiment
from tests.kit.records import HOSTILE, sweep_info, trial, write_sweep

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
SETS = ("dtd", "eurosat", "pets")


def reproduction(path, *, model="ViT-B-16/openai", title=""):
    """Write a reproduction of three tables: the main one with a failed row, costs, and a user's own."""
    (path / "reproduction.json").write_text(json.dumps({"name": path.name, "created": 1.0}))
    numbers = {"zero_shot": (44.3, 8.5), "tpt": (46.65, 30.0), "otpt": None, "fpp": (47.0, 7.0)}

    def metrics(accuracy, ece):
        return lambda name, seed: {"accuracy": accuracy + 0.1 * seed, "ece": ece + 0.1 * seed, "sce": 1.0}

    results = {
        row: two_seed_result(SETS, metrics(*pair)) if pair else f"FloatingPointError: {title or 'not finite'}"
        for row, pair in numbers.items()
    }
    write_experiment(path / "main", find("main"), SETS, results, model=model)
    save_experiment(path / "main", find("main"), {}, ["PARTIAL: without food101, which are not there"])
    write_experiment(path / "costs", find("costs"), SETS[:1], {}, model=model)
    mine = path / "mine.yaml"
    mine.write_text(
        f"title: {json.dumps(title or 'Mine')}\ncolumns: [ece]\nrows: [{{name: a, set: {{method: tpt, prompt: x}}}}]\n"
    )
    write_experiment(
        path / "mine", load(mine), SETS[:1], {"a": two_seed_result(SETS[:1], metrics(50.0, 5.0))}, model=model
    )
    save_experiment(path / "mine", load(mine), {}, [])
    mine.unlink()
    return path


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    return write_reproduction(reproduction(tmp_path_factory.mktemp("papers"))).read_text()


def cells(page, title):
    """Return the cells of the row with this title in each table of numbers, without tags."""
    rows = re.findall(rf'<tr><th class="[^"]*" scope="row">{title}</th>(.*?)</tr>', page, flags=re.S)
    tables = [[re.sub("<[^>]+>", " ", cell).split() for cell in re.findall("<td.*?</td>", row)] for row in rows]
    return [cells for cells in tables if "paper" in cells[0] or "other" in cells[0]]


def test_a_cell_has_our_number_its_deviation_the_printed_number_and_a_mark_if_they_differ(page):
    accuracy, ece, _ = cells(page, "TPT")
    assert accuracy[0][0] == "46.70±0.07"
    assert accuracy[0][-4:-1] == ["paper", "46.7", "difference"]
    assert accuracy[0][-1] in ("+0.00", "-0.00")
    assert ece[0][-4:] == ["paper", "21.2", "difference", "+8.85*"]
    assert re.search(r'<td class="bad"[^>]*>[^<]*(<small>[^<]*</small>)*<small>difference \+8.85\*</small>', page)
    assert len(accuracy) == len(SETS) + 2  # two averages, with and without EuroSAT


def test_the_page_has_claims_settings_failures_and_commands(page):
    for text in (
        "PARTIAL: without food101, which are not there",
        "otpt has no numbers in accuracy, ece, sce: FloatingPointError: not finite",
        "model ViT-B-16/openai, datasets dtd, eurosat, pets, seeds 0, 1",
        "FPP is the most accurate on average",
        "a t test over seeds",
        "fpp.gamma2=15.0",
        "fpp-sweep show FOLDER --page",
        "mine: Mine",
    ):
        assert text in page, text
    assert page.index('id="main"') < page.index('id="costs"') < page.index('id="mine"')  # the order of --list


def test_the_page_is_one_small_file_that_loads_no_other(page):
    outside = re.sub(r"<script>.*?</script>", "", page, flags=re.S)
    assert not re.search(r"src\s*=|href=\"(?!#)|url\((?!#)|@import|unsafe-eval", outside)
    assert len(page) < 1_000_000
    assert "Plotly" not in page


def test_hostile_texts_are_escaped(tmp_path):
    page = write_reproduction(reproduction(tmp_path, title=HOSTILE)).read_text()
    assert "&lt;/script&gt;&lt;script&gt;" in page
    assert "<img" not in page
    assert "</script><script>document" not in page


def test_the_command_writes_the_page_of_a_sweep_or_a_reproduction(tmp_path, capsys):
    sweep = write_sweep(tmp_path, sweep_info(), [trial(0), trial(1, 71)])
    main([str(sweep.path), "--page"])
    assert capsys.readouterr().out.strip() == f"page: {(sweep.report / 'sweep.html').resolve().as_uri()}"
    whole = tmp_path / "whole"
    whole.mkdir()
    main([str(reproduction(whole))])  # lists the sweeps and writes nothing
    assert capsys.readouterr().out.startswith("sweep ")
    assert not (whole / "reproduction.html").exists()
    main([str(whole), "--page"])
    assert capsys.readouterr().out.strip() == f"page: {(whole / 'reproduction.html').resolve().as_uri()}"


@pytest.mark.parametrize(
    ("file", "text", "complaint"),
    [
        ("other.txt", "", "neither a sweep .*, nor a reproduction .*, nor a folder of sweeps"),
        ("reproduction.json", "{}", "has no table yet"),
    ],
)
def test_another_folder_is_refused_in_one_line(tmp_path, file, text, complaint):
    (tmp_path / file).write_text(text)
    with pytest.raises(InputError, match=complaint):
        main([str(tmp_path), "--page"])


def test_a_users_table_is_on_the_page_after_it_has_finished(tmp_path):
    (reproduction(tmp_path) / "mine" / "experiment.json").unlink()
    (tmp_path / "costs" / "experiment.json").unlink(missing_ok=True)
    page = write_reproduction(tmp_path).read_text()
    assert 'id="mine"' not in page
    assert 'id="costs"' in page


def test_a_record_that_cannot_be_read_is_named(tmp_path):
    (reproduction(tmp_path) / "mine" / "experiment.json").write_text("[")
    with pytest.raises(InputError, match=r"mine/experiment.json: not readable"):
        write_reproduction(tmp_path)


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium")
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_tables_can_be_sorted_fit_a_phone_and_print_in_black(tmp_path, scheme):
    playwright = pytest.importorskip("playwright.sync_api")
    file = write_reproduction(reproduction(tmp_path, title=HOSTILE))
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        window = browser.new_page(viewport={"width": 390, "height": 800}, color_scheme=scheme)
        errors, requests = [], []
        window.on("pageerror", lambda error: errors.append(str(error)))
        window.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
        window.on("request", lambda request: requests.append(request.url))
        window.goto(file.as_uri())
        assert window.evaluate("document.documentElement.scrollWidth <= innerWidth")
        numbers = window.locator("#main table").nth(1)
        titles = "rows => rows.map(row => row.cells[0].textContent)"
        before = numbers.locator("tbody tr").evaluate_all(titles)
        head = numbers.locator("thead tr").last.locator("th").nth(1)
        head.locator("button").click()
        assert head.get_attribute("aria-sort") == "ascending"
        ascending = numbers.locator("tbody tr").evaluate_all(titles)
        assert ascending[-1] == "FPP"
        head.locator("button").focus()
        window.keyboard.press("Enter")
        assert head.get_attribute("aria-sort") == "descending"
        assert numbers.locator("tbody tr").evaluate_all(titles) == ascending[::-1]
        window.keyboard.press("Space")
        assert (head.get_attribute("aria-sort"), numbers.locator("tbody tr").evaluate_all(titles)) == ("none", before)
        paper = "getComputedStyle(document.body).backgroundColor"
        assert (window.evaluate(paper) == "rgb(255, 255, 255)") == (scheme == "light")
        window.emulate_media(media="print", color_scheme=scheme)
        assert window.evaluate(paper) == "rgb(255, 255, 255)"
        assert window.evaluate("getComputedStyle(document.body).color") == "rgb(29, 33, 39)"
        window.set_viewport_size({"width": 1030, "height": 700})  # the width of an A4 page in landscape
        assert window.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert window.title() == f"Reproduction {tmp_path.name}"
        assert (errors, requests) == ([], [file.as_uri()])
        browser.close()
