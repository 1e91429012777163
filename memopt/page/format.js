// Numbers as people read them, and elements of the page.

const BYTES = ["B", "KiB", "MiB", "GiB", "TiB"];

/** `3.5 MiB`; `?` where the size is unknown. */
function bytes(count) {
  if (count === null || count === undefined) return "?";
  let unit = 0;
  while (Math.abs(count) >= 1024 && unit < BYTES.length - 1) {
    count /= 1024;
    unit += 1;
  }
  return `${unit ? oneDecimal(count) : Math.round(count)} ${BYTES[unit]}`;
}

/** Halves go to the even digit, as in what memopt prints: 164.25 is 164.2 in both. */
function oneDecimal(number) {
  const tenths = number * 10;
  const down = Math.floor(tenths);
  return (tenths - down === 0.5 && down % 2 === 0 ? down / 10 : number).toFixed(1);
}

/** `1.2 TFLOPs`. */
function flops(count) {
  const units = ["", "k", "M", "G", "T", "P"];
  let unit = 0;
  while (Math.abs(count) >= 1000 && unit < units.length - 1) {
    count /= 1000;
    unit += 1;
  }
  return `${unit ? count.toFixed(1) : Math.round(count)} ${units[unit]}FLOPs`;
}

const grouped = new Intl.NumberFormat("en");

/** `4,003 values`, `1 value`. */
function counted(count, noun) {
  return `${grouped.format(count)} ${noun}${count === 1 ? "" : "s"}`;
}

/** `layer 5`, or `outside layers`. */
function layerName(layer) {
  return layer === null || layer < 0 ? "outside layers" : `layer ${layer}`;
}

function capitalised(text) {
  return text.charAt(0).toUpperCase() + text.slice(1);
}

const SVG = "http://www.w3.org/2000/svg";

/** An element with attributes and children; text children are text, whatever they contain. */
function element(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

/** The same for SVG. */
function drawn(tag, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), attributes, children);
}

function filled(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined && value !== false) node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

function byId(id) {
  return document.getElementById(id);
}

/** The picture of an action, since colours alone do not tell them apart. */
const PICTURES = {
  keep: "M3 3h10v10H3z",
  recompute: "M8 2a6 6 0 1 0 6 6h-2.2A3.8 3.8 0 1 1 8 4.2V7l4.5-3.9L8 0z",
  swap: "M5 1 1 6h2.7v8h2.6V6H9zM11 15l4-5h-2.7V2H9.7v8H7z",
  mixed: "M8 2a6 6 0 0 0 0 12zM9 2.2v2a4 4 0 0 1 0 7.6v2a6 6 0 0 0 0-11.6z",
  none: "M2 7h12v2H2z",
};

function picture(action) {
  const path = drawn("path", { d: PICTURES[action] ?? PICTURES.none });
  return drawn("svg", { class: "picture", viewBox: "0 0 16 16", "aria-hidden": "true", "data-action": action }, path);
}

/** What a value's action is called where layers are: values are saved or offloaded, layers kept or swapped. */
const ACTION_OF_VALUE = { save: "keep", recompute: "recompute", offload: "swap" };

const calm = window.matchMedia("(prefers-reduced-motion: reduce)");

function scrollTo(node, block = "start") {
  node.scrollIntoView({ block, behavior: calm.matches ? "auto" : "smooth" });
}

/** One tab stop for a group of buttons: arrow keys, Home and End move within it. */
function roving(buttons, keys = ["ArrowLeft", "ArrowRight"]) {
  buttons.forEach((button, i) => {
    button.setAttribute("tabindex", i ? -1 : 0);
    button.addEventListener("focus", () => {
      for (const other of buttons) other.setAttribute("tabindex", other === button ? 0 : -1);
    });
    button.addEventListener("keydown", (event) => {
      const to = { [keys[0]]: i - 1, [keys[1]]: i + 1, Home: 0, End: buttons.length - 1 }[event.key];
      if (to === undefined) return;
      event.preventDefault();
      buttons[Math.min(Math.max(to, 0), buttons.length - 1)].focus();
    });
  });
}
