// The moment that is looked at: by pointer, by keys; and the part of the step that is shown.

const cursor = { at: null, pinned: null };
let grip = null;
let selection = null;

function buildTimeline() {
  const place = byId("memory-plot");
  plot.svg = drawn("svg", { "aria-hidden": "true", class: "chart" });
  selection = element("div", { class: "selection", hidden: true });
  grip = element("div", { class: "grip", role: "slider", tabindex: 0, "aria-label": "Moment of the step" });
  grip.setAttribute("aria-describedby", "timeline-hint");
  grip.setAttribute("aria-valuemin", 1);
  grip.setAttribute("aria-valuemax", data.timeline.count);
  place.append(plot.svg, selection, grip);
  buildReadout();
  buildTools();
  grip.addEventListener("keydown", onKey);
  grip.addEventListener("wheel", onWheel, { passive: false });
  listenToPointer();
  view.listeners.push(refreshPlots);
  new ResizeObserver(() => fitPlots()).observe(place);
  byId("timeline").hidden = false;
  fitPlots();
}

function fitPlots() {
  const width = Math.floor(byId("memory-plot").clientWidth);
  if (!width || width === frame.width) return;
  frame.width = width;
  frame.left = width < 560 ? 58 : 68;
  refreshPlots();
}

function refreshPlots() {
  drawTimeline();
  drawSwaps();
  const tools = byId("zoom");
  for (const button of tools.querySelectorAll("[data-zoomed]")) button.setAttribute("aria-disabled", String(isWhole()));
  grip.style.setProperty("inset", `0 ${frame.right}px ${BOTTOM - RIBBON - 6}px ${frame.left}px`);
  look(cursor.at);
}

/** Looks at a moment, or at none. */
function look(moment) {
  cursor.at = moment;
  const told = moment ?? data.timeline.peak;
  markMoment(moment);
  markSwapMoment(moment);
  tellMoment(moment);
  grip.setAttribute("aria-valuenow", told + 1);
  grip.setAttribute("aria-valuetext", momentInWords(told));
}

/** Looks at a moment until told otherwise. */
function pin(moment) {
  cursor.pinned = moment === null ? null : Math.min(Math.max(moment, 0), data.timeline.count - 1);
  cursor.at = cursor.pinned;
  if (cursor.pinned !== null) reveal(cursor.pinned);
  look(cursor.pinned);
}

/** The drawn moment under the pointer: what is told is what is seen. */
function momentUnder(event) {
  const pixels = event.clientX - plot.svg.getBoundingClientRect().left;
  if (plot.moments.length === view.to - view.from) return momentAt(pixels);
  const k = Math.floor(((pixels - frame.left) / plotWidth()) * plot.moments.length);
  return plot.moments[Math.min(Math.max(k, 0), plot.moments.length - 1)].moment;
}

function listenToPointer() {
  let start = null;
  const isDrag = (event) => start !== null && event.pointerType !== "touch" && Math.abs(event.clientX - start.clientX) > 5;
  grip.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    start = event;
    grip.setPointerCapture(event.pointerId);
    look(momentUnder(event));
  });
  grip.addEventListener("pointermove", (event) => {
    look(momentUnder(event));
    selection.hidden = !isDrag(event);
    if (!selection.hidden) placeSelection(start, event);
  });
  grip.addEventListener("pointerup", (event) => {
    selection.hidden = true;
    if (isDrag(event)) {
      const [a, b] = [momentUnder(start), momentUnder(event)].sort((x, y) => x - y);
      show(a, b + 1);
    } else if (start) {
      pin(momentUnder(event));
    }
    start = null;
  });
  grip.addEventListener("pointercancel", () => {
    start = null;
    selection.hidden = true;
  });
  grip.addEventListener("pointerleave", () => {
    if (start === null) look(cursor.pinned);
  });
}

function placeSelection(a, b) {
  const left = plot.svg.getBoundingClientRect().left;
  const ends = [a.clientX - left, b.clientX - left].map((x) => Math.min(Math.max(x, frame.left), frame.width - frame.right));
  selection.style.setProperty("left", `${Math.min(...ends)}px`);
  selection.style.setProperty("width", `${Math.abs(ends[0] - ends[1])}px`);
}

/** A wheel that turns sideways moves what is shown; one that turns up and down moves the page. */
function onWheel(event) {
  const sideways = event.shiftKey ? event.deltaY || event.deltaX : event.deltaX;
  if (isWhole() || Math.abs(sideways) <= Math.abs(event.shiftKey ? 0 : event.deltaY)) return;
  event.preventDefault();
  pan(sideways / plotWidth());
}

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const at = cursor.at ?? data.timeline.peak;
  const actions = {
    ArrowLeft: () => pin(event.shiftKey ? layerBefore(at) : at - 1),
    ArrowDown: () => pin(at - 1),
    ArrowRight: () => pin(event.shiftKey ? layerAfter(at) : at + 1),
    ArrowUp: () => pin(at + 1),
    PageUp: () => pin(layerAfter(at)),
    PageDown: () => pin(layerBefore(at)),
    Home: () => pin(0),
    End: () => pin(data.timeline.count - 1),
    Escape: () => pin(null),
    p: () => pin(data.timeline.peak),
    "+": () => zoom(0.5, at),
    "=": () => zoom(0.5, at),
    "-": () => zoom(2, at),
    0: () => show(0, data.timeline.count),
  };
  const action = actions[event.key] ?? actions[event.key.toLowerCase()];
  if (!action) return;
  event.preventDefault();
  action();
}

function layerAfter(moment) {
  return data.timeline.layers.find((part) => part.from > moment)?.from ?? data.timeline.count - 1;
}

function layerBefore(moment) {
  return data.timeline.layers.findLast((part) => part.from < moment)?.from ?? 0;
}

function buildTools() {
  const middle = () => {
    const at = cursor.pinned ?? data.timeline.peak;
    return at >= view.from && at < view.to ? at : Math.floor((view.from + view.to) / 2);
  };
  const tools = [
    ["Peak", "Go to the peak", () => pin(data.timeline.peak), false],
    ["‹", "Earlier", () => pan(-0.5), true],
    ["›", "Later", () => pan(0.5), true],
    ["−", "Show more of the step", () => zoom(2, middle()), true],
    ["+", "Show less of the step", () => zoom(0.5, middle()), false],
    ["Whole step", null, () => show(0, data.timeline.count), true],
  ];
  for (const [text, label, action, zoomed] of tools) {
    const button = element("button", { type: "button", "aria-label": label, title: label, "data-zoomed": zoomed }, text);
    button.addEventListener("click", action);
    byId("zoom").append(button);
  }
}
