// The legend, which tells the bytes of each category at one moment, and by which categories are shown and hidden.

const readout = { heading: null, name: null, place: null, cells: new Map(), total: null, visible: null, measured: null };

function buildReadout() {
  const panel = byId("readout");
  readout.heading = element("span", { class: "which" });
  readout.name = element("b", { class: "operator" });
  readout.place = element("span", { class: "place" });
  panel.append(element("div", { class: "moment" }, readout.heading, readout.name, readout.place));
  const list = element("ul", { class: "legend", "aria-label": "Categories; choose one to show or hide it" });
  for (const name of [...categories].reverse()) {
    list.append(entry(name, name, () => toggled(name)));
  }
  readout.total = element("span", { class: "bytes" });
  list.append(element("li", { class: "sum" }, element("span", { class: "name" }, "total"), readout.total));
  readout.visible = element("span", { class: "bytes" });
  const part = element("li", { class: "sum part", hidden: true }, element("span", { class: "name" }, "shown"), readout.visible);
  list.append(part);
  if (data.measured) {
    list.append(entry("measured", "measured", () => {
      measuredShown = !measuredShown;
      return measuredShown;
    }));
  }
  panel.append(list);
}

/** One line of the legend; `toggle` says whether it is shown from now on. */
function entry(key, name, toggle) {
  const cell = element("span", { class: "bytes" });
  const swatch = element("span", { class: "swatch", "data-category": key, "aria-hidden": "true" });
  const button = element("button", { type: "button", "aria-pressed": "true", "data-category": key }, swatch);
  button.append(element("span", { class: "name" }, name), cell);
  button.addEventListener("click", () => {
    button.setAttribute("aria-pressed", String(toggle()));
    refreshPlots();
  });
  readout.cells.set(key, cell);
  return element("li", {}, button);
}

function toggled(name) {
  if (!shown.delete(name)) shown.add(name);
  return shown.has(name);
}

/** Tells about a moment; without one, about the peak. */
function tellMoment(moment) {
  const at = moment ?? data.timeline.peak;
  const { count, layer, total } = data.timeline;
  byId("readout").dataset.moment = at;
  const number = `Operator ${grouped.format(at + 1)} of ${grouped.format(count)}`;
  readout.heading.textContent = at === data.timeline.peak ? "At the peak" : number;
  readout.name.textContent = data.timeline.name(at);
  readout.place.textContent = `${layerName(layer[at])}, ${data.timeline.phaseName(at)}`;
  let sum = 0;
  for (const name of categories) {
    const held = data.timeline.bytes[name][at];
    readout.cells.get(name).textContent = bytes(held);
    if (shown.has(name)) sum += held;
  }
  readout.total.textContent = bytes(total[at]);
  readout.visible.textContent = bytes(sum);
  readout.visible.parentElement.hidden = shown.size === categories.length;
  if (data.measured) readout.cells.get("measured").textContent = measuredAt(at);
}

/** The total that was measured last before the end of a moment. */
function measuredAt(moment) {
  const last = data.measured.at.findLastIndex((part) => measuredMoment(part) <= moment + 1);
  return last < 0 ? "–" : bytes(data.measured.total[last]);
}

function momentInWords(moment) {
  const { layer, total } = data.timeline;
  const place = `${layerName(layer[moment])}, ${data.timeline.phaseName(moment)}`;
  const heldOf = (name) => data.timeline.bytes[name][moment];
  const held = categories.filter(heldOf).map((name) => `${name} ${bytes(heldOf(name))}`);
  return `${data.timeline.name(moment)}, ${place}, ${bytes(total[moment])}: ${held.join(", ")}`;
}
