// The configuration as it was written, each rule with what it matched.

function buildConfig() {
  if (!data.config) return;
  byId("config-path").textContent = data.config.path ?? "";
  const rules = grouping(data.config.rules ?? [], (rule) => rule.line ?? 0);
  const list = element("ol", { class: "lines" });
  (data.config.lines ?? []).forEach((text, i) => list.append(line(text, rules.get(i + 1) ?? [])));
  byId("config-lines").append(list);
  const rest = [...rules].filter(([number]) => number < 1 || number > list.children.length).flatMap(([, found]) => found);
  if (rest.length) {
    byId("config-lines").append(element("h3", {}, list.children.length ? "Rules without a line" : "Rules"));
    byId("config-lines").append(element("ul", { class: "lines loose" }, ...rest.map((rule) => line(rule.field, [rule]))));
  }
  byId("config").hidden = false;
}

function line(text, rules) {
  const code = element("code", {}, ...coloured(text));
  if (!rules.length) return element("li", {}, code);
  const found = element("span", { class: "found" }, ...rules.map(ruleButton));
  const item = element("li", { class: "rule-line" }, code, found);
  if (rules.length === 1 && data.values) {
    item.classList.add("whole");
    item.addEventListener("click", (event) => {
      if (!event.target.closest("button") && !String(window.getSelection())) found.firstChild.click();
    });
  }
  return item;
}

/** Keys and comments of a line of YAML; the rest as it is. */
function coloured(text) {
  const end = beginOfComment(text);
  const key = /^\s*(?:- )?[\w.]+:/.exec(text.slice(0, end))?.[0] ?? "";
  const comment = text.slice(end);
  const parts = [key && element("span", { class: "yaml-key" }, key), text.slice(key.length, end)];
  return [...parts, comment && element("span", { class: "yaml-comment" }, comment)].filter(Boolean);
}

/** Where `# …` begins: after a space, outside quotes; a quote that never ends is none. */
function beginOfComment(text) {
  for (let i = 0; i < text.length; i += 1) {
    const afterSpace = i === 0 || /[\s,:[{]/.test(text[i - 1]);
    const close = afterSpace && (text[i] === "'" || text[i] === '"') ? text.indexOf(text[i], i + 1) : -1;
    if (close > 0) i = close;
    else if (text[i] === "#" && (i === 0 || /\s/.test(text[i - 1]))) return i;
  }
  return text.length;
}

function ruleButton(rule) {
  if (!rule.values) return element("span", { class: "nothing", title: rule.field }, "matched nothing");
  const tag = data.values ? "button" : "span";
  const attributes = { type: data.values && "button", class: "rule-found", "data-rule": rule.field, title: rule.field };
  const button = element(tag, attributes);
  const parts = [rule.layers && `layers ${rule.layers}`, counted(rule.values, "value"), bytes(rule.bytes)].filter(Boolean);
  for (const part of parts) button.append(element("span", {}, part), " ");
  for (const [action, count] of Object.entries(rule.actions ?? {})) {
    if (count) button.append(actionCount(action, count), " ");
  }
  if (data.values) {
    button.addEventListener("click", () => showValues({ rule: ruleKey(rule.field) }, button, "the configuration"));
  }
  return button;
}

function actionCount(action, count) {
  const name = element("span", { class: "name" }, action);
  return element("span", { class: "count" }, picture(ACTION_OF_VALUE[action] ?? action), `${grouped.format(count)} `, name);
}
