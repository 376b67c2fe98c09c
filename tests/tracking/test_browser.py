"""MLflow's page in a real browser: from the printed link to the front, its trials and the report."""

import re
import shutil
from urllib.parse import quote

import pytest

from fpp_sweep.report.writing import write_report
from fpp_sweep.tracking.delivery import deliver
from tests.kit.records import build_sweep
from tests.kit.stores import server

pytestmark = [pytest.mark.slow, pytest.mark.nightly]

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
# filters of docs/mlflow.md, and the number of runs that they show, each in a row of its own
FILTERS = {
    "tags.sweep = 'perturb-20261120-185232'": 12,
    "tags.kind = 'trial'": 8,
    "tags.on_front = 'true'": 1,
    "metrics.accuracy > 58": 2,
}
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


def test_a_user_finds_the_front_the_trials_and_the_report(page, mlflow):
    folder = build_sweep(mlflow.folder / "perturb-20261120-185232", trials=8)
    write_report(folder, pages=True)
    (link,) = deliver(folder, mlflow.uri).links
    trial_name = "0007 60/6.6 gamma2=4.1 class_var=0.008"

    page.goto(link)  # the profile of the browser is new
    page.get_by_text("best/accuracy").first.wait_for()
    page.get_by_text("hypervolume").first.wait_for()
    page.get_by_text("Child runs").first.wait_for()
    page.get_by_text("Show more").first.click()
    picture = page.locator("img[src*='get-artifact']")
    picture.wait_for()
    assert picture.evaluate("image => image.complete && image.naturalWidth > 400")
    page.get_by_text("Search for accuracy").first.wait_for()
    page.screenshot(path=mlflow.folder / "1-sweep.png", full_page=True)

    page.goto(link.replace("?", "/artifacts/report/sweep.html?"))
    page.frame_locator("iframe").get_by_role("heading").first.wait_for()
    page.screenshot(path=mlflow.folder / "2-report.png")

    experiment = link.partition("/runs/")[0]
    order = f"orderByKey={quote('metrics.`accuracy`')}&orderByAsc=false"
    for search, count in FILTERS.items():
        page.goto(f"{experiment}/runs?workflowType=machine_learning&{order}&searchFilter={quote(search)}")
        page.get_by_text(f"{count} matching run").first.wait_for()
        page.get_by_role("link", name=trial_name).first.wait_for()
        names = page.get_by_role("link", name=re.compile("^(baseline|[0-9]{4} |perturb-)"))
        assert names.count() >= count
    page.screenshot(path=mlflow.folder / "3-front.png")
    page.get_by_role("link", name=trial_name).first.click()
    page.get_by_text("fpp.class_var").first.wait_for()
    page.get_by_text("accuracy/digits").first.wait_for()
    page.screenshot(path=mlflow.folder / "4-trial.png", full_page=True)
