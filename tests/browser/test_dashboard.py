"""The dashboard in headless Chromium, on runs that train while it is looked at."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright
from scripts import SEARCH, TRAIN, done, reports, running, started
from workers import wait_for

PICTURES = os.environ.get("SHOAL_PICTURES")  # a directory, for the screenshots of the docs: make pictures


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    path = shutil.which("chromium")
    if path is None:
        pytest.fail("chromium is not installed: make browser-packages")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A storage with a run that failed, and a search that ended."""
    place = tmp_path_factory.mktemp("storage")
    (place / ".train.py").write_text(TRAIN)
    (place / ".search.py").write_text(SEARCH)
    done("run", "--name", "crash", "--max-failures", "1", f"{place}/.train.py", "9", "0.05", "5", storage=place, code=1)
    done("run", "--name", "search", f"{place}/.search.py", "5", "0", storage=place)
    return place


@pytest.fixture(scope="module")
def url(storage: Path) -> Iterator[str]:
    """The address of a dashboard on the loopback."""
    with served(storage) as link:
        yield link


@contextmanager
def served(storage: Path, *arguments: str) -> Iterator[str]:
    process = started("dashboard", "--port", "0", *arguments, storage=storage)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        yield line.removeprefix("shoal dashboard: ").strip()
    finally:
        process.terminate()
        process.communicate(timeout=30)


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A page; whatever fails in its scripts fails the test."""
    context = browser.new_context(viewport={"width": 1200, "height": 900})
    page = context.new_page()
    wrong: list[str] = []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("console", lambda message: wrong.append(message.text) if message.type == "error" else None)
    yield page
    context.close()
    assert not [text for text in wrong if "status of 4" not in text]


def picture(page: Page, name: str) -> None:
    """Keep a screenshot for the docs, where they are made."""
    if PICTURES:
        page.evaluate("scrollTo(0, 0)")  # the heading stays at the top of what is shown
        page.screenshot(path=f"{PICTURES}/{name}.png", full_page=True)


def points(page: Page, metric: str) -> int:
    """Return how many points a chart has that is drawn."""
    return int(page.locator(f'.chart[data-metric="{metric}"]').get_attribute("data-points") or 0)


def test_charts_of_a_run_that_trains_move_and_stop_stops_it(page: Page, url: str, storage: Path):
    with running("--name", "live", "-w", "2", f"{storage}/.train.py", "900", "0.1", "-1", storage=storage) as process:
        wait_for(lambda: reports("live", storage) >= 2, 60)
        page.goto(f"{url}#/run/live")
        expect(page.locator("h1 + span .state")).to_have_text("RUNNING")
        expect(page.locator("#metrics canvas").first).to_be_visible()
        before = points(page, "loss")
        page.wait_for_function(
            "before => Number(document.querySelector('.chart[data-metric=\"loss\"]').dataset.points) > before + 5",
            arg=before,
        )
        expect(page.locator("#workers")).to_contain_text("rank 1")
        expect(page.locator("#workers")).to_contain_text("MiB", timeout=20_000)
        expect(page.locator("#logs pre")).to_contain_text("begins at 0")
        page.get_by_role("button", name="Stacks").click()
        expect(page.locator("#stacks summary")).to_have_count(2, timeout=30_000)
        page.locator("#stacks summary").first.click()
        expect(page.locator("#stacks pre").first).to_contain_text("in train_func")
        page.emulate_media(color_scheme="dark")
        picture(page, "run")
        page.get_by_role("button", name="Stop").click()
        expect(page.locator("h1 + span .state")).to_have_text("STOPPED", timeout=30_000)
        assert process.wait(30) == 0
        expect(page.locator("#facts")).to_contain_text("asked by")
        page.get_by_role("button", name="Resume").click()
        expect(page.locator("h1 + span .state")).to_have_text("RUNNING", timeout=30_000)
        page.once("dialog", lambda dialog: dialog.accept())
        page.get_by_role("button", name="Kill").click()
        expect(page.locator("h1 + span .state")).to_have_text("STOPPED", timeout=30_000)
        expect(page.locator("#attempts tbody tr")).to_have_count(2)
        assert "live STOPPED" in (storage / "live" / "logs" / "driver.log").read_text()


def test_a_run_that_failed_shows_its_cause_first(page: Page, url: str):
    page.goto(f"{url}#/run/crash")
    expect(page.locator("#failures pre").first).to_contain_text("RuntimeError: the loss is gone")
    assert page.locator("main > section:visible").nth(1).get_attribute("id") == "failures"
    expect(page.locator("#attempts .track .failed")).to_have_count(2)
    expect(page.get_by_role("button", name="Stop")).to_be_hidden()
    picture(page, "failure")


def test_the_list_is_filtered_and_sorted_with_the_keyboard_alone(page: Page, url: str):
    page.goto(url)
    expect(page.locator("tbody tr").filter(has_text="crash")).to_contain_text("FAILED")
    page.keyboard.press("/")
    page.keyboard.type("search")
    expect(page.locator("tbody tr")).to_have_count(1)
    page.keyboard.press("Control+a")
    page.keyboard.press("Delete")
    page.get_by_role("button", name="Name").focus()
    page.keyboard.press("Enter")
    expect(page.locator("th").first).to_have_attribute("aria-sort", "ascending")
    names = page.locator("tbody tr td:first-child").all_inner_texts()
    assert names == sorted(names)
    picture(page, "list")
    page.get_by_role("link", name="crash").focus()
    page.keyboard.press("Enter")
    expect(page.locator("h1")).to_have_text("crash")


def test_a_search_has_a_table_and_pictures_and_its_trials_have_pages(page: Page, url: str):
    page.goto(f"{url}#/run/search")
    expect(page.locator("#trials tbody tr")).to_have_count(4)
    assert page.locator("#trials tbody tr").first.inner_text().startswith("00000")
    for part in ("history", "parallel", "curves", "importance"):
        expect(page.locator(f"#{part}")).to_be_visible()
    expect(page.locator("#curves canvas")).to_be_visible()
    page.get_by_role("button", name="Status").click()
    expect(page.locator("#trials tbody tr").first).to_contain_text("ValueError: too large")
    picture(page, "search")
    page.get_by_role("link", name="00002").click()
    expect(page.locator("h1")).to_have_text("search/00002_lr=3")
    expect(page.locator("#metrics canvas").first).to_be_visible()


def test_it_fits_a_phone_and_both_themes_can_be_chosen(browser: Browser, url: str):
    context = browser.new_context(viewport={"width": 390, "height": 800}, color_scheme="dark")
    page = context.new_page()
    page.goto(f"{url}#/run/crash")
    expect(page.locator("#failures")).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    page.get_by_role("button", name="Dark or light").click()
    assert page.evaluate("document.documentElement.dataset.theme") == "light"
    picture(page, "phone")
    context.close()


def test_what_a_run_has_written_is_never_taken_for_markup(page: Page, url: str, storage: Path):
    script = storage / ".evil.py"
    script.write_text(
        "from shoal import train\n"
        "name = '<img src=x onerror=\"document.title=1\">'\n"
        "def f(config):\n    print(name, flush=True)\n    train.report({name: 1.0})\n"
        "train.DataParallelTrainer(f, train_loop_config={'n': name}).fit()\n"
    )
    done("run", "--name", "markup", str(script), storage=storage)
    page.goto(f"{url}#/run/markup")
    expect(page.locator("#logs pre")).to_contain_text("<img src=x")
    expect(page.locator("#config")).to_contain_text("<img src=x")
    page.locator("#metrics canvas").first.hover()
    page.wait_for_timeout(300)
    assert page.title() == "markup · shoal"
    assert page.locator("main img").count() == 0


def asked(url: str, path: str, *, method: str = "GET", **headers: str) -> tuple[int, str]:
    body = json.dumps({"name": "crash", "ask": "stop"}).encode() if method == "POST" else None
    headers = {name.replace("_", "-"): value for name, value in headers.items()}
    request = urllib.request.Request(url.partition("?")[0].rstrip("/") + path, body, headers, method=method)
    try:
        with urllib.request.urlopen(request) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_only_this_site_may_change_something_and_only_by_post(url: str):
    own = url.partition("//")[2].rstrip("/")
    assert asked(url, "/api/ask")[0] == 405
    assert asked(url, "/api/ask", method="POST")[0] == 403
    assert asked(url, "/api/ask", method="POST", x_shoal="1", origin="http://evil.example")[0] == 403
    code, text = asked(url, "/api/ask", method="POST", x_shoal="1", origin=f"http://{own}")
    assert code == 409 and "crash is not running" in text
    assert asked(url, "/", host="evil.example")[0] == 403
    for name in ("..", "../other", "/etc", ".train.py", "a/b/c", "search/../crash"):
        assert asked(url, f"/api/run?name={name}")[0] == 404


def test_on_another_address_a_token_is_needed(storage: Path):
    with served(storage, "--host", "0.0.0.0") as link:
        token = re.search(r"token=(.+)", link)
        assert token is not None
        here = link.replace("0.0.0.0", "127.0.0.1")
        assert asked(here, "/api/runs")[0] == 401
        assert asked(here, "/static/app.js")[0] == 401
        assert asked(here, "/api/runs", authorization="Bearer wrong")[0] == 401
        assert asked(here, "/api/runs", authorization=f"Bearer {token[1]}")[0] == 200
        opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
        assert opener.open(here).status == 200
        assert json.loads(opener.open(here.partition("?")[0] + "api/runs").read())["runs"]


def test_a_million_reports_are_drawn_in_a_bounded_number_of_points(page: Page, url: str, storage: Path):
    place = storage / "long"
    shutil.copytree(storage / "crash", place)
    with open(place / "metrics.jsonl", "w") as file:
        for n in range(1, 1_000_001):
            value = 9.0 if n == 654_321 else 1 / n
            file.write(f'{{"loss":{value},"training_iteration":{n},"timestamp":1.0,"time_total_s":1.0,"attempt":1}}\n')
    page.goto(f"{url}#/run/long")
    expect(page.locator('.chart[data-metric="loss"] canvas')).to_be_visible(timeout=90_000)
    assert 500 < points(page, "loss") <= 3000
    curves = json.loads(asked(url, "/api/metrics?name=long")[1])
    assert curves["count"] == 1_000_000
    assert [654_321.0, 9.0] in curves["curves"]["loss"]


def test_a_port_that_is_taken_is_told(url: str, storage: Path):
    port = url.rstrip("/").rpartition(":")[2]
    assert "Address already in use" in done("dashboard", "--port", port, storage=storage, code=1)


def test_without_its_packages_it_says_what_to_install(storage: Path):
    told = subprocess.run(
        [sys.executable, "-c", "import sys; sys.modules['starlette'] = None\n"
         "from shoal.cli import main; sys.exit(main(['dashboard']))"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert told.returncode == 1 and 'pip install "shoal[dashboard]"' in told.stderr
