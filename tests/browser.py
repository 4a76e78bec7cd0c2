"""A headless browser for the tests, and what it saw of a page: layout, texts, console, requests."""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest
from selenium.webdriver import Chrome, ChromeOptions
from selenium.webdriver.chrome.service import Service

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--hide-scrollbars"),
)
MISSING = (
    "The report's page is looked at in a browser, and none was found: run 'make browser', or install Chromium and "
    "ChromeDriver (Debian: 'apt-get install chromium chromium-driver')."
)
LOOK = """
const box = e => { const r = e.getBoundingClientRect(); return [r.width, r.height] };
const shown = s => [...document.querySelectorAll(s)].filter(e => e.checkVisibility());
const texts = s => shown(s).map(e => e.innerText.trim());
return {
  title: document.title,
  width: document.documentElement.scrollWidth,
  background: getComputedStyle(document.body).backgroundColor,
  ink: getComputedStyle(document.body).color,
  headings: texts("h1, h2").filter((text, i) => box(shown("h1, h2")[i]).every(side => side > 0)),
  charts: shown(".chart").map(e => [e.getAttribute("aria-label"), ...box(e)]),
  drawn: shown(".chart canvas").map(e => e.getContext("2d").getImageData(0, 0, e.width, e.height).data.some(Boolean)),
  figures: document.querySelectorAll("figure .chart").length,
  cards: Object.fromEntries(shown(".card").map(e => [e.id, e.innerText])),
  facts: Object.fromEntries(shown(".facts div").map(e => [e.children[0].innerText, e.children[1].innerText])),
  tables: Object.fromEntries(shown("section[id]").map(e => [e.id,
    [...e.querySelectorAll("table:not(.u-legend) tbody tr")].map(row => [...row.cells].map(cell => cell.innerText))])),
  legends: texts(".legend, .u-legend"),
  text: document.body.innerText,
  folded: [...document.querySelectorAll("details pre")].map(e => [e.textContent, e.checkVisibility()]),
  active: document.querySelectorAll("script, img, iframe, object, embed, link, form, [onerror]").length,
}
"""


@dataclass
class Seen:
    """What the browser saw of a page."""

    page: dict  # what LOOK returned, no-break spaces replaced
    console: list[str]
    requests: list[str]  # addresses


def start(profile: Path) -> Chrome:
    """Starts the browser with an empty profile; fails the test if there is none."""
    driver = shutil.which("chromedriver")
    program = next(filter(None, map(shutil.which, NAMES)), None)
    if driver is None or program is None:
        pytest.fail(MISSING, pytrace=False)
    options = ChromeOptions()
    options.binary_location = program
    for flag in (*FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    return Chrome(options=options, service=Service(driver))


def look(browser: Chrome, path: Path, width: int, media: str = "screen", scheme: str = "light") -> Seen:
    """Opens a file in a window of `width` pixels."""
    for log in ("browser", "performance"):
        browser.get_log(log)
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": media, "features": features})
    browser.get(path.as_uri())
    page = json.loads(json.dumps(browser.execute_script(LOOK)).replace("\\u00a0", " "))
    events = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    requests = [event["params"]["request"]["url"] for event in events if event["method"] == "Network.requestWillBeSent"]
    return Seen(page, [entry["message"] for entry in browser.get_log("browser")], requests)
