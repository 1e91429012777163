// The table of values: its filter, its header that sorts, and one page of rows at a time.

const narrow = window.matchMedia("(max-width: 760px)");

/** Rows of a page: where each is a card, fewer. */
function pageSize() {
  return narrow.matches ? 25 : 50;
}

const COLUMNS = [
  { name: "layer", title: "Layer", number: true },
  { name: "path", title: "Path", code: true },
  { name: "op", title: "Operator", code: true },
  { name: "shape", title: "Shape" },
  { name: "dtype", title: "Type" },
  { name: "bytes", title: "Bytes", number: true, descends: true },
  { name: "kind", title: "Kind" },
  { name: "action", title: "Action" },
  { name: "rule", title: "Rule", code: true },
  { name: "reason", title: "Reason" },
  { name: "store", title: "Store" },
  { name: "leaves", title: "Leaves", number: true, hint: "the layer after whose forward it leaves" },
  { name: "issued", title: "Issued", number: true, hint: "the layer in whose backward its reload is issued" },
  { name: "returns", title: "Returns", number: true, hint: "the layer whose backward reads it first" },
];

const UNSORTED = { column: "", direction: "" };
const table = { columns: [], heads: new Map(), body: null, fields: {}, sort: UNSORTED, found: [], page: 0 };

function buildTable() {
  if (!data.values) return;
  table.columns = COLUMNS.filter(({ name }) => isUsed(name));
  byId("table").append(element("colgroup", {}, ...table.columns.map(({ name }) => element("col", { class: `of-${name}` }))));
  byId("table").append(element("thead", { role: "rowgroup" }, element("tr", { role: "row" }, ...table.columns.map(head))));
  byId("table").classList.toggle("with-swaps", isUsed("store"));
  table.body = element("tbody", { role: "rowgroup" });
  byId("table").append(table.body);
  buildFilters();
  buildPages();
  byId("back").addEventListener("click", goBack);
  filter.listeners.push(refreshTable);
  narrow.addEventListener("change", () => showPage(0));
  byId("values").hidden = false;
  refreshTable();
}

function isUsed(name) {
  const column = rows.columns[name];
  if (!column) return false;
  return column.numbers ? name === "layer" || column.numbers.some((number) => number !== null) : column.words.some(Boolean);
}

function classOf({ name, number, code }) {
  return `of-${name}${number ? " number" : ""}${code ? " code" : ""}`;
}

function head(column) {
  const arrow = drawn("svg", { class: "arrow", viewBox: "0 0 8 12", "aria-hidden": "true" });
  arrow.append(drawn("path", { class: "up", d: "M4 0l3.5 5h-7z" }), drawn("path", { class: "down", d: "M4 12L.5 7h7z" }));
  const button = element("button", { type: "button", title: column.hint }, column.title, arrow);
  const node = element("th", { scope: "col", role: "columnheader", class: classOf(column) }, button);
  button.addEventListener("click", () => sortBy(column));
  table.heads.set(column.name, node);
  return node;
}

/** First click: the order that is most useful; then the other one; then as it was. */
function sortBy({ name, descends }) {
  const orders = descends ? ["descending", "ascending", ""] : ["ascending", "descending", ""];
  const direction = table.sort.column === name ? orders[orders.indexOf(table.sort.direction) + 1] : orders[0];
  table.sort = direction ? { column: name, direction } : UNSORTED;
  for (const [column, node] of table.heads) {
    if (column === table.sort.column) node.setAttribute("aria-sort", direction);
    else node.removeAttribute("aria-sort");
  }
  refreshTable();
}

function buildFilters() {
  const search = element("input", { type: "search", id: "filter-text", placeholder: "Path, operator, reason …" });
  search.autocomplete = "off";
  search.spellcheck = false;
  search.addEventListener("input", () => filter.set({ text: search.value }));
  table.fields.text = search;
  byId("filters").append(labelled("Text", search, "filter-text"));
  const chosen = {
    action: wordsOf("action").map((word) => [word, word]),
    layer: layerChoices(),
    rule: wordsOf("rule").map((word) => [ruleKey(word), word || "none (torch chose)"]),
    kind: wordsOf("kind").map((word) => [word, word]),
  };
  for (const [name, choices] of Object.entries(chosen)) {
    const select = element("select", { id: `filter-${name}` }, element("option", { value: "" }, `all ${name}s`));
    select.append(...choices.map(([value, text]) => element("option", { value }, text)));
    select.addEventListener("change", () => filter.set({ [name]: select.value }));
    table.fields[name] = select;
    byId("filters").append(labelled(capitalised(name), select, `filter-${name}`));
  }
  const clear = element("button", { type: "button", id: "clear" }, "Clear");
  clear.addEventListener("click", () => filter.set({ ...ANY }));
  byId("filters").append(clear);
  byId("filters").addEventListener("submit", (event) => event.preventDefault());
  byId("filters").addEventListener("keydown", (event) => {
    if (event.key === "Escape") filter.set({ ...ANY });
  });
}

function labelled(name, field, id) {
  return element("div", { class: `field field-${id}` }, element("label", { for: id }, name), field);
}

function wordsOf(name) {
  const words = rows.columns[name]?.words ?? [];
  return [...words].sort(new Intl.Collator("en", { numeric: true }).compare);
}

function layerChoices() {
  const numbers = [...new Set(rows.columns.layer?.numbers ?? [])];
  const inside = numbers.filter((layer) => layer !== null).sort((a, b) => a - b);
  const choices = inside.map((layer) => [layerKey(layer), `layer ${layer}`]);
  return numbers.includes(null) ? [...choices, [OUTSIDE, "outside layers"]] : choices;
}

/** Filters and sorts again, and shows the first page. */
function refreshTable() {
  for (const [name, field] of Object.entries(table.fields)) {
    choose(field, filter.now[name]);
    field.classList.toggle("active", Boolean(filter.now[name]));
  }
  table.found = ordered(matching(filter.now), table.sort.column, table.sort.direction);
  showPage(0);
  tellResult();
}

/** Sets a field; what a select does not offer is added, so that it never shows another choice than the one that holds. */
function choose(field, value) {
  if (field.value === value) return;
  field.value = value;
  if (field.value === value) return;
  field.append(element("option", { value }, value.replace(/^=/, "")));
  field.value = value;
}

function showPage(page) {
  const size = pageSize();
  const last = Math.max(Math.ceil(table.found.length / size) - 1, 0);
  table.page = Math.min(Math.max(page, 0), last);
  const from = table.page * size;
  table.body.replaceChildren(...table.found.slice(from, from + size).map(rowOf));
  byId("values-scroll").scrollTop = 0;
  byId("values-scroll").hidden = !table.found.length;
  byId("empty").hidden = table.found.length > 0;
  byId("pages").hidden = last === 0;
  const end = Math.min(from + size, table.found.length);
  byId("page-text").textContent = `${grouped.format(from + 1)}–${grouped.format(end)} of ${grouped.format(table.found.length)}`;
  for (const button of byId("pages").querySelectorAll("button")) {
    const target = { first: 0, previous: table.page - 1, next: table.page + 1, last }[button.dataset.to];
    button.dataset.page = Math.min(Math.max(target, 0), last);
    button.setAttribute("aria-disabled", String(Number(button.dataset.page) === table.page));
  }
}

function rowOf(row) {
  return element("tr", { role: "row" }, ...table.columns.map((column) => {
    const node = element("td", { role: "cell", class: classOf(column) });
    node.dataset.title = column.title;
    node.append(...contentOf(column.name, cellOf(column.name, row)));
    return node;
  }));
}

function contentOf(name, value) {
  if (name === "bytes") return [bytes(value)];
  if (name === "layer") return [value === null ? "–" : String(value)];
  if (name === "action") return [picture(ACTION_OF_VALUE[value]), value];
  if (name === "path" || name === "op" || name === "rule" || name === "reason") return breakable(value ?? "");
  return value === null ? [] : [String(value)];
}

/** A name that may be broken after dots and underscores, and stays one text to copy. */
function breakable(text) {
  return text.split(/(?<=[._])/).flatMap((part, i) => (i ? [element("wbr"), part] : [part]));
}

function tellResult() {
  const { bytes: all, unknown, actions } = sums(table.found);
  const part = rows.count === table.found.length ? "" : `${grouped.format(table.found.length)} of `;
  const strong = element("b", {}, `${part}${counted(rows.count, "value")}, ${bytes(all)}`);
  const byAction = [...actions].sort().map(([action, size]) => {
    return element("span", { class: "count" }, picture(ACTION_OF_VALUE[action]), `${action} ${bytes(size)}`);
  });
  const rest = unknown ? [element("span", { class: "count" }, `and ${grouped.format(unknown)} of unknown size`)] : [];
  byId("result").replaceChildren(strong, ...byAction, ...rest);
  byId("clear").setAttribute("aria-disabled", String(!Object.values(filter.now).some(Boolean)));
  const clear = element("button", { type: "button" }, "Show all values");
  clear.addEventListener("click", () => {
    filter.set({ ...ANY });
    table.fields.text.focus();
  });
  byId("empty").replaceChildren("No value is left by this filter. ", clear);
}

function buildPages() {
  const buttons = { first: "«", previous: "‹", next: "›", last: "»" };
  const [first, previous, next, last] = Object.entries(buttons).map(([to, text]) => {
    const button = element("button", { type: "button", "data-to": to, "aria-label": `${capitalised(to)} page` }, text);
    button.addEventListener("click", () => {
      showPage(Number(button.dataset.page));
      byId("values-title").scrollIntoView({ block: "nearest" });
    });
    return button;
  });
  byId("pages").append(first, previous, element("span", { id: "page-text" }), next, last);
}
