// Which values the table shows, and who wants to know when that changes.

const ANY = Object.freeze({ text: "", action: "", layer: "", rule: "", kind: "" });
const OUTSIDE = "outside";

const filter = {
  now: { ...ANY },
  listeners: [],

  /** Changes some of the filter, and leaves the rest. */
  set(changes) {
    this.now = { ...this.now, ...changes };
    for (const listener of this.listeners) listener(this.now);
  },
};

/** A layer as the filter has it: texts, so that nothing is like `""`. */
function layerKey(layer) {
  return layer === null ? OUTSIDE : String(layer);
}

/** A rule as the filter has it; `""` is what torch chose. */
function ruleKey(rule) {
  return `=${rule}`;
}

/** Where a jump to the table came from, to go back to. */
let origin = null;

/** Shows these values alone, goes to the table, and remembers the way back. */
function showValues(changes, from, name) {
  if (!data.values) return;
  origin = from;
  filter.set({ ...ANY, ...changes });
  const back = byId("back");
  back.textContent = `Back to ${name}`;
  back.hidden = false;
  scrollTo(byId("values"));
  byId("values-title").focus({ preventScroll: true });
}

function goBack() {
  if (!origin) return;
  byId("back").hidden = true;
  filter.set({ ...ANY });
  scrollTo(origin.closest("section"), "nearest");
  origin.focus({ preventScroll: true });
  scrollTo(origin, "nearest");
  origin = null;
}
