// The layers side by side: what happens to each, and what it saves for the backward before and after.

const ACTIONS = ["keep", "recompute", "swap", "mixed", "none"];

function actionOf(layer) {
  return ACTIONS.includes(layer.action) ? layer.action : "none";
}

function buildLayers() {
  if (!data.layers.length) return;
  const most = Math.max(1, ...data.layers.flatMap((layer) => [layer.before ?? 0, layer.after ?? 0]));
  const cells = data.layers.map((layer) => cell(layer, most));
  byId("strip").append(...cells);
  roving(cells);
  for (const action of ACTIONS) {
    const count = data.layers.filter((layer) => actionOf(layer) === action && layer.layer !== null).length;
    if (count) byId("layers-key").append(element("li", {}, picture(action), `${action} `, element("b", {}, String(count))));
  }
  byId("layers").hidden = false;
  tellLayer(null);
}

function cell(layer, most) {
  const action = actionOf(layer);
  const name = layerName(layer.layer);
  const bars = element("span", { class: "bars" }, barOf("before", layer.before, most), barOf("after", layer.after, most));
  const number = element("span", { class: "layer-number" }, layer.layer === null ? "rest" : String(layer.layer));
  const attributes = { type: "button", class: "layer", "data-action": action, "aria-label": layerInWords(layer) };
  const button = element("button", attributes);
  button.append(bars, number, element("span", { class: "mark" }, picture(action)));
  for (const event of ["pointerenter", "focus"]) button.addEventListener(event, () => tellLayer(layer));
  button.addEventListener("pointerleave", () => tellLayer(null));
  button.addEventListener("blur", () => tellLayer(null));
  button.addEventListener("click", () => showValues({ layer: layerKey(layer.layer) }, button, name));
  return button;
}

function barOf(kind, count, most) {
  const node = element("span", { class: `bar ${kind}` });
  node.style.setProperty("--part", String((count ?? 0) / most));
  return node;
}

/** All there is to say about a layer, in one line. */
function layerInWords(layer) {
  const parts = [`${capitalised(layerName(layer.layer))}: ${actionOf(layer)}`];
  if (layer.path) parts.push(layer.path);
  parts.push(`${bytes(layer.before)} before, ${bytes(layer.after)} after`);
  if (layer.swapped) parts.push(`${bytes(layer.swapped)} swapped`);
  const work = flops(layer.recomputed_flops ?? 0);
  if (layer.recomputed) parts.push(`${counted(layer.recomputed, "operator")} run again (${work})`);
  if (layer.rules?.length) parts.push(layer.rules.join(", "));
  return parts.join("; ");
}

function tellLayer(layer) {
  const all = (key) => data.layers.reduce((sum, one) => sum + (one[key] ?? 0), 0);
  const swapped = all("swapped") ? `; ${bytes(all("swapped"))} swapped` : "";
  const sums = `All layers: ${bytes(all("before"))} before, ${bytes(all("after"))} after${swapped}.`;
  const hint = data.values ? " Choose a layer to see its values." : "";
  const text = layer ? layerInWords(layer) : `${sums} Bars: bytes saved for the backward, before and after.${hint}`;
  byId("layer-detail").textContent = text;
}
