"""What a user sees: MLflow's page in a real browser, from the list of sweeps to the front."""

import shutil

import pytest

from fpp_sweep.tracking import check_store, ship, to_look
from fpp_sweep.tracking.sync import _read_shipped
from tests.sweeps import build_sweep
from tests.tracking.stores import server

pytestmark = pytest.mark.slow

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
WAIT = 90_000  # milliseconds, for a page of MLflow on two busy cores


@pytest.fixture(scope="module")
def page():
    playwright = pytest.importorskip("playwright.sync_api", reason="needs the package playwright")
    if CHROMIUM is None:
        pytest.skip("needs a browser: chromium or google-chrome on the PATH")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])  # root has no sandbox
        page = browser.new_page(viewport={"width": 1600, "height": 1000})
        page.set_default_timeout(WAIT)
        yield page
        browser.close()


@pytest.fixture(scope="module")
def mlflow(tmp_path_factory, empty_database):
    with server(tmp_path_factory.mktemp("browser"), empty_database) as running:
        running.start()
        yield running


def test_a_user_finds_the_sweep_a_trial_and_the_front(page, mlflow):
    check_store(mlflow.uri)
    folder = build_sweep(mlflow.folder / "perturb-20261120-185232", trials=8)
    ship(folder, mlflow.uri)
    (view,) = to_look(folder, mlflow.uri)
    experiment, runs = _read_shipped(folder.path / "shipped.json")

    page.goto(f"{mlflow.uri}/#/experiments/{experiment}/runs")
    sweep = page.get_by_role("link", name="perturb-20261120-185232").first
    sweep.wait_for()
    sweep.locator("xpath=ancestor::*[@role='gridcell'][1]").get_by_role("button").first.click()  # shows its children
    trial = page.get_by_role("link", name="0007 60/6.6 gamma2=4.1 class_var=0.008").first
    trial.wait_for()
    page.screenshot(path=mlflow.folder / "1-list.png")
    trial.click()

    page.get_by_text("fpp.class_var").first.wait_for()
    page.get_by_text("accuracy/tiny_digits").first.wait_for()
    page.screenshot(path=mlflow.folder / "2-trial.png", full_page=True)

    url = f"{mlflow.uri}/#/experiments/{experiment}/runs/{runs['sweep'].run}"
    page.goto(url)
    page.get_by_text("front and baselines").first.wait_for()  # the description
    page.get_by_text("best/accuracy").first.wait_for()
    page.screenshot(path=mlflow.folder / "3-sweep.png")

    page.goto(f"{url}/artifacts/report/sweep.html")
    page.frame_locator("iframe").get_by_text("Front of the sweep").wait_for()  # its script runs
    page.screenshot(path=mlflow.folder / "4-report.png")

    page.goto("about:blank")
    page.goto(view)  # what a sweep prints: its runs, with the objectives drawn, and no bars of datasets
    page.get_by_role("link", name="0007 60/6.6 gamma2=4.1 class_var=0.008").first.wait_for()
    page.locator(".js-plotly-plot .scatterlayer").first.wait_for()
    assert page.get_by_text("tiny_digits").count() == 0
    assert page.get_by_role("link", name="perturb-20261120-185232").count() == 0  # but its trials
    page.screenshot(path=mlflow.folder / "5-view.png")
    page.goto("about:blank")
    page.goto(f"{mlflow.uri}/#/experiments/{experiment}/runs")
    page.get_by_role("button", name="Views").first.click()
    page.get_by_role("menuitem", name="perturb-20261120-185232").first.click()
    for head in ("accuracy", "ece", "test/accuracy", "fpp.class_var"):
        page.get_by_role("columnheader", name=head, exact=True).first.wait_for()
    page.screenshot(path=mlflow.folder / "6-table.png")
