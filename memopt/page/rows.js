// The values as rows: which of them the filter leaves, in which order, and what they sum up to. No elements here.

const rows = { columns: data.values?.columns ?? {}, count: data.values?.count ?? 0, texts: null };

/** What a cell holds: a number, a text, or null. */
function cellOf(name, row) {
  const column = rows.columns[name];
  if (!column) return null;
  return column.numbers ? column.numbers[row] : column.words[column.at[row]];
}

/** Each row's text in lower case, made when it is first searched. */
function textsOfRows() {
  if (rows.texts) return rows.texts;
  const own = Object.values(rows.columns).filter((column) => column.words);
  const lower = own.map((column) => column.words.map((word) => word.toLowerCase()));
  rows.texts = Array.from({ length: rows.count }, (_, row) => own.map((column, c) => lower[c][column.at[row]]).join("\n"));
  return rows.texts;
}

/** The numbers of the rows that the filter leaves: all words are in the row's text, and all choices are the row's. */
function matching({ text, action, layer, rule, kind }) {
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  const texts = words.length ? textsOfRows() : null;
  const found = [];
  for (let row = 0; row < rows.count; row += 1) {
    if (action && cellOf("action", row) !== action) continue;
    if (layer && layerKey(cellOf("layer", row)) !== layer) continue;
    if (rule && ruleKey(cellOf("rule", row)) !== rule) continue;
    if (kind && cellOf("kind", row) !== kind) continue;
    if (words.every((word) => texts[row].includes(word))) found.push(row);
  }
  return found;
}

/** The same rows by a column; rows without a value come last, equal ones stay in their order. */
function ordered(found, column, direction) {
  if (!column) return found;
  const key = sortKey(column);
  const sign = direction === "descending" ? -1 : 1;
  return [...found].sort((a, b) => {
    const [x, y] = [key[a], key[b]];
    if (x === y) return a - b;
    if (x === null) return 1;
    if (y === null) return -1;
    return sign * (x - y);
  });
}

/** A number for each row that sorts like its cell: for texts, the place of each word among all. */
function sortKey(name) {
  const column = rows.columns[name];
  if (column.numbers) return column.numbers;
  if (!column.key) {
    const collator = new Intl.Collator("en", { numeric: true });
    const places = new Map([...column.words].sort(collator.compare).map((word, place) => [word, place]));
    column.key = column.at.map((word) => (column.words[word] ? places.get(column.words[word]) : null));
  }
  return column.key;
}

/** `{bytes, unknown}` of some rows, all of them and by action. */
function sums(found) {
  const all = { bytes: 0, unknown: 0, actions: new Map() };
  for (const row of found) {
    const size = cellOf("bytes", row);
    const action = cellOf("action", row);
    if (size === null) all.unknown += 1;
    all.bytes += size ?? 0;
    all.actions.set(action, (all.actions.get(action) ?? 0) + (size ?? 0));
  }
  return all;
}
