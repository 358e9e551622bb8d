// Charts: Vega-Lite drawn as SVG when it comes into view, its table, and downloads of both.
import { button, make, saveCsv, text } from "./element.js";
import { written } from "./format.js";
import { savePng, saveSvg } from "./image.js";
import { originLine } from "./links.js";

let library = null;

async function vegaEmbed() {
  library ??= import("./vega.js");
  await library;
  return globalThis.vegaEmbed;
}

const bubble = make("div", { id: "bubble", hidden: true });
addEventListener("scroll", () => bubble.hidden = true, { passive: true, capture: true });

function worded(value) {
  if (value === null || value === undefined || value === "") return "";
  if (typeof value !== "object") return String(value);
  return Object.entries(value).map(([name, one]) => `${name}: ${one}`).join("\n");
}

export function point(x, y, value) {
  if (!bubble.isConnected) document.body.append(bubble);
  const words = worded(value);
  bubble.hidden = !words;
  if (!words) return;
  bubble.textContent = words;
  const box = bubble.getBoundingClientRect();
  bubble.style.left = `${Math.max(8, Math.min(x + 14, innerWidth - box.width - 8))}px`;
  bubble.style.top = `${y + 18 + box.height > innerHeight ? y - box.height - 10 : y + 18}px`;
}

// A chart as high as its rows fits its place in width alone; Vega-Lite warns where that is not said.
function sized(spec) {
  const fits = typeof spec.height !== "number" && !spec.autosize;
  return fits ? { ...spec, autosize: { type: "fit-x", contains: "padding" } } : spec;
}

async function draw(view, place, block) {
  try {
    const embed = await vegaEmbed();
    if (!place.isConnected) return;
    const made = await embed(place, sized(block.spec), {
      mode: "vega-lite",
      ast: true,
      renderer: "svg",
      actions: false,
      defaultStyle: false,
      hover: false,
      tooltip: (_, event, __, value) => point(event?.clientX ?? 0, event?.clientY ?? 0, value),
    });
    view.leaving.push(() => made.finalize());
    place.querySelector("svg")?.setAttribute("aria-hidden", "true");
    place.dataset.drawn = "true";
  } catch (error) {
    place.textContent = "This chart could not be drawn; its values are in its table.";
    place.classList.add("failed");
    console.error(error);
  }
}

const heights = new Map();

// Draw what is in view, or nearly; the rest when it comes there.
export function watchCharts(view) {
  let [ready, settled] = [null, null];
  settled = new Promise((resolve) => ready = resolve);
  const waiting = [...view.charts];
  if (!waiting.length) return Promise.resolve();
  const seen = new IntersectionObserver((entries) => {
    const now = entries.filter((entry) => entry.isIntersecting);
    const drawn = now.map(async ({ target }) => {
      seen.unobserve(target);
      await draw(view, target, view.charts.get(target));
      heights.set(target.dataset.chart, target.offsetHeight);
    });
    Promise.all(drawn).then(ready);
  }, { rootMargin: "300px" });
  for (const [place] of waiting) seen.observe(place);
  view.leaving.push(() => seen.disconnect());
  return settled;
}

const labelOf = (column) => column.label ?? column;

export function valuesTable(block) {
  const numeric = block.columns.map((_, place) =>
    block.rows.some((row) => typeof row[place] === "number"));
  const head = block.columns.map((column, place) =>
    text(labelOf(column), "th", { scope: "col", class: numeric[place] ? "number" : "" }));
  const rows = block.rows.map((row) =>
    make("tr", {}, row.map((cell, place) =>
      text(written(cell, block.columns[place].format), "td", { class: numeric[place] ? "number" : "" }))));
  return make(
    "table",
    { class: "plain" },
    text(block.title, "caption", { class: "unseen" }),
    make("thead", {}, make("tr", {}, head)),
    make("tbody", {}, rows),
  );
}

function legendOf(block) {
  const entries = Object.entries(block.legend);
  if (!entries.length) return null;
  const rows = entries.map(([name, color]) => {
    const swatch = make("span", { class: "swatch" });
    swatch.style.background = color;
    return make("li", {}, swatch, text(name));
  });
  return make("ul", { class: "legend", "aria-label": "Colours" }, rows);
}

export function chartBlock(view, block, level) {
  const id = `chart-${block.key}`;
  const key = `${view.page}/${block.key}`;
  const description = `${block.title}. ${block.note} Its values are in its table.`;
  const place = make("div", { class: "chart", role: "img", "aria-label": description });
  place.dataset.chart = key;
  if (heights.has(key)) place.style.minHeight = `${heights.get(key)}px`;
  view.charts.set(place, block);
  const values = make("div", { class: "scroll", id: `${id}-values`, hidden: true, tabindex: "0" });
  values.setAttribute("role", "region");
  values.setAttribute("aria-label", `Values of ${block.title}`);
  const toggle = button("Table", () => {
    if (!values.firstChild) values.append(valuesTable(block));
    values.hidden = !values.hidden;
    toggle.setAttribute("aria-expanded", String(!values.hidden));
  }, { "aria-expanded": "false", "aria-controls": values.id });
  const named = (label) => ({ "aria-label": `${label} of ${block.title}` });
  const tools = [
    toggle,
    button("CSV", () => saveCsv(block.key, block.columns.map(labelOf), block.rows), named("CSV")),
    button("SVG", () => saveSvg(block, place), named("SVG")),
    button("PNG", () => savePng(block, place), named("PNG")),
  ];
  return make(
    "figure",
    { class: "card", id: block.key, "aria-labelledby": `${id}-title` },
    text(block.title, `h${level}`, { id: `${id}-title` }),
    block.note ? text(block.note, "p", { class: "quiet small" }) : null,
    legendOf(block),
    place,
    make("div", { class: "tools" }, tools),
    values,
    originLine(view, block.origins),
  );
}
