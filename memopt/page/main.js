// Builds the page from its parts, and remembers the theme.

const THEME = "memopt-theme";

function rememberTheme() {
  // Where a page may store nothing, the theme lasts as long as the page.
  const stored = (action) => {
    try {
      return action(window.localStorage);
    } catch {
      return null;
    }
  };
  const chosen = stored((storage) => storage.getItem(THEME));
  for (const input of document.querySelectorAll("input[name=theme]")) {
    if (input.value === chosen) input.checked = true;
    input.addEventListener("change", () => stored((storage) => storage.setItem(THEME, input.value)));
  }
}

function buildNavigation() {
  const sections = [...document.querySelectorAll("main > section.panel[id]:not([hidden])")];
  const names = { timeline: "Timeline", layers: "Layers", config: "Configuration", values: "Values" };
  for (const { id } of sections) byId("nav").append(element("a", { href: `#${id}` }, names[id]));
  byId("nav").hidden = sections.length < 2;
}

rememberTheme();
if (data.timeline) {
  buildSwaps();
  buildTimeline();
}
buildLayers();
buildConfig();
buildTable();
buildNavigation();
