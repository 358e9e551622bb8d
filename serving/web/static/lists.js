// The lists of the page: recommendations with what moved, this visit, the history, similar items.

import { actInWords, partsInWords, SOURCES } from "./words.js";

const still = matchMedia("(prefers-reduced-motion: reduce)");

function made(tag, className, text) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  if (text !== undefined) element.textContent = text;
  return element;
}

function button(className, text, label, click) {
  const element = made("button", className, text);
  element.type = "button";
  if (label) element.setAttribute("aria-label", label);
  element.addEventListener("click", click);
  return element;
}

function shortened(categories) {
  const shown = categories.slice(0, 3).join(" \u00b7 ");
  return categories.length > 3 ? `${shown} +${categories.length - 3}` : shown;
}

function row(item, actions) {
  const element = made("li", "item");
  element.dataset.id = item.item_id;
  const title = button("title", item.title, `View ${item.title}`, () =>
    actions.add(item.item_id),
  );
  title.dir = "auto";
  title.title = item.title;
  const text = made("div", "text");
  text.append(title, made("p", "why quiet"));
  const from = made("div", "from");
  const score = made("span", "score");
  score.append(made("span", "bar"), made("span", "number"));
  from.append(made("b", "badge"), score);
  element.append(made("span", "place"), made("span", "move"), text, from);
  if (actions.open) {
    const does = made("div", "does");
    const like = button("plain small heart", "\u2661", `Like ${item.title}`, () =>
      actions.like(item.item_id),
    );
    const more = button("plain small more", "Why", `Why ${item.title}, and what is similar`, () =>
      actions.open(item.item_id, more),
    );
    const hide = button("plain small", "Hide", `Hide ${item.title}`, () =>
      actions.refuse(item, "hide"),
    );
    const less = button("plain small", "Less", `Less like ${item.title}`, () =>
      actions.refuse(item, "dislike"),
    );
    does.append(like, hide, less, more);
    element.append(does);
  }
  return element;
}

function fill(element, item, place, top) {
  element.querySelector(".place").textContent = String(place);
  const why = element.querySelector(".why");
  // What a rule put there was not ranked for a reason.
  const reason = item.reason === item.source || item.source === "rules" ? null : item.reason;
  why.textContent = [reason, shortened(item.categories)].filter(Boolean).join(" \u2014 ");
  why.title = item.categories.join(", ");
  why.dir = "auto";
  const source = SOURCES[item.source] ?? { label: item.source, title: item.source };
  const badge = element.querySelector(".badge");
  badge.className = `badge ${item.source}`;
  badge.textContent = source.label;
  badge.title = source.title;
  const score = element.querySelector(".score");
  const parts = partsInWords(item.contributions);
  score.title = [`score ${item.score}`, parts].filter(Boolean).join(": ");
  // Of a list by popularity, scores are too small to say anything; the bar shows their order.
  score.querySelector(".number").textContent = item.score >= 0.001 ? item.score.toPrecision(3) : "";
  const bar = score.querySelector(".bar");
  bar.hidden = item.score <= 0;
  bar.style.setProperty("--share", String(top > 0 ? item.score / top : 0));
  const colours = Object.entries(item.contributions ?? {}).map(([source, part]) => {
    const colour = made("i", `part ${source}`);
    colour.style.setProperty("--part", String(Math.max(0, part)));
    return colour;
  });
  bar.classList.toggle("parted", colours.length > 0);
  bar.replaceChildren(...colours);
}

const MOVES = {
  same: () => ["", ""],
  entered: () => ["new", "new in the list"],
  up: (by) => [`\u25b2${by}`, `moved up by ${by}`],
  down: (by) => [`\u25bc${by}`, `moved down by ${by}`],
};

function mark(element, kind, by) {
  const move = element.querySelector(".move");
  const [text, spoken] = MOVES[kind](by);
  move.className = `move ${kind}`;
  move.replaceChildren(...(text ? [made("span", "", text), made("span", "unseen", spoken)] : []));
  move.firstChild?.setAttribute("aria-hidden", "true");
  move.title = spoken;
}

// Slide rows from where they were to where they are.
function slide(rows, before) {
  if (still.matches) return;
  for (const element of rows) {
    const was = before.get(element.dataset.id);
    if (was === undefined) {
      element.animate([{ opacity: 0 }, { opacity: 1 }], { duration: 180, easing: "ease-out" });
      continue;
    }
    const by = was - element.offsetTop;
    if (by) {
      const from = { transform: `translateY(${by}px)` };
      element.animate([from, { transform: "none" }], { duration: 220, easing: "ease-out" });
    }
  }
}

// Show a list; where it follows another of the same kind, mark and return what changed;
// items added to the visit have not left it.
export function showList(list, shown, actions, { compare, taken = [] }) {
  const old = new Map([...list.children].map((element) => [element.dataset.id, element]));
  const places = new Map([...old.keys()].map((id, place) => [id, place]));
  const tops = new Map([...old].map(([id, element]) => [id, element.offsetTop]));
  const focused = document.activeElement?.closest?.("li.item");
  const focusPlace = focused && list.contains(focused) ? places.get(focused.dataset.id) : -1;

  const change = { entered: 0, up: 0, down: 0, left: 0 };
  const top = Math.max(0, ...shown.map(({ score }) => score));
  const rows = shown.map((item, place) => {
    const element = old.get(item.item_id) ?? row(item, actions);
    fill(element, item, place + 1, top);
    const was = places.get(item.item_id);
    let kind = "same";
    if (compare && was === undefined) kind = "entered";
    else if (compare && was > place) kind = "up";
    else if (compare && was < place) kind = "down";
    if (kind !== "same") change[kind] += 1;
    mark(element, kind, Math.abs(was - place));
    return element;
  });
  const kept = new Set(shown.map((item) => item.item_id));
  const left = compare ? [...old.keys()].filter((id) => !kept.has(id) && !taken.includes(id)) : [];
  change.left = left.length;
  const leftTitles = left.map((id) => old.get(id).querySelector(".title").textContent);

  list.replaceChildren(...rows);
  slide(rows, tops);
  if (focusPlace >= 0 && rows.length && !rows.includes(document.activeElement?.closest?.("li"))) {
    const next = focused.isConnected ? focused : rows[Math.min(focusPlace, rows.length - 1)];
    next.querySelector(".title").focus({ preventScroll: true });
  }
  return { change, leftTitles };
}

export function showVisit(list, cards, remove) {
  const rows = cards.map((card, place) => {
    const element = made("li", "chip");
    const title = made("span", "", card.title);
    title.dir = "auto";
    title.title = card.title;
    element.append(title);
    // What is stored stays stored.
    if (card.sent) element.append(made("b", `badge act ${card.type}`, actInWords(card.type)));
    else element.append(button("remove", "\u00d7", `Remove ${card.title}`, () => remove(place)));
    return element;
  });
  const none = made("li", "none quiet", "Nothing yet: click a title, and the list follows.");
  list.replaceChildren(...(rows.length ? rows : [none]));
  list.scrollLeft = list.scrollWidth;
  list.scrollTop = list.scrollHeight;
}

function bars(list, lines) {
  const top = Math.max(...lines.map(([, , share]) => share), Number.MIN_VALUE);
  const rows = lines.flatMap(([name, text, share, kind]) => {
    const value = made("dd");
    const bar = made("span", `stage ${kind ?? ""}`);
    bar.style.setProperty("--share", String(share / top));
    value.append(bar, made("span", "number", text));
    return [made("dt", "", name), value];
  });
  list.replaceChildren(...rows);
}

// Where the time of a list went; the rest is the way there and back.
export function showStages(list, timings, took) {
  const { total, ...stages } = timings;
  const lines = [...Object.entries(stages), ["network and page", Math.max(0, took - total)]];
  bars(list, lines.map(([name, ms]) => [name, `${ms.toFixed(2)} ms`, ms]));
}

export function showParts(list, contributions) {
  const lines = Object.entries(contributions).map(([source, part]) => [
    SOURCES[source]?.label ?? source,
    `${Math.round(100 * part)}%`,
    Math.max(0, part),
    source,
  ]);
  bars(list, lines);
}

const day = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeZone: "UTC" });

// What a user wants; only what was said can be deleted.
export function showTopics(list, topics, remove) {
  const rows = topics.map((topic) => {
    const element = made("li", "event");
    const words = made("span", "", `${topic.direction} ${topic.words}`);
    words.dir = "auto";
    const facts = topic.source === "said" ? [] : ["from the history"];
    if (topic.source === "said" && topic.num_items !== undefined) facts.push(`${topic.num_items} items`);
    if (topic.ignored) facts.push(`\u201c${topic.ignored.join(" ")}\u201d matches nothing`);
    if (topic.said_as) facts.push(`a language model read \u201c${topic.said_as}\u201d`);
    if (topic.until) facts.push(`until ${day.format(new Date(1000 * topic.until))}`);
    element.append(words, made("span", "quiet when", facts.join(", ")));
    if (topic.source === "said") {
      element.append(button("remove", "\u00d7", `Delete ${topic.words}`, () => remove(topic.words)));
    }
    return element;
  });
  list.replaceChildren(...(rows.length ? rows : [made("li", "none quiet", "Nothing said yet.")]));
}

export function showHistory(list, past, none, open) {
  const rows = past.map((item) => {
    const element = made("li", "event");
    const title = button("link", item.title, `About ${item.title}`, () =>
      open(item.item_id, title),
    );
    title.dir = "auto";
    title.title = item.title;
    const when = item.unix_time === undefined ? "" : day.format(new Date(1000 * item.unix_time));
    element.append(title, made("span", "quiet when", when));
    return element;
  });
  list.replaceChildren(...(rows.length ? rows : [made("li", "none quiet", none)]));
  list.scrollTop = 0;
}
