"""The table of values of the report page in a real browser: filter, order, pages, speed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import page_browser
import pytest
from memopt.compiler.explain.table import human_bytes
from page_browser import Browser
from page_data import COLUMNS, report
from selenium.webdriver import Keys
from selenium.webdriver.support.select import Select

page_browser.need_browser()

DATA = report(8, values_per_layer=40, moments_per_layer=30)
ROWS = DATA["values"]["rows"]
PAGE = 50
FAST_MILLISECONDS = 200
"""Far more than filtering takes, so that a busy machine fails no test."""


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with page_browser.running(tmp_path_factory.mktemp("chromium")) as browser:
        yield browser


@pytest.fixture
def browser(chromium: Browser) -> Iterator[Browser]:
    chromium.open(DATA, prefers_reduced_motion="reduce")
    yield chromium
    assert chromium.messages() == []


def cell(row: list[Any], name: str) -> Any:
    return row[COLUMNS.index(name)]


def shown(row: list[Any]) -> list[str]:
    """What the cells of a row show."""
    nothing = {"bytes": "?", "layer": "–"}
    cells = {name: cell(row, name) for name in COLUMNS}
    texts = {name: nothing.get(name, "") if value is None else str(value) for name, value in cells.items()}
    return list((texts | {"bytes": human_bytes(cells["bytes"])}).values())


def table(browser: Browser) -> list[list[str]]:
    script = "return [...document.querySelectorAll('#table tbody tr')].map(row => [...row.cells].map(cell => cell.textContent))"
    return [list(row) for row in browser.js(script)]


def result_of(rows: list[list[Any]]) -> str:
    """The line that tells what the filter leaves."""
    total = f"{len(rows)} of {len(ROWS)}" if len(rows) < len(ROWS) else str(len(rows))
    parts = [f"{total} values, {human_bytes(sum(cell(row, 'bytes') or 0 for row in rows))}"]
    for action in sorted({cell(row, "action") for row in rows}):
        own = [row for row in rows if cell(row, "action") == action]
        parts.append(f"{action} {human_bytes(sum(cell(row, 'bytes') or 0 for row in own))}")
    unknown = sum(cell(row, "bytes") is None for row in rows)
    return " ".join(parts + ([f"and {unknown} of unknown size"] if unknown else []))


def has(text: str) -> Callable[[list[Any]], bool]:
    words = text.lower().split()
    return lambda row: all(any(word in value.lower() for value in row if isinstance(value, str)) for word in words)


def choose(browser: Browser, name: str, text: str) -> None:
    Select(browser.one(f"#filter-{name}")).select_by_visible_text(text)


def expect(browser: Browser, rows: list[list[Any]]) -> None:
    assert table(browser) == [shown(row) for row in rows[:PAGE]]
    assert " ".join(browser.text("#result").split()) == result_of(rows)


# ---------------------------------------------------------------- filter


def test_all_values_are_there_at_first(browser: Browser) -> None:
    expect(browser, ROWS)
    titles = "Layer Path Operator Shape Type Bytes Kind Action Rule Reason Store Leaves Issued Returns"
    assert [head.text for head in browser.all("#table th")] == titles.split()


@pytest.mark.parametrize("text", ["mlp", "ATTENTION linear", "whole", "full_recompute", "2048", "float32", "x", "no  such"])
def test_text_is_searched_in_all_columns(browser: Browser, text: str) -> None:
    browser.one("#filter-text").send_keys(text)
    rows = list(filter(has(text), ROWS))
    if rows:
        expect(browser, rows)
    else:
        assert browser.text("#result").startswith("0 of")


def test_action_layer_rule_and_kind(browser: Browser) -> None:
    rows = ROWS
    for name, text, value in [
        ("action", "offload", "offload"),
        ("layer", "layer 6", 6),
        ("rule", "swap.layer_swap[0]", "swap.layer_swap[0]"),
        ("kind", "activation", "activation"),
    ]:
        choose(browser, name, text)
        rows = [row for row in rows if cell(row, name) == value]
        assert rows
        expect(browser, rows)
        assert "active" in str(browser.one(f"#filter-{name}").get_attribute("class"))
    browser.one("#filter-text").send_keys("gate")
    expect(browser, list(filter(has("gate"), rows)))
    browser.one("#clear").click()
    expect(browser, ROWS)


def test_what_torch_chose_can_be_filtered(browser: Browser) -> None:
    choose(browser, "rule", "none (torch chose)")
    expect(browser, [row for row in ROWS if cell(row, "rule") == ""])


def test_nothing_left(browser: Browser) -> None:
    search = browser.one("#filter-text")
    search.send_keys("no such value")
    assert browser.text("#empty").startswith("No value is left by this filter.")
    assert not browser.one("#table").is_displayed()
    assert not browser.one("#pages").is_displayed()
    assert browser.text("#result") == f"0 of {len(ROWS)} values, 0 B"
    browser.one("#empty button").click()
    expect(browser, ROWS)
    assert browser.js("return document.activeElement.id") == "filter-text"


def test_escape_clears_the_filter(browser: Browser) -> None:
    choose(browser, "action", "save")
    browser.one("#filter-text").send_keys("mlp", Keys.ESCAPE)
    expect(browser, ROWS)
    assert browser.one("#filter-text").get_attribute("value") == ""
    assert browser.one("#filter-action").get_attribute("value") == ""


def test_enter_in_the_search_leaves_the_page_where_it_is(browser: Browser) -> None:
    address = browser.driver.current_url
    browser.one("#filter-text").send_keys("silu", Keys.ENTER)
    assert browser.driver.current_url == address
    expect(browser, list(filter(has("silu"), ROWS)))


# ---------------------------------------------------------------- order


def in_order(name: str, key: Callable[[Any], Any], *, down: bool = False) -> list[list[Any]]:
    """Rows by a column; those without a value come last, equal ones stay in their order."""
    known = [row for row in ROWS if cell(row, name) not in (None, "")]
    return sorted(known, key=lambda row: key(cell(row, name)), reverse=down) + [row for row in ROWS if row not in known]


@pytest.mark.parametrize("name", ["layer", "bytes", "leaves", "returns"])
def test_numbers_are_ordered_as_numbers(browser: Browser, name: str) -> None:
    button = browser.one(f"#table th.of-{name} button")
    up, down = in_order(name, float), in_order(name, float, down=True)
    orders = [("descending", down), ("ascending", up)] if name == "bytes" else [("ascending", up), ("descending", down)]
    for direction, rows in [*orders, (None, ROWS)]:
        button.click()
        assert browser.one(f"#table th.of-{name}").get_attribute("aria-sort") == direction
        expect(browser, rows)


@pytest.mark.parametrize("name", ["op", "dtype", "kind", "action", "store"])
def test_texts_are_ordered_as_texts(browser: Browser, name: str) -> None:
    button = browser.one(f"#table th.of-{name} button")
    button.send_keys(Keys.ENTER)
    expect(browser, in_order(name, str))
    button.send_keys(Keys.SPACE)
    expect(browser, in_order(name, str, down=True))


def test_numbers_within_texts_count(browser: Browser) -> None:
    browser.one("#filter-text").send_keys("gate")
    choose(browser, "layer", "layer 1")
    browser.one("#table th.of-path button").click()
    assert [row[1] for row in table(browser)] == [f"mlp.experts.{number}.gate" for number in range(11)]


def test_one_column_at_a_time(browser: Browser) -> None:
    for name in ("path", "bytes"):
        browser.one(f"#table th.of-{name} button").click()
    assert [head.text for head in browser.all("#table th[aria-sort]")] == ["Bytes"]


def test_the_order_holds_while_the_filter_changes(browser: Browser) -> None:
    browser.one("#table th.of-bytes button").click()
    choose(browser, "action", "recompute")
    expect(browser, [row for row in in_order("bytes", float, down=True) if cell(row, "action") == "recompute"])


# ---------------------------------------------------------------- pages


def test_pages(browser: Browser) -> None:
    last = (len(ROWS) - 1) // PAGE
    visits = [("next", 1), ("next", 2), ("previous", 1), ("last", last), ("next", last), ("first", 0), ("previous", 0)]
    for to, number in visits:
        browser.one(f"#pages [data-to={to}]").click()
        assert table(browser) == [shown(row) for row in ROWS[number * PAGE : (number + 1) * PAGE]]
        end = min((number + 1) * PAGE, len(ROWS))
        assert browser.text("#page-text") == f"{number * PAGE + 1}–{end} of {len(ROWS)}"
    browser.one("#pages [data-to=next]").click()
    browser.one("#table th.of-layer button").click()
    assert browser.text("#page-text").startswith("1–50 of")


def test_narrow_pages_have_fewer_rows(browser: Browser) -> None:
    browser.resize(400)
    browser.one("#pages [data-to=next]").click()
    assert table(browser) == [shown(row) for row in ROWS[25:50]]


def test_columns_without_content_are_left_out(browser: Browser) -> None:
    rows = [row for row in ROWS if not cell(row, "store")]
    browser.open({**DATA, "swaps": [], "values": {"columns": list(COLUMNS), "rows": rows}})
    assert [head.text for head in browser.all("#table th")][-2:] == ["Rule", "Reason"]


# ---------------------------------------------------------------- speed


def test_filtering_and_sorting_thousands_of_rows_is_not_noticed(browser: Browser) -> None:
    browser.open(report(40, values_per_layer=126))
    assert browser.text("#result").startswith("5,043 values")
    script = """
      const took = {};
      const measured = (name, action) => {
        const begin = performance.now();
        action();
        document.body.offsetHeight;
        took[name] = Math.min(performance.now() - begin, took[name] ?? Infinity);  // of three: the machine may be busy
      };
      const type = (text) => {
        const search = document.querySelector('#filter-text');
        search.value = text;
        search.dispatchEvent(new Event('input'));
      };
      for (let round = 0; round < 3; round++) {
        for (const text of ['m', 'ml', 'mlp', 'mlp gate', 'mlp gate recompute', '']) measured(`type ${text}`, () => type(text));
        for (const name of ['bytes', 'path', 'reason', 'shape'])
          measured(`sort ${name}`, () => document.querySelector(`#table th.of-${name} button`).click());
      }
      return took;
    """
    took = browser.js(script)
    assert {name: time for name, time in took.items() if time >= FAST_MILLISECONDS} == {}
