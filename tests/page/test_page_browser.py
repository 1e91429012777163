"""The report page in a real browser: what it shows of its data, by pointer and by keys."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import page_browser
import pytest
from memopt.compiler.explain.table import human_bytes
from page_browser import Browser
from page_data import COLUMNS, report
from selenium.webdriver import ActionChains, Keys
from selenium.webdriver.support.select import Select

page_browser.need_browser()

ALL = {"text": "", "action": "", "layer": "", "rule": "", "kind": ""}
SMALL = report(6, values_per_layer=20, moments_per_layer=30)
LARGE = report(32)
FOCUSED = "return document.activeElement.id || document.activeElement.className"


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with page_browser.running(tmp_path_factory.mktemp("chromium")) as browser:
        yield browser


@pytest.fixture
def browser(chromium: Browser) -> Iterator[Browser]:
    """Shows the small report; whatever the page writes to the console is an error."""
    chromium.open(SMALL, prefers_reduced_motion="reduce")
    yield chromium
    assert chromium.messages() == []


def moment_of(browser: Browser) -> int:
    return int(browser.one("#readout").get_attribute("data-moment") or -1)


def expected_moment(data: dict[str, Any], moment: int) -> tuple[str, str, list[str]]:
    """The operator, its place, and a line for each category from the top, then the total."""
    timeline = data["timeline"]
    layer = timeline["layer"][moment]
    place = "outside layers" if layer < 0 else f"layer {layer}"
    held = {name: timeline["bytes"][name][moment] for name in data["categories"]}
    lines = [f"{name} {human_bytes(held[name])}" for name in reversed(data["categories"])]
    phase = ("forward", "backward")[timeline["phase"][moment]]
    total = f"total {human_bytes(sum(held.values()))}"
    return timeline["names"][timeline["operator"][moment]], f"{place}, {phase}", [*lines, total]


def told_moment(browser: Browser) -> tuple[str, str, list[str]]:
    lines = [" ".join(item.text.split()) for item in browser.all("#readout li") if item.is_displayed()]
    told = [line for line in lines if not line.startswith("measured")]
    return browser.text("#readout .operator"), browser.text("#readout .place"), told


def hover(browser: Browser, part: float) -> float:
    """Point at a part of the plot, from 0 to 1; returns the exact part, since pointers are at whole pixels."""
    grip = browser.one(".grip")
    width, height = (int(browser.js(f"return arguments[0].{side}", grip)) for side in ("clientWidth", "clientHeight"))
    pixels = min(int(part * width), width - 1)
    ActionChains(browser.driver).move_to_element_with_offset(grip, pixels - width // 2, -height // 4).perform()
    return (pixels + (0.5 if width % 2 else 0)) / width


def sums(data: dict[str, Any]) -> list[int]:
    return [sum(column) for column in zip(*data["timeline"]["bytes"].values(), strict=True)]


# ---------------------------------------------------------------- the timeline


@pytest.mark.parametrize("part", [0.02, 0.2, 0.34, 0.5, 0.77, 0.99])
def test_pointing_tells_exactly_the_moment_that_is_there(browser: Browser, part: float) -> None:
    count = len(SMALL["timeline"]["phase"])
    exact = hover(browser, part)
    moment = moment_of(browser)
    assert -0.1 <= exact * count - moment <= 1.1
    assert told_moment(browser) == expected_moment(SMALL, moment)
    assert browser.text("#readout .which") in (f"Operator {moment + 1} of {count}", "At the peak")
    line = browser.one("#memory-plot .cursor line")
    box = "const box = document.querySelector(arguments[0]).getBoundingClientRect(); return [box.left, box.width]"
    (left, width), (begin, _) = (browser.js(box, css) for css in (".grip", "#memory-plot svg"))
    assert (float(line.get_attribute("x1") or "nan") + begin - left) / width == pytest.approx((moment + 0.5) / count, abs=2e-3)


@pytest.mark.parametrize("part", [0.05, 0.31, 0.66, 0.985])
def test_where_moments_share_a_pixel_the_highest_is_drawn_and_told(browser: Browser, part: float) -> None:
    browser.open(LARGE)
    totals = sums(LARGE)
    exact = hover(browser, part)
    width = int(browser.js("return document.querySelector('.grip').clientWidth"))
    pixels = [math.floor(k * len(totals) / width) for k in range(width + 1)]
    near = [max(range(a, b), key=totals.__getitem__) for a, b in pairwise(pixels)]
    at = math.floor(exact * width)
    assert moment_of(browser) in near[max(at - 1, 0) : at + 2]
    assert told_moment(browser) == expected_moment(LARGE, moment_of(browser))


def test_without_pointer_and_keys_the_peak_is_told(browser: Browser) -> None:
    totals = sums(SMALL)
    peak = totals.index(max(totals))
    assert (moment_of(browser), browser.text("#readout .which")) == (peak, "At the peak")
    assert told_moment(browser) == expected_moment(SMALL, peak)
    assert browser.text(".peak-name") == f"Peak {human_bytes(max(totals))}"
    hover(browser, 0.1)
    ActionChains(browser.driver).move_to_element(browser.one("h1")).perform()
    assert moment_of(browser) == peak
    assert browser.all("#memory-plot .cursor line") == []


def test_keys_move_through_the_moments(browser: Browser) -> None:
    layers, last = SMALL["timeline"]["layer"], len(SMALL["timeline"]["phase"]) - 1
    totals = sums(SMALL)
    grip = browser.one(".grip")
    first_of_next = next(i for i, layer in enumerate(layers) if layer == 1)
    steps = [
        (Keys.HOME, 0),
        (Keys.ARROW_LEFT, 0),
        (Keys.ARROW_RIGHT, 1),
        (Keys.ARROW_UP, 2),
        (Keys.ARROW_DOWN, 1),
        (Keys.SHIFT + Keys.ARROW_RIGHT, first_of_next),
        (Keys.PAGE_UP, layers.index(2)),
        (Keys.PAGE_DOWN, first_of_next),
        (Keys.SHIFT + Keys.ARROW_LEFT, 1),
        (Keys.END, last),
        (Keys.ARROW_RIGHT, last),
        ("p", totals.index(max(totals))),
    ]
    for key, moment in steps:
        grip.send_keys(key)
        assert moment_of(browser) == moment
        assert told_moment(browser) == expected_moment(SMALL, moment)
        assert grip.get_attribute("aria-valuenow") == str(moment + 1)
        spoken = grip.get_attribute("aria-valuetext") or ""
        assert spoken.startswith(f"{expected_moment(SMALL, moment)[0]}, {expected_moment(SMALL, moment)[1]}, ")
        assert human_bytes(totals[moment]) in spoken
    grip.send_keys(Keys.HOME)
    grip.send_keys(Keys.ESCAPE)
    assert browser.text("#readout .which") == "At the peak"


def test_legend_hides_and_shows_categories(browser: Browser) -> None:
    before = {path.get_attribute("data-category"): path.get_attribute("d") for path in browser.all(".area")}
    assert list(before) == SMALL["categories"]
    button = browser.one(".legend button[data-category=gradients]")
    button.click()
    assert button.get_attribute("aria-pressed") == "false"
    assert [path.get_attribute("data-category") for path in browser.all(".area")] == SMALL["categories"][1:]
    moment = moment_of(browser)
    held = {name: column[moment] for name, column in SMALL["timeline"]["bytes"].items()}
    shown = f"shown {human_bytes(sum(held.values()) - held['gradients'])}"
    assert told_moment(browser)[2] == [*expected_moment(SMALL, moment)[2], shown]
    button.send_keys(Keys.ENTER)
    assert {path.get_attribute("data-category"): path.get_attribute("d") for path in browser.all(".area")} == before


def test_measured_total_lies_over_the_areas_and_can_be_hidden(browser: Browser) -> None:
    assert len(browser.all("path.measured")) == 2
    browser.one(".legend button[data-category=measured]").click()
    assert browser.all("path.measured") == []


def test_boundary_of_the_phases(browser: Browser) -> None:
    assert [text.text for text in browser.all(".phase-name")] == ["Forward", "Backward"]
    count, begin = len(SMALL["timeline"]["phase"]), SMALL["timeline"]["phase"].index(1)
    left = float(browser.one("#memory-plot .boundary").get_attribute("x1") or "nan")
    sides = browser.js("return document.querySelector('.grip').style.inset").split()
    inset = [float(side.removesuffix("px")) for side in sides]
    width = browser.js("return document.querySelector('#memory-plot svg').clientWidth") - inset[1] - inset[3]
    assert (left - inset[3]) / width == pytest.approx(begin / count, abs=1e-6)


def test_zoom_by_keys_buttons_and_dragging(browser: Browser) -> None:
    def layers() -> list[str]:
        return [text.text for text in browser.all(".ribbon-name")]

    grip = browser.one(".grip")
    whole = layers()
    assert whole == ["0", "1", "2", "3", "4", "5", "5", "4", "3", "2", "1", "0"]
    grip.send_keys(Keys.HOME)
    for _ in range(3):
        grip.send_keys("+")
    assert layers() == ["0", "1", "2"]
    browser.one("#zoom [aria-label=Later]").click()
    assert layers() == ["1", "2", "3"]
    grip.send_keys(Keys.END)
    assert moment_of(browser) == len(SMALL["timeline"]["phase"]) - 1
    assert layers()[-1] == "0"
    grip.send_keys("0")
    assert layers() == whole
    drag = ActionChains(browser.driver).move_to_element_with_offset(grip, -60, 0).click_and_hold().move_by_offset(100, 0)
    drag.release().perform()
    assert len(layers()) < 5
    zoomed = layers()
    hover(browser, 0.5)
    assert told_moment(browser) == expected_moment(SMALL, moment_of(browser))
    assert str(SMALL["timeline"]["layer"][moment_of(browser)]) in zoomed
    browser.one("#zoom button:last-child").click()
    assert layers() == whole


# ---------------------------------------------------------------- layers, swap traffic, configuration


def count_of(browser: Browser) -> int:
    return int(browser.text("#result b").split(" ")[0].replace(",", ""))


def chosen(browser: Browser) -> dict[str, str]:
    return {name: str(browser.one(f"#filter-{name}").get_attribute("value")) for name in ALL}


def rows_of(**cells: Any) -> list[list[Any]]:
    return [row for row in SMALL["values"]["rows"] if all(row[COLUMNS.index(name)] == value for name, value in cells.items())]


@pytest.mark.parametrize("key", [Keys.ENTER, Keys.SPACE, "click"])
def test_a_layer_shows_its_values_and_there_is_a_way_back(browser: Browser, key: str) -> None:
    browser.one("#filter-text").send_keys("no such thing")
    cell = browser.all(".layer")[3]
    if key == "click":
        cell.click()
    else:
        cell.send_keys(key)
    assert chosen(browser) == {**ALL, "layer": "3"}
    assert count_of(browser) == len(rows_of(layer=3))
    assert browser.js(FOCUSED) == "values-title"
    assert browser.js("return document.querySelector('#values').getBoundingClientRect().top") < 100
    assert browser.text("#back") == "Back to layer 3"
    browser.one("#back").click()
    assert browser.js("return document.activeElement === arguments[0]", cell)
    assert chosen(browser) == ALL
    assert not browser.one("#back").is_displayed()


def test_layers_tell_their_bytes_to_pointer_and_keys(browser: Browser) -> None:
    cells = browser.all(".layer")
    assert [cell.get_attribute("data-action") for cell in cells] == [layer["action"] for layer in SMALL["layers"]]
    layer = SMALL["layers"][4]
    before, after, swapped = (human_bytes(layer[key]) for key in ("before", "after", "swapped"))
    words = f"{before} before, {after} after; {swapped} swapped"
    ActionChains(browser.driver).move_to_element(cells[4]).perform()
    assert words in browser.text("#layer-detail")
    assert words in str(cells[4].get_attribute("aria-label"))
    cells[0].send_keys(Keys.ARROW_RIGHT, Keys.ARROW_RIGHT)
    browser.js("document.activeElement.dispatchEvent(new PointerEvent('pointerleave'))")
    browser.driver.switch_to.active_element.send_keys(Keys.ARROW_RIGHT)
    assert browser.text("#layer-detail").startswith("Layer 3: ")
    browser.driver.switch_to.active_element.send_keys(Keys.END)
    assert browser.text("#layer-detail").startswith("Outside layers: keep")


def test_values_outside_the_layers(browser: Browser) -> None:
    browser.all(".layer")[-1].click()
    assert (chosen(browser)["layer"], count_of(browser)) == ("outside", 3)


def test_swap_traffic(browser: Browser) -> None:
    rows = browser.all(".swap-row")
    swapped = sorted({swap["layer"] for swap in SMALL["swaps"]})
    assert [row.find_element("css selector", "text").text for row in rows] == [f"layer {layer}" for layer in swapped]
    own = [swap for swap in SMALL["swaps"] if swap["layer"] == swapped[-1]]
    ActionChains(browser.driver).move_to_element(rows[-1]).perform()
    told = browser.text("#swap-detail")
    total = human_bytes(sum(swap["bytes"] for swap in own))
    assert told.startswith(f"Layer {swapped[-1]}: {len(own)} values, {total} to disk and host; leave in layer")
    rows[0].send_keys(Keys.ARROW_DOWN)
    assert browser.js("return document.activeElement === arguments[0]", rows[1])
    rows[1].send_keys(Keys.ENTER)
    assert chosen(browser) == {**ALL, "layer": str(swapped[1]), "action": "offload"}
    assert count_of(browser) == len(rows_of(layer=swapped[1], action="offload"))


def test_bars_of_the_swap_traffic_are_where_the_data_says(browser: Browser) -> None:
    first = min(SMALL["swaps"], key=lambda swap: swap["leaves"])
    own = [swap for swap in SMALL["swaps"] if swap["layer"] == first["layer"]]
    box = browser.js("const b = document.querySelector('.swap-row [data-part=away]').getBBox(); return [b.x, b.x + b.width]")
    left, right = (float(browser.one("#plot-clip-box").get_attribute(name) or "nan") for name in ("x", "width"))
    count = len(SMALL["timeline"]["phase"])
    expected = [min(swap["leaves"] for swap in own), max(swap["issued"] for swap in own)]
    assert [(x - left) / right * count for x in box] == pytest.approx(expected, abs=0.1)


def test_each_rule_of_the_configuration_shows_what_it_matched(browser: Browser) -> None:
    assert [line.get_attribute("textContent") for line in browser.all("ol.lines code")] == SMALL["config"]["lines"]
    rules = [rule for rule in SMALL["config"]["rules"] if rule["values"]]
    for number, rule in enumerate(rules):
        button = browser.all("button.rule-found")[number]
        total, plural = human_bytes(rule["bytes"]), "" if rule["values"] == 1 else "s"
        assert " ".join(button.text.split()).startswith(f"layers {rule['layers']} {rule['values']} value{plural} {total}")
        button.send_keys(Keys.ENTER)
        assert chosen(browser) == {**ALL, "rule": f"={rule['field']}"}
        assert (count_of(browser), rule["values"]) == (len(rows_of(rule=rule["field"])),) * 2
        assert f"{rule['values']} of {len(SMALL['values']['rows'])} values, {total}" in browser.text("#result")
    assert [note.text for note in browser.all(".lines .nothing")] == ["matched nothing"]


def test_the_whole_line_of_a_rule_can_be_clicked(browser: Browser) -> None:
    browser.one("ol.lines li:nth-child(4) code").click()
    assert chosen(browser)["rule"] == "=recompute.full_recompute_layer"


def test_rules_without_a_line_and_several_on_one(browser: Browser) -> None:
    rules = [dict(rule) for rule in SMALL["config"]["rules"]]
    rules[0]["line"], rules[1]["line"], rules[2]["line"] = None, 7, 7
    browser.open({**SMALL, "config": {**SMALL["config"], "rules": rules}})
    assert browser.text("#config-lines h3") == "Rules without a line"
    assert browser.text(".loose code") == rules[0]["field"]
    seventh = browser.all("ol.lines li:nth-child(7) button")
    seventh[1].click()
    assert chosen(browser)["rule"] == f"={rules[2]['field']}"


def test_the_layer_filter_offers_all_layers(browser: Browser) -> None:
    options = [option.text for option in Select(browser.one("#filter-layer")).options]
    assert options == ["all layers", *(f"layer {n}" for n in range(6)), "outside layers"]
