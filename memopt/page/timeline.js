// The memory timeline: what is held at each operator, by category, as areas on top of each other.

const TOP = 26;
const BOTTOM = 44;
const RIBBON = 14;

const categories = data.categories.filter((name) => data.timeline?.bytes[name]);
const shown = new Set(categories);
let measuredShown = Boolean(data.measured);

const plot = { svg: null, height: 0, moments: [], most: 1, cursor: null };

function yOf(count) {
  return TOP + (1 - count / plot.most) * (plot.height - TOP - BOTTOM);
}

function drawTimeline() {
  const own = categories.filter((name) => shown.has(name));
  plot.height = frame.width < 560 ? 280 : 380;
  plot.moments = drawnMoments(own);
  const seen = measuredShown ? visibleMeasured() : [];
  plot.most = 1.12 * Math.max(1, ...plot.moments.map((m) => m.sum), ...seen.map((point) => point.total));
  plot.cursor = drawn("g", { class: "cursor" });
  const bottom = plot.height - BOTTOM;
  plot.svg.setAttribute("height", plot.height);
  plot.svg.setAttribute("width", frame.width);
  plot.svg.replaceChildren(
    ...phaseBands(bottom, true), ...grid(), ...areas(own), ...measuredLine(seen), ...boundary(bottom),
    ...layerRibbon(), ...peakMark(own), plot.cursor,
  );
}

/** The parts of `stretches` that are shown. */
function visible(parts) {
  return parts
    .filter((part) => part.to > view.from && part.from < view.to)
    .map((part) => ({ ...part, left: xOf(Math.max(part.from, view.from)), right: xOf(Math.min(part.to, view.to)) }));
}

function phaseBands(bottom, named) {
  return visible(data.timeline.phases).flatMap(({ value, left, right }) => {
    const name = value ? "backward" : "forward";
    const band = drawn("rect", { class: `phase ${name}`, x: left, y: 0, width: right - left, height: bottom });
    if (!named || right - left < 64) return [band];
    return [band, drawn("text", { class: "phase-name", x: left + 8, y: 16 }, capitalised(name))];
  });
}

function boundary(bottom) {
  return visible(data.timeline.phases)
    .filter((part) => part.from > view.from)
    .map(({ left }) => drawn("line", { class: "boundary", x1: left, x2: left, y1: 0, y2: bottom }));
}

function grid() {
  return byteTicks(plot.most, plot.height < 300 ? 4 : 5).flatMap((tick) => {
    const y = Math.round(yOf(tick)) + 0.5;
    const ends = { x1: frame.left, x2: frame.width - frame.right, y1: y, y2: y };
    const text = drawn("text", { class: "tick", x: frame.left - 8, y: y + 4, "text-anchor": "end" }, tick ? bytes(tick) : "0");
    return [drawn("line", { class: tick ? "rule" : "rule zero", ...ends }), text];
  });
}

function areas(own) {
  const { moments } = plot;
  const end = frame.width - frame.right;
  const lower = new Float64Array(moments.length);
  const paths = own.map((name) => {
    const column = data.timeline.bytes[name];
    const upper = lower.map((base, k) => base + column[moments[k].moment]);
    const path = `${steps(moments, upper, end, "M")}${stepsBack(moments, lower, end)}Z`;
    lower.set(upper);
    return drawn("path", { class: "area", "data-category": name, d: path });
  });
  return [...paths, drawn("path", { class: "outline", d: steps(moments, lower, end, "M") })];
}

/** Steps from the left to the right; a run of the same height is one line. */
function steps(moments, heights, end, begin) {
  let path = "";
  let last = null;
  moments.forEach(({ left }, k) => {
    const y = yOf(heights[k]).toFixed(1);
    if (y === last) return;
    path += last === null ? `${begin}${left.toFixed(1)},${y}` : `H${left.toFixed(1)}V${y}`;
    last = y;
  });
  return `${path}H${end.toFixed(1)}`;
}

/** The same steps from the right to the left, to close an area from below. */
function stepsBack(moments, heights, end) {
  let path = "";
  let right = end;
  let last = null;
  for (let k = moments.length - 1; k >= 0; k -= 1) {
    const y = yOf(heights[k]).toFixed(1);
    if (y !== last) path += last === null ? `L${right.toFixed(1)},${y}` : `H${right.toFixed(1)}V${y}`;
    last = y;
    right = moments[k].left;
  }
  return `${path}H${right.toFixed(1)}`;
}

/** The measured totals that are shown, and the last one before them. */
function visibleMeasured() {
  if (!data.measured) return [];
  const points = data.measured.at.map((part, i) => ({ moment: measuredMoment(part), total: data.measured.total[i] }));
  const first = points.findLastIndex((point) => point.moment <= view.from);
  return points.filter((point, i) => i >= first && point.moment <= view.to);
}

function measuredLine(points) {
  if (!points.length) return [];
  let path = "";
  for (const { moment, total } of points) {
    const x = xOf(Math.max(moment, view.from)).toFixed(1);
    path += path ? `H${x}V${yOf(total).toFixed(1)}` : `M${x},${yOf(total).toFixed(1)}`;
  }
  const d = `${path}H${frame.width - frame.right}`;
  return [drawn("path", { class: "measured halo", d }), drawn("path", { class: "measured", d })];
}

/** The layers under the plot, in the order in which they run. */
function layerRibbon() {
  const y = plot.height - BOTTOM + 6;
  let labelled = -Infinity;
  const parts = visible(data.timeline.layers).flatMap(({ value, left, right }, i) => {
    const tone = value < 0 ? "outside" : i % 2 ? "odd" : "even";
    const box = drawn("rect", { class: `ribbon ${tone}`, x: left, y, width: Math.max(right - left, 0.5), height: RIBBON });
    const middle = (left + right) / 2;
    if (value < 0 || middle - labelled < 24) return [box];
    labelled = middle;
    const place = { x: middle, y: y + RIBBON + 14, "text-anchor": "middle" };
    return [box, drawn("text", { class: "ribbon-name", ...place }, String(value))];
  });
  return [...parts, drawn("text", { class: "tick", x: frame.left - 8, y: y + 11, "text-anchor": "end" }, "layer")];
}

/** The highest moment of the whole step, when every category is shown. */
function peakMark(own) {
  const { peak, total } = data.timeline;
  if (own.length < categories.length || peak < view.from || peak >= view.to) return [];
  const x = (xOf(peak) + xOf(peak + 1)) / 2;
  const y = yOf(total[peak]);
  const toTheLeft = x > frame.width * 0.6;
  const label = drawn("text", { class: "peak-name", x: x + (toTheLeft ? -10 : 10), y: y - 6 }, `Peak ${bytes(total[peak])}`);
  label.setAttribute("text-anchor", toTheLeft ? "end" : "start");
  return [drawn("circle", { class: "peak", cx: x, cy: y, r: 4.5 }), label];
}

/** Marks a moment in the timeline, or none. */
function markMoment(moment) {
  if (moment === null || moment < view.from || moment >= view.to) {
    plot.cursor.replaceChildren();
    return;
  }
  const x = (xOf(moment) + xOf(moment + 1)) / 2;
  const sum = categories.reduce((all, name) => (shown.has(name) ? all + data.timeline.bytes[name][moment] : all), 0);
  plot.cursor.replaceChildren(
    drawn("line", { x1: x, x2: x, y1: TOP - 4, y2: plot.height - BOTTOM + 6 + RIBBON }),
    drawn("circle", { cx: x, cy: yOf(sum), r: 4 }),
  );
}
