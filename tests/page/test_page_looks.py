"""The report page in a real browser: themes, widths, keyboard, print, and pages of which parts are missing."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import page_browser
import pytest
from page_browser import Browser
from page_data import report
from selenium.webdriver import Keys

page_browser.need_browser()

DATA = report(32, values_per_layer=20, moments_per_layer=60)
SECTIONS = ("timeline", "swaps", "layers", "config", "values")
HOSTILE = "</script><script>document.title='bad'</script><img src=x onerror=\"document.title='bad'\"><!-- &amp; \u2028 ${1} '\""

TEXTS = """
  const canvas = document.createElement('canvas').getContext('2d', {willReadFrequently: true});
  const rgb = (color) => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = color;
    canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data];
  };
  const light = (color) => {
    const linear = (part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
    const [r, g, b] = color.map((part) => linear(part / 255));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (node) => {
    for (let at = node; at; at = at.parentElement) {
      const color = rgb(getComputedStyle(at).backgroundColor);
      if (color[3] === 255) return color;
      if (color[3] > 0) return null;
    }
    return [255, 255, 255, 255];
  };
  const found = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const node = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || !node.checkVisibility() || node.closest('script, style, noscript')) continue;
    const style = getComputedStyle(node);
    const svg = node.namespaceURI.endsWith('svg');
    const back = behind(node);
    if (!back) { found.push([walker.currentNode.data, 0]); continue; }
    const [a, b] = [light(rgb(svg ? style.fill : style.color)), light(back)].sort((x, y) => y - x);
    found.push([walker.currentNode.data.trim(), (a + 0.05) / (b + 0.05)]);
  }
  return found;
"""


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with page_browser.running(tmp_path_factory.mktemp("chromium")) as browser:
        yield browser


@pytest.fixture
def browser(chromium: Browser) -> Iterator[Browser]:
    yield chromium
    chromium.cdp("Emulation.setScriptExecutionDisabled", value=False)
    assert chromium.messages() == []


def background(browser: Browser) -> str:
    return str(browser.js("return getComputedStyle(document.body).backgroundColor"))


LIGHT, DARK = "rgb(245, 245, 241)", "rgb(20, 23, 28)"

# ---------------------------------------------------------------- themes


@pytest.mark.parametrize(("scheme", "colour"), [("light", LIGHT), ("dark", DARK)])
def test_the_theme_is_that_of_the_system(browser: Browser, scheme: str, colour: str) -> None:
    browser.open(DATA, prefers_color_scheme=scheme)
    assert background(browser) == colour


@pytest.mark.parametrize(("scheme", "chosen", "colour"), [("light", "dark", DARK), ("dark", "light", LIGHT)])
def test_the_theme_can_be_chosen_and_is_remembered(browser: Browser, scheme: str, chosen: str, colour: str) -> None:
    browser.open(DATA, prefers_color_scheme=scheme)
    browser.one("#theme-auto").send_keys(Keys.ARROW_RIGHT, *([Keys.ARROW_RIGHT] if chosen == "dark" else []))
    assert background(browser) == colour
    browser.driver.refresh()
    assert background(browser) == colour
    browser.one("#theme-auto").send_keys(Keys.SPACE)
    assert background(browser) != colour


@pytest.mark.parametrize("width", [1280, 400])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_can_be_told_from_what_is_behind_it(browser: Browser, scheme: str, width: int) -> None:
    browser.open(DATA, width=width, prefers_color_scheme=scheme, prefers_reduced_motion="reduce")
    browser.all(".layer")[17].click()
    browser.one(".legend button").click()
    found = browser.js(TEXTS)
    assert len(found) > 400
    assert [(text, round(ratio, 2)) for text, ratio in found if ratio < 4.5] == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_actions_differ_by_more_than_colour(browser: Browser, scheme: str) -> None:
    browser.open(DATA, prefers_color_scheme=scheme)
    script = """
      const seen = {};
      for (const cell of document.querySelectorAll('.layer')) {
        seen[cell.dataset.action] = cell.querySelector('.picture path').getAttribute('d');
      }
      return seen;
    """
    pictures = browser.js(script)
    assert sorted(pictures) == ["keep", "mixed", "recompute", "swap"]
    assert len(set(pictures.values())) == 4


def test_motion_can_be_reduced(browser: Browser) -> None:
    script = "return getComputedStyle(document.querySelector('.layer')).transitionDuration"
    browser.open(DATA, prefers_reduced_motion="reduce")
    assert browser.js(script) == "0s"
    browser.open(DATA, prefers_reduced_motion="no-preference")
    assert browser.js(script) != "0s"


# ---------------------------------------------------------------- widths


@pytest.mark.parametrize("width", [1280, 900, 760, 400, 320])
def test_the_page_is_never_wider_than_the_window(browser: Browser, width: int) -> None:
    browser.open(DATA, width=width)
    browser.all(".layer")[20].click()
    page, window = browser.js("return [document.documentElement.scrollWidth, window.innerWidth]")
    assert page <= window


@pytest.mark.parametrize(
    "part", ["#memory-plot", "#swap-plot", "#strip", "#config", ".tiles", ".facts", ".warnings", "#filters"]
)
def test_nothing_is_cut_off_on_narrow_screens(browser: Browser, part: str) -> None:
    browser.open(DATA, width=400)
    script = """
      const outside = [...document.querySelectorAll(arguments[0] + ' *')].filter((node) => {
        const { left, right, width } = node.getBoundingClientRect();
        return width > 0 && (left < -0.5 || right > window.innerWidth + 0.5) && !node.closest('[clip-path]');
      });
      return outside.map((node) => node.outerHTML.slice(0, 200));
    """
    assert browser.js(script, part) == []


def test_the_plots_follow_the_width(browser: Browser) -> None:
    browser.open(DATA)
    script = "return [...document.querySelectorAll('svg.chart')].map((svg) => svg.clientWidth)"
    wide = browser.js(script)
    browser.resize(700)
    browser.js("return new Promise((done) => requestAnimationFrame(() => setTimeout(done, 50)))")
    narrow = browser.js(script)
    assert len({*wide}) == len({*narrow}) == 1
    assert narrow[0] < 700 < wide[0]


# ---------------------------------------------------------------- keyboard, names


def test_everything_is_reached_by_tab_and_the_focus_can_be_seen(browser: Browser) -> None:
    browser.open(DATA, prefers_reduced_motion="reduce")
    seen: list[str] = []
    script = """
      const node = document.activeElement;
      const marked = node.matches('.theme input') ? node.nextElementSibling : node.querySelector(':scope > .back') ?? node;
      const style = getComputedStyle(marked);
      const ring = style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) >= 2 || style.stroke !== 'none';
      return [node.id || node.classList[0] || node.textContent, ring && node.checkVisibility()];
    """
    for _ in range(90):
        browser.driver.switch_to.active_element.send_keys(Keys.TAB)
        name, visible = browser.js(script)
        if browser.js("return document.activeElement === document.body"):
            break
        assert visible, f"the focus on {name} cannot be seen"
        seen.append(name)
    else:
        pytest.fail(f"no end: {seen}")
    assert seen[0] == "skip"
    for name in ("theme-auto", "grip", "swap-row", "layer", "rule-found", "filter-text", "filter-rule", "values-scroll"):
        assert name in seen
    assert (seen.count("layer"), seen.count("swap-row")) == (1, 1)


def test_the_skip_link_leads_to_the_report(browser: Browser) -> None:
    browser.open(DATA)
    browser.driver.switch_to.active_element.send_keys(Keys.TAB)
    link = browser.driver.switch_to.active_element
    assert browser.js("return arguments[0].getBoundingClientRect().top", link) >= 0
    link.send_keys(Keys.ENTER)
    assert browser.js("return document.activeElement.id") == "main"


def test_controls_have_names_and_ids_are_unique(browser: Browser) -> None:
    browser.open(DATA)
    script = """
      const controls = [...document.querySelectorAll('button, input, select, a, [role=button], [role=slider]')];
      const isNamed = (node) => node.getAttribute('aria-label') || node.textContent.trim() || node.labels?.length;
      const nameless = controls.filter((node) => !node.hidden && !isNamed(node)).map((node) => node.outerHTML);
      const ids = [...document.querySelectorAll('[id]')].map((node) => node.id);
      const references = [...document.querySelectorAll('[aria-labelledby], [aria-describedby]')]
        .flatMap((node) => [node.getAttribute('aria-labelledby'), node.getAttribute('aria-describedby')]).filter(Boolean);
      return [nameless, ids.filter((id, i) => ids.indexOf(id) !== i), references.filter((id) => !ids.includes(id))];
    """
    assert browser.js(script) == [[], [], []]


def test_headings_are_in_order(browser: Browser) -> None:
    browser.open(DATA)
    levels = [int(heading.tag_name[1]) for heading in browser.all("h1, h2, h3") if heading.is_displayed()]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(b <= a + 1 for a, b in pairwise(levels))


# ---------------------------------------------------------------- nothing from elsewhere; without scripts; on paper


def test_the_page_loads_nothing(browser: Browser) -> None:
    browser.open(DATA)
    assert browser.js("return performance.getEntriesByType('resource').map((entry) => entry.name)") == []


def test_without_scripts(browser: Browser) -> None:
    browser.open(DATA, width=400, scripts=False)
    assert browser.text("h1") == DATA["title"]
    assert [item.text for item in browser.all(".warnings li")] == DATA["warnings"]
    assert browser.text("#tile-peak b").endswith("GiB")
    assert "need JavaScript" in browser.text("noscript p")
    assert len(browser.all("noscript tbody tr")) == 33
    assert [name for name in (*SECTIONS, "nav") if browser.one(f"#{name}").is_displayed()] == []
    assert browser.one(".plain").size["width"] <= 400


def test_with_scripts_there_is_no_second_table_of_layers(browser: Browser) -> None:
    browser.open(DATA)
    assert browser.all("noscript tbody tr") == []


def test_on_paper_there_are_no_controls(browser: Browser) -> None:
    browser.open(DATA, prefers_color_scheme="dark")
    browser.cdp("Emulation.setEmulatedMedia", media="print", features=[{"name": "prefers-color-scheme", "value": "dark"}])
    assert background(browser) == "rgb(255, 255, 255)"
    assert [css for css in ("#nav", ".theme", "#zoom", "#filters", "#pages") if browser.one(css).is_displayed()] == []
    kept = ("h1", ".tiles", "#memory-plot", "#strip", "#config", "#table")
    assert [css for css in kept if not browser.one(css).is_displayed()] == []


# ---------------------------------------------------------------- parts that are missing, texts that would do harm


def sections(browser: Browser) -> list[str]:
    return [name for name in SECTIONS if browser.one(f"#{name}").get_attribute("hidden") is None]


@pytest.mark.parametrize(
    ("missing", "left"),
    [
        ([], ["timeline", "swaps", "layers", "config", "values"]),
        (["timeline"], ["layers", "config", "values"]),
        (["measured"], ["timeline", "swaps", "layers", "config", "values"]),
        (["swaps"], ["timeline", "layers", "config", "values"]),
        (["layers"], ["timeline", "swaps", "config", "values"]),
        (["config"], ["timeline", "swaps", "layers", "values"]),
        (["values"], ["timeline", "swaps", "layers", "config"]),
        (["summary", "facts", "warnings", "categories"], ["timeline", "swaps", "layers", "config", "values"]),
        (["timeline", "measured", "swaps", "layers", "config", "values"], []),
    ],
)
def test_sections_without_data_are_left_out(browser: Browser, missing: list[str], left: list[str]) -> None:
    browser.open({**DATA, **dict.fromkeys(missing)}, prefers_reduced_motion="reduce")
    assert sections(browser) == left
    for css in (".layer", ".rule-found", ".swap-row"):
        for node in browser.all(css)[:1]:
            node.click()
    assert browser.one("#back").is_displayed() == ("values" in left and len(left) > 1)


def test_short_steps_and_unknown_bytes(browser: Browser) -> None:
    held = {"saved": [0], "odd one": [5]}
    timeline: dict[str, Any] = {"phase": [0], "operator": [0], "layer": [-1], "bytes": held, "names": ["mm"]}
    row = [None, "", "mm", "2", "float32", None, "activation", "save", "", "", "", None, None, None]
    values = {"columns": DATA["values"]["columns"], "rows": [row]}
    layers = [{"layer": 0, "path": "", "action": "unheard of", "rules": [], "before": 0, "after": 0}]
    browser.open({"categories": ["saved", "odd one"], "timeline": timeline, "values": values, "layers": layers})
    browser.one(".grip").send_keys(Keys.ARROW_RIGHT, "+", "-", "0", "p")
    assert browser.text("#readout .operator") == "mm"
    assert browser.text("#result").startswith("1 value, 0 B")
    assert browser.text("#layer-detail").startswith("All layers: 0 B before")
    assert browser.one(".layer").get_attribute("data-action") == "none"


def test_harmful_text_is_shown_as_it_is(browser: Browser) -> None:
    timeline = {**DATA["timeline"], "names": [HOSTILE] * len(DATA["timeline"]["names"])}
    rows = [[HOSTILE if isinstance(cell, str) else cell for cell in row] for row in DATA["values"]["rows"][:5]]
    config = {"path": HOSTILE, "lines": [HOSTILE] * 3, "rules": [{**DATA["config"]["rules"][0], "line": 2, "field": HOSTILE}]}
    layers = [{**layer, "path": HOSTILE, "rules": [HOSTILE]} for layer in DATA["layers"]]
    changed = {"timeline": timeline, "values": {**DATA["values"], "rows": rows}, "config": config, "layers": layers}
    browser.open({**DATA, **changed, "title": HOSTILE, "warnings": [HOSTILE], "facts": {HOSTILE: HOSTILE}}, width=400)
    assert browser.driver.title.startswith("</script>")
    assert browser.one("h1").get_attribute("textContent") == HOSTILE
    assert browser.one("#readout .operator").get_attribute("textContent") == HOSTILE
    assert browser.one("ol.lines code").get_attribute("textContent") == HOSTILE
    assert browser.one("#table td.of-rule").get_attribute("textContent") == HOSTILE
    assert browser.all("img") == []
    assert browser.js("return document.documentElement.scrollWidth <= window.innerWidth")
