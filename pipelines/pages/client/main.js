// The dashboard: shows the page that the address names, and navigates between pages.
import { hrefOf, listed, ofPage, parse, queryOf } from "./address.js";
import { watchCharts } from "./chart.js";
import { make, text } from "./element.js";
import { drawError, drawKey, drawPage } from "./page.js";
import { schemeSwitch } from "./scheme.js";
import { Exported, Served } from "./source.js";

const LATE_MS = 150;
const settings = JSON.parse(document.getElementById("settings").textContent);
const source = settings.exported ? new Exported(settings) : new Served(settings);
const root = document.documentElement;
const [main, progress, announced] = ["main", "progress", "announced"].map((id) => document.getElementById(id));
const menu = document.getElementById("menu");
const navigation = document.getElementById("navigation");
const shown = settings.pages.filter((page) => page.in_navigation && source.has(page.name, {}));
const first = (shown[0] ?? settings.pages[0])?.name ?? "";

let view = null;
let loading = null;

function addressed() {
  const found = parse(location.hash);
  return found.page ? found : { page: first, parameters: {}, section: "" };
}

function viewOf({ page, parameters }) {
  return {
    source,
    page,
    parameters,
    first,
    known: settings.pages.some((one) => one.name === page),
    charts: new Map(),
    tables: [],
    later: [],
    leaving: [],
    announce,
    reload: () => show(addressed()),
    go(name, given) {
      const before = location.hash;
      location.hash = hrefOf(name, given);
      // The event that shows it comes later.
      if (location.hash !== before) root.dataset.page = "loading";
    },
    // Note how a table was left, without a step in the history.
    keep(name, value) {
      this.parameters = listed({ ...this.parameters, [name]: value });
      if (view === this) history.replaceState(history.state, "", hrefOf(page, this.parameters, addressed().section));
    },
  };
}

function announce(words) {
  announced.textContent = words;
}

function drawNavigation(current, parameters) {
  const rows = shown.map((page) => {
    const kept = page.keeps.filter((name) => parameters[name]).map((name) => [name, parameters[name]]);
    const given = Object.fromEntries(kept);
    const href = hrefOf(page.name, source.has(page.name, given) ? given : {});
    const here = page.name === current ? { "aria-current": "page" } : {};
    return make("li", {}, make("a", { href, ...here }, text(page.title)));
  });
  navigation.querySelector("ul").replaceChildren(...rows);
}

// What has the focus and what is open, by id, so that a page drawn anew keeps both.
function remembered() {
  const open = [...main.querySelectorAll("details[open][id]")].map((one) => one.id);
  return { id: document.activeElement?.id, open, x: scrollX, y: scrollY };
}

function restore({ id, open, x, y }) {
  for (const one of open) {
    const found = document.getElementById(one);
    if (found) found.open = true;
  }
  scrollTo(x, y);
  if (id) document.getElementById(id)?.focus({ preventScroll: true });
}

function toSection(key) {
  const section = key && document.getElementById(key);
  if (!section) return false;
  const still = matchMedia("(prefers-reduced-motion: reduce)").matches;
  section.scrollIntoView({ behavior: still ? "instant" : "smooth", block: "start" });
  (section.querySelector("[tabindex='-1']") ?? section).focus({ preventScroll: true });
  return true;
}

async function show(address) {
  const before = view;
  const next = viewOf(address);
  const isNew = !before || before.page !== next.page;
  loading?.abort();
  loading = new AbortController();
  const { signal } = loading;
  root.dataset.page = "loading";
  main.setAttribute("aria-busy", "true");
  const late = setTimeout(() => progress.hidden = false, LATE_MS);
  let [found, failure] = [null, null];
  try {
    found = await source.page(next.page, next.parameters, signal);
  } catch (error) {
    if (error.name === "AbortError") return;
    failure = error;
  } finally {
    clearTimeout(late);
  }
  if (signal.aborted) return;
  progress.hidden = true;
  for (const leave of before?.leaving ?? []) leave();
  const kept = remembered();
  view = next;
  // A page drawn anew keeps its height until its tables are there, and so its place.
  main.style.minHeight = isNew ? "" : `${main.offsetHeight}px`;
  if (failure?.status === 401) drawKey(next, main);
  else if (failure) drawError(next, main, failure);
  else drawPage(next, main, found);
  main.removeAttribute("aria-busy");
  const heading = main.querySelector("h1");
  document.title = `${heading.textContent} \u00b7 Recsys`;
  drawNavigation(next.page, next.parameters);
  if (!isNew) restore(kept);
  else if (before) {
    scrollTo(0, 0);
    heading.focus({ preventScroll: true });
  }
  await Promise.all([watchCharts(next), ...next.tables.map((fill) => fill())]);
  if (view !== next) return;
  main.style.minHeight = "";
  if (isNew) toSection(address.section);
  if (before) announce(failure ? heading.textContent : `${heading.textContent}: shown`);
  performance.mark("page-drawn");
  root.dataset.page = failure ? "failed" : "drawn";
}

function closeMenu() {
  menu.setAttribute("aria-expanded", "false");
  navigation.classList.remove("open");
}

addEventListener("hashchange", () => {
  closeMenu();
  // A link to this page's own landmark, such as the skip link, is no address of a page.
  if (location.hash && !location.hash.startsWith("#/")) return;
  const address = addressed();
  const same = view && view.page === address.page && root.dataset.page === "drawn" &&
    queryOf(ofPage(view.parameters)) === queryOf(ofPage(address.parameters));
  if (same && toSection(address.section)) return;
  show(address);
});
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  main.focus();
});
menu.addEventListener("click", () => {
  const open = navigation.classList.toggle("open");
  menu.setAttribute("aria-expanded", String(open));
});
document.querySelector(".scheme").append(schemeSwitch());
drawNavigation(addressed().page, {});
show(addressed());
