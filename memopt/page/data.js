// The data of the page, as it was before it was packed. Missing parts are null or empty.

function unpacked(raw) {
  return {
    categories: raw.categories ?? Object.keys(raw.timeline?.bytes ?? {}),
    timeline: raw.timeline?.phase?.length ? unpackedTimeline(raw.timeline) : null,
    measured: raw.measured?.at?.length ? raw.measured : null,
    layers: raw.layers ?? [],
    swaps: raw.swaps ?? [],
    config: raw.config?.lines?.length || raw.config?.rules?.length ? raw.config : null,
    values: raw.values?.count ? unpackedValues(raw.values) : null,
  };
}

/** Sums the differences up again, category by category, and all of them. */
function unpackedTimeline(packed) {
  const count = packed.phase.length;
  const total = new Float64Array(count);
  const categories = {};
  for (const [name, differences] of Object.entries(packed.bytes)) {
    const column = new Float64Array(count);
    let now = 0;
    for (let i = 0; i < count; i += 1) {
      now += differences[i];
      column[i] = now;
      total[i] += now;
    }
    categories[name] = column;
  }
  const { phase, layer, operator, names } = packed;
  const peak = total.reduce((best, value, i) => (value > total[best] ? i : best), 0);
  return {
    count, phase, layer, total, peak,
    bytes: categories,
    name: (i) => names[operator[i]] ?? "",
    phaseName: (i) => (phase[i] ? "backward" : "forward"),
    phases: stretches(phase),
    layers: stretches(layer),
  };
}

/** Where a column stays the same: `{from, to, value}`, `to` excluded. */
function stretches(column) {
  const found = [];
  for (let i = 0; i < column.length; i += 1) {
    const last = found[found.length - 1];
    if (last && last.value === column[i]) last.to = i + 1;
    else found.push({ from: i, to: i + 1, value: column[i] });
  }
  return found;
}

/** The columns of the values: `numbers` of a column, or the `words` of one and where `at` they are. */
function unpackedValues(packed) {
  const columns = {};
  for (const [name, column] of Object.entries(packed.columns)) {
    columns[name] = Array.isArray(column) ? { numbers: column } : { words: column.words, at: column.at };
  }
  return { count: packed.count, columns };
}

const data = unpacked(JSON.parse(byId("data").textContent));
