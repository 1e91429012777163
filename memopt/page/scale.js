// What part of the step the plots show, and where in them a moment is.

const frame = { width: 0, left: 64, right: 12 };
const view = { from: 0, to: data.timeline?.count ?? 0, listeners: [] };
const LEAST_MOMENTS = 12;

function plotWidth() {
  return Math.max(frame.width - frame.left - frame.right, 1);
}

/** Pixels from the left of a plot to the beginning of a moment. */
function xOf(moment) {
  return frame.left + ((moment - view.from) / (view.to - view.from)) * plotWidth();
}

/** Where a moment begins that `pixels` from the left lie in. */
function momentAt(pixels) {
  const at = view.from + ((pixels - frame.left) / plotWidth()) * (view.to - view.from);
  return Math.min(Math.max(Math.floor(at), view.from), view.to - 1);
}

function isWhole() {
  return view.from === 0 && view.to === data.timeline.count;
}

/** Shows the moments from `from` on, as many as asked, at least a few, and none outside the step. */
function show(from, to) {
  const { count } = data.timeline;
  const span = Math.min(Math.max(Math.round(to - from), Math.min(LEAST_MOMENTS, count)), count);
  view.from = Math.min(Math.max(Math.round(from), 0), count - span);
  view.to = view.from + span;
  for (const listener of view.listeners) listener();
}

/** Shows `factor` times as many moments, with `moment` where it was. */
function zoom(factor, moment) {
  const middle = moment + 0.5;
  show(middle - (middle - view.from) * factor, middle + (view.to - middle) * factor);
}

/** Moves by a part of what is shown. */
function pan(part) {
  const step = (view.to - view.from) * part;
  show(view.from + step, view.to + step);
}

/** Moves as little as needed to show a moment. */
function reveal(moment) {
  if (moment < view.from) show(moment, moment + view.to - view.from);
  else if (moment >= view.to) show(moment + 1 - (view.to - view.from), moment + 1);
}

/**
 * The moments that are drawn, at most one a pixel: `{moment, left, sum}`, in order; `left` is in pixels.
 * Where several share a pixel, it is that with most bytes in `categories`, so that no peak is lost.
 */
function drawnMoments(categories) {
  const columns = categories.map((name) => data.timeline.bytes[name]);
  const sumAt = (i) => columns.reduce((sum, column) => sum + column[i], 0);
  const span = view.to - view.from;
  const count = Math.min(span, Math.floor(plotWidth()));
  const found = [];
  for (let k = 0; k < count; k += 1) {
    const first = view.from + Math.floor((k * span) / count);
    const end = view.from + Math.floor(((k + 1) * span) / count);
    let best = first;
    let most = sumAt(first);
    for (let i = first + 1; i < end; i += 1) {
      const sum = sumAt(i);
      if (sum > most) [best, most] = [i, sum];
    }
    found.push({ moment: best, left: xOf(first), sum: most });
  }
  return found;
}

/** Round byte counts from 0 to `most`, in steps of 1, 2 or 5 of a unit. */
function byteTicks(most, wanted) {
  let unit = 1;
  while (most / unit >= 1024) unit *= 1024;
  const rough = most / unit / wanted;
  const power = unit === 1 ? Math.max(10 ** Math.floor(Math.log10(rough)), 1) : 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].find((factor) => factor * power >= rough) * power * unit;
  const ticks = [];
  for (let tick = 0; tick <= most; tick += step) ticks.push(tick);
  return ticks;
}

/** The part of the step, from 0 to 1, at which a measured total was seen, in moments: forward and backward each by itself. */
function measuredMoment(part) {
  const { count, phases } = data.timeline;
  const boundary = phases.find((stretch) => stretch.value)?.from ?? count;
  const split = data.measured.backward_at;
  if (!(split > 0 && split < 1)) return part * count;
  return part <= split ? (part / split) * boundary : boundary + ((part - split) / (1 - split)) * (count - boundary);
}
