// Blocks of a page, drawn by their kind.
import { chartBlock } from "./chart.js";
import { button, make, text } from "./element.js";
import { linked, linkList, originLine, target } from "./links.js";
import { tableBlock } from "./table.js";


export function heading(level, title, attributes = {}) {
  return text(title, `h${level}`, attributes);
}

function wordsBlock(view, block) {
  const several = block.lines.length > 1;
  const lines = several
    ? make("ul", {}, block.lines.map((line) => text(line, "li")))
    : block.lines.map((line) => text(line, "p"));
  const role = block.tone === "bad" ? { role: "note" } : {};
  return make(
    "div",
    { class: `words tone-${block.tone}`, ...role },
    lines,
    linkList(view, block.links),
  );
}

const LONG = 11;

function tilesBlock(view, block) {
  const tiles = block.tiles.map((tile) =>
    make(
      "div",
      { class: `tile tone-${tile.tone}` },
      text(tile.label, "dt"),
      make("dd", { class: tile.value.length > LONG ? "long" : "" }, linked(view, tile.value, tile.link)),
      tile.note ? text(tile.note, "dd") : null,
    ),
  );
  return make("dl", { class: "tiles" }, tiles);
}

function entryOf(view, entry) {
  const { mark } = entry;
  const attributes = { class: mark ? `mark-${mark}` : "", data: { item: entry.item_id } };
  if (target(view, entry.link) === null) attributes.tabindex = "0";
  return make(
    "li",
    attributes,
    linked(view, entry.title || entry.item_id, entry.link, { class: "title" }),
    mark ? make("span", { class: "mark" }, mark) : null,
    entry.note ? text(entry.note, "span", { class: "note" }) : null,
  );
}

function listsBlock(view, block, level) {
  const lists = block.lists.map((list) =>
    make(
      "div",
      { class: "list" },
      heading(level, list.title),
      list.note ? text(list.note, "p", { class: "quiet small" }) : null,
      list.entries.length
        ? make("ol", {}, list.entries.map((one) => entryOf(view, one)))
        : text(list.empty, "p", { class: "quiet small" }),
    ),
  );
  const made = make(
    "div",
    { class: "card", id: block.key },
    make("div", { class: "lists" }, lists),
    originLine(view, block.origins),
  );
  const point = (event, on) => {
    const item = event.target.closest?.("li[data-item]")?.dataset.item;
    for (const one of made.querySelectorAll("li[data-item]")) {
      one.classList.toggle("same", on && one.dataset.item === item);
    }
  };
  for (const name of ["mouseover", "focusin"]) made.addEventListener(name, (e) => point(e, true));
  for (const name of ["mouseleave", "focusout"]) made.addEventListener(name, (e) => point(e, false));
  return made;
}

function sectionBlock(view, block, level) {
  const title = heading(level, block.title, { id: `title-${block.key}`, tabindex: "-1" });
  return make(
    "section",
    { id: block.key, "aria-labelledby": title.id, data: { section: block.title } },
    title,
    block.note ? text(block.note, "p", { class: "quiet lead" }) : null,
    drawBlocks(view, block.blocks, level + 1),
  );
}

function codeBlock(view, block) {
  const code = make("pre", { tabindex: "0", "aria-label": block.title }, block.text);
  const copy = button("Copy", async () => {
    try {
      await navigator.clipboard.writeText(block.text);
      view.announce("Copied");
      copy.textContent = "Copied";
    } catch {
      getSelection().selectAllChildren(code);
      copy.textContent = "Selected";
    }
  });
  return make(
    "details",
    { class: "card code", id: block.key },
    make("summary", {}, text(block.title)),
    copy,
    code,
  );
}

const KINDS = {
  words: wordsBlock,
  tiles: tilesBlock,
  chart: chartBlock,
  table: tableBlock,
  lists: listsBlock,
  code: codeBlock,
  section: sectionBlock,
};
const SIDE_BY_SIDE = new Set(["chart"]);

// Draw blocks in their order; charts that follow each other stand side by side.
export function drawBlocks(view, blocks, level) {
  const made = [];
  let row = null;
  const add = (drawn) => {
    row.append(drawn);
    row.classList.toggle("many", row.children.length > 2 && row.dataset.kind === "chart");
  };
  for (const block of blocks) {
    const drawn = KINDS[block.kind](view, block, level);
    if (!SIDE_BY_SIDE.has(block.kind)) {
      row = null;
      made.push(drawn);
    } else if (row?.dataset.kind === block.kind) add(drawn);
    else {
      row = make("div", { class: `row ${block.kind}s`, data: { kind: block.kind } }, drawn);
      made.push(row);
    }
  }
  return made;
}
