"""MLflow's page in a real browser: from the printed link to the front, its trials and the report."""

import shutil

import pytest

from fpp_sweep.tracking import check_store, mlflow_links, sync_folder
from tests.kit.records import build_sweep
from tests.kit.stores import server

pytestmark = [pytest.mark.slow, pytest.mark.nightly]

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


def test_a_user_finds_the_sweep_its_trials_and_the_report(page, mlflow):
    check_store(mlflow.uri)
    folder = build_sweep(mlflow.folder / "perturb-20261120-185232", trials=8)
    sync_folder(folder, mlflow.uri)
    (link,) = mlflow_links(folder, mlflow.uri)
    trial_name = "0007 60/6.6 gamma2=4.1 class_var=0.008"

    page.goto(link)
    page.get_by_text("Search for accuracy").first.wait_for()  # in the description of the run
    page.get_by_text("best/accuracy").first.wait_for()
    page.get_by_text("Child runs").first.wait_for()
    page.screenshot(path=mlflow.folder / "1-sweep.png", full_page=True)

    page.goto(f"{link}/artifacts/report/sweep.html")
    page.frame_locator("iframe").get_by_text("Front of the sweep").wait_for()  # the report's script writes this text
    page.screenshot(path=mlflow.folder / "2-report.png")

    experiment = link.partition("/runs/")[0]
    page.goto(f"{experiment}/runs")
    sweep = page.get_by_role("link", name="perturb-20261120-185232").first
    sweep.wait_for()
    sweep.locator("xpath=ancestor::*[@role='gridcell'][1]").get_by_role(
        "button"
    ).first.click()  # unfolds the child runs
    page.get_by_role("link", name=trial_name).first.wait_for()
    page.screenshot(path=mlflow.folder / "3-list.png")

    search = page.get_by_placeholder("metrics.rmse").first  # the filters of docs/mlflow.md
    search.fill("tags.sweep = 'perturb-20261120-185232' and tags.on_front = 'true'")
    search.press("Enter")
    page.get_by_role("link", name="baseline").first.wait_for(state="detached")
    trial = page.get_by_role("link", name=trial_name).first
    trial.wait_for()
    page.screenshot(path=mlflow.folder / "4-front.png")
    trial.click()
    page.get_by_text("fpp.class_var").first.wait_for()
    page.get_by_text("accuracy/digits").first.wait_for()
    page.screenshot(path=mlflow.folder / "5-trial.png", full_page=True)
