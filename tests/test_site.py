"""The site as a browser shows it: names, tables and pictures on a phone, and the box that finds a message."""

import subprocess

import pytest

from tests import browser
from tests.ranks.pool import REPOSITORY, environment, scripts

WIDTH = 400
SHOWN = """
const shown = selector => [...document.querySelectorAll(selector)].filter(each => each.checkVisibility());
return {
  rows: shown(".messages tbody tr").map(each => each.innerText.toLowerCase()),
  heads: shown(".messages h2").length,
  empty: shown("thead").filter(each => !each.innerText.trim()).length,
  names: shown("h3").map(each => each.firstChild.textContent.trim()),
  pictures: shown("article img").map(each => each.getBoundingClientRect().width / each.naturalWidth),
  logo: document.querySelector(".md-logo img").naturalWidth,
}
"""


@pytest.fixture(scope="module")
def opened(tmp_path_factory):
    """What opens a page of the site in a browser of a phone's width."""
    folder = tmp_path_factory.mktemp("site")
    command = [scripts() / "mkdocs", "build", "--quiet", "--strict", "--site-dir", folder]
    subprocess.run(command, cwd=REPOSITORY, env=environment(NO_MKDOCS_2_WARNING="1"), check=True)
    driver = browser.start(tmp_path_factory.mktemp("profile"))
    driver.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride", {"width": WIDTH, "height": 900, "deviceScaleFactor": 1, "mobile": True}
    )

    def page(name: str):
        driver.get((folder / name).as_uri())
        return driver

    yield page
    driver.quit()


@pytest.mark.slow
def test_a_message_is_found_by_some_of_its_words(opened):
    chrome = opened("troubleshooting.html")
    every = chrome.execute_script(SHOWN)
    box = chrome.find_element("css selector", ".find-message")
    box.send_keys("Checkpoint folder")
    found = chrome.execute_script(SHOWN)
    assert found["rows"] == [row for row in every["rows"] if "checkpoint" in row and "folder" in row]
    assert 3 < len(found["rows"]) < 20 < len(every["rows"]) and found["heads"] == 0 < every["heads"]
    box.clear()
    box.send_keys(" ")
    assert chrome.execute_script(SHOWN)["rows"] == every["rows"]


@pytest.mark.slow
def test_a_phone_shows_pictures_names_and_tables(opened):
    home = opened("index.html").execute_script(SHOWN)
    assert home["empty"] == 0 < home["logo"]
    assert len(home["pictures"]) == 1 and home["pictures"][0] > 0.85  # letters keep their size
    names = opened("reference/ops.html").execute_script(SHOWN)["names"]
    assert "kp.ops.all_gather" in names and all(name.startswith("kp.") for name in names)
