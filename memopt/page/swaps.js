// Swap traffic: for each layer, when its values leave, when their reloads are issued, and when they are used again.

const PARTS = { leave: "leaves", away: "away", flight: "reload issued, not used yet", use: "first used" };
const swaps = { rows: [], svg: null, bands: null, cursor: null, rowHeight: 18 };

function buildSwaps() {
  if (!data.swaps.length) return;
  for (const [layer, own] of grouping(data.swaps, (swap) => swap.layer)) swaps.rows.push({ layer, own, ...extent(own) });
  swaps.rows.sort((a, b) => a.leaves - b.leaves);
  swaps.svg = drawn("svg", { class: "chart" });
  const clip = drawn("clipPath", { id: "plot-clip" }, drawn("rect", { id: "plot-clip-box", y: 0 }));
  swaps.cursor = drawn("g", { class: "cursor" });
  const rows = drawn("g", {});
  for (const row of swaps.rows) rows.append(swapRow(row));
  swaps.bands = drawn("g", { "aria-hidden": "true" });
  swaps.svg.append(drawn("defs", {}, clip), swaps.bands, rows, swaps.cursor);
  byId("swap-plot").append(swaps.svg);
  roving(swaps.rows.map((row) => row.node), ["ArrowUp", "ArrowDown"]);
  for (const [part, text] of Object.entries(PARTS)) {
    const swatch = element("span", { class: "swatch", "data-part": part, "aria-hidden": "true" });
    byId("swap-key").append(element("li", {}, swatch, text));
  }
  byId("swaps").hidden = false;
  tellSwaps(null);
}

function grouping(items, key) {
  const groups = new Map();
  for (const item of items) {
    if (!groups.has(key(item))) groups.set(key(item), []);
    groups.get(key(item)).push(item);
  }
  return groups;
}

function extent(own) {
  return {
    bytes: own.reduce((sum, swap) => sum + (swap.bytes ?? 0), 0),
    leaves: Math.min(...own.map((swap) => swap.leaves)),
    least: Math.min(...own.map((swap) => swap.returns - swap.issued)),
  };
}

function swapRow(row) {
  const layer = layerName(row.layer);
  row.node = drawn("g", { class: "swap-row", role: "button", "aria-label": swapInWords(row) });
  row.back = drawn("rect", { class: "back", x: 0 });
  row.name = drawn("text", { class: "tick", "text-anchor": "end" }, layer);
  const parts = drawn("g", { "clip-path": "url(#plot-clip)" });
  row.parts = {};
  for (const part of ["away", "leave", "flight", "use"]) {
    row.parts[part] = drawn("path", { class: "traffic", "data-part": part });
    parts.append(row.parts[part]);
  }
  row.node.append(row.back, row.name, parts);
  for (const event of ["pointerenter", "focus"]) row.node.addEventListener(event, () => tellSwaps(row));
  row.node.addEventListener("pointerleave", () => tellSwaps(null));
  const choose = () => showValues({ layer: layerKey(row.layer), action: "offload" }, row.node, `the swap traffic of ${layer}`);
  row.node.addEventListener("click", choose);
  row.node.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" && event.key !== " ") return;
    event.preventDefault();
    choose();
  });
  return row.node;
}

function drawSwaps() {
  if (!swaps.svg) return;
  const height = swaps.rows.length * swaps.rowHeight;
  swaps.svg.setAttribute("width", frame.width);
  swaps.svg.setAttribute("height", height);
  swaps.bands.replaceChildren(...phaseBands(height, false), ...boundary(height));
  const box = byId("plot-clip-box");
  for (const [name, value] of Object.entries({ x: frame.left, width: plotWidth(), height })) box.setAttribute(name, value);
  swaps.rows.forEach((row, i) => {
    const top = i * swaps.rowHeight;
    row.back.setAttribute("y", top);
    row.back.setAttribute("width", frame.width);
    row.back.setAttribute("height", swaps.rowHeight);
    row.name.setAttribute("x", frame.left - 8);
    row.name.setAttribute("y", top + 13);
    const paths = traffic(row.own, top + 2, swaps.rowHeight - 4);
    for (const [part, path] of Object.entries(paths)) row.parts[part].setAttribute("d", path);
  });
}

/** The values of a layer, each in a lane of its own, as one path for each part of their journeys. */
function traffic(own, top, height) {
  const paths = { away: "", leave: "", flight: "", use: "" };
  const lane = height / own.length;
  own.forEach((swap, i) => {
    const y = (top + i * lane).toFixed(2);
    const [leaves, issued, returns] = [swap.leaves, swap.issued, swap.returns].map(xOf);
    paths.away += bar(leaves, issued, y, lane);
    paths.leave += bar(leaves - 1, leaves + 1, y, lane);
    paths.flight += bar(issued, Math.max(returns, issued + 1), y, lane);
    paths.use += bar(returns - 0.75, returns + 0.75, y, lane);
  });
  return paths;
}

function bar(left, right, y, height) {
  return `M${left.toFixed(1)},${y}H${right.toFixed(1)}v${Math.max(height, 0.6).toFixed(2)}H${left.toFixed(1)}z`;
}

function swapInWords({ layer, own, bytes: sum, least }) {
  const stores = [...new Set(own.map((swap) => swap.store).filter(Boolean))].sort().join(" and ");
  const places = [["leave in", "leaves_in"], ["reloads issued in", "issued_in"], ["first used in", "returns_in"]];
  const told = places.map(([text, key]) => `${text} ${layersOf(own, key)}`);
  told[0] += "'s forward";
  told[1] += "'s backward";
  told[2] += "'s backward";
  const what = `${capitalised(layerName(layer))}: ${counted(own.length, "value")}, ${bytes(sum)}${stores && ` to ${stores}`}`;
  return `${what}; ${told.join(", ")}; ${counted(least, "operator")} or more between reload and use`;
}

function layersOf(own, key) {
  const known = own.map((swap) => swap[key]).filter((layer) => layer !== null && layer !== undefined);
  const numbers = [...new Set(known)].sort((a, b) => a - b);
  return numbers.length ? `layer ${numbers.join(" and ")}` : "no layer";
}

function tellSwaps(row) {
  for (const other of swaps.rows) other.node.classList.toggle("told", other === row);
  const sum = data.swaps.reduce((all, swap) => all + (swap.bytes ?? 0), 0);
  const all = `${counted(data.swaps.length, "value")} of ${counted(swaps.rows.length, "layer")}, ${bytes(sum)} out and back.`;
  byId("swap-detail").textContent = row ? swapInWords(row) : `${all}${data.values ? " Choose a layer to see its values." : ""}`;
}

function markSwapMoment(moment) {
  if (!swaps.svg) return;
  const height = swaps.rows.length * swaps.rowHeight;
  if (moment === null || moment < view.from || moment >= view.to) {
    swaps.cursor.replaceChildren();
    return;
  }
  const x = (xOf(moment) + xOf(moment + 1)) / 2;
  swaps.cursor.replaceChildren(drawn("line", { x1: x, x2: x, y1: 0, y2: height }));
}
