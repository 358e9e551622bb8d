// Tables: DataTables over the rows of a document, or over windows of rows from the server.
import { TABLE } from "./address.js";
import { point } from "./chart.js";
import { button, make, saveCsv, text } from "./element.js";
import { written } from "./format.js";
import { linked, originLine } from "./links.js";

const TYPING_MS = 100;
// The server's longest window.
const MAX_SAVED = 1000;
let library = null;

// Numbers by size, texts by their letters, nothing last in either direction.
function compared(direction) {
  return (one, other) => {
    const [empty, emptyToo] = [one === null || one === "", other === null || other === ""];
    if (empty || emptyToo) return Number(empty) - Number(emptyToo);
    if (typeof one === "number" && typeof other === "number") return direction * (one - other);
    return direction * String(one).localeCompare(String(other), "en", { numeric: true });
  };
}

async function dataTables() {
  library ??= import("./datatables.js").then(({ default: DataTable }) => {
    const order = { asc: compared(1), desc: compared(-1) };
    DataTable.type("cell", { order });
    DataTable.ext.errMode = (_, __, message) => console.error(message);
    return DataTable;
  });
  return library;
}

function sortedBy(cell) {
  if (cell === null || typeof cell !== "object") {
    return typeof cell === "boolean" ? Number(cell) : cell;
  }
  return cell.sort ?? cell.text;
}

// What DataTables searches in; it decodes entities in it by way of innerHTML.
function searched(cell, column) {
  const words = written(cell, column.format);
  return words.replaceAll("&", "&amp;").replaceAll("<", "&lt;");
}

function cellNode(view, cell, column) {
  if (cell !== null && typeof cell === "object") return linked(view, cell.text, cell.link);
  return text(written(cell, column.format));
}

const [SHORT, LONG] = [20, 40];

// Short texts stay on a line, long ones get room; where that is too wide the table scrolls.
function sizeOf(words) {
  return words.length <= SHORT ? "short" : words.length <= LONG ? "middle" : "long";
}

function columnOf(view, block, place) {
  const column = block.columns[place];
  const classes = [column.numeric ? "number" : "", column.format];
  return {
    createdCell: (cell, value) => cell.classList.add(sizeOf(written(value, column.format))),
    data: place,
    type: "cell",
    className: classes.filter(Boolean).join(" "),
    orderSequence: column.numeric ? ["desc", "asc", ""] : ["asc", "desc", ""],
    render(cell, kind) {
      if (kind === "display") return cellNode(view, cell, column);
      return kind === "filter" ? searched(cell, column) : sortedBy(cell);
    },
  };
}

function headOf(block) {
  const cells = block.columns.map((column) => {
    const made = make("th", { scope: "col" }, text(column.label, "span"));
    if (column.note) {
      made.classList.add("noted");
      made.setAttribute("aria-description", column.note);
      const show = () => {
        const box = made.getBoundingClientRect();
        point(box.left, box.bottom - 14, column.note);
      };
      const hide = () => point(0, 0, "");
      for (const name of ["mouseenter", "focusin"]) made.addEventListener(name, show);
      for (const name of ["mouseleave", "focusout"]) made.addEventListener(name, hide);
    }
    return made;
  });
  return make("thead", {}, make("tr", {}, cells));
}

// How the table was left, as it stands in the address: start.column.direction.search
function stateOf(view, block) {
  const [found = ""] = view.parameters[TABLE + block.key] ?? [];
  const [start, column, direction, ...search] = found.split(".");
  const known = /^\d+$/.test(column ?? "") && Number(column) < block.columns.length;
  return {
    start: Math.max(0, Number.parseInt(start, 10) || 0),
    order: known ? [[Number(column), direction === "d" ? "desc" : "asc"]] : [],
    search: search.join("."),
  };
}

function keepState(view, block, table) {
  const [column, direction] = table.order()[0] ?? [];
  const order = direction ? `${column}.${direction === "desc" ? "d" : "a"}` : ".";
  const state = `${table.page.info().start}.${order}.${table.search()}`;
  view.keep(TABLE + block.key, state === "0..." ? "" : state);
}

function windowOf(data) {
  const [order] = data.order;
  const window = { start: data.start, length: data.length, search: data.search.value };
  return { ...window, order: order?.column, descending: order?.dir === "desc" };
}

function asker(view, block) {
  let asking = null;
  view.leaving.push(() => asking?.abort());
  return async (data, answer, settings) => {
    asking?.abort();
    asking = new AbortController();
    settings.lastWindow = windowOf(data);
    const { lastWindow: window } = settings;
    const { signal } = asking;
    try {
      const rows = await view.source.rows(
        view.page, block.source, view.parameters, window, signal);
      answer({
        draw: data.draw,
        recordsTotal: rows.total,
        recordsFiltered: rows.found,
        data: rows.rows,
      });
    } catch (error) {
      if (error.name === "AbortError") return;
      answer({ draw: data.draw, recordsTotal: 0, recordsFiltered: 0, data: [] });
      view.announce(`${block.title}: ${error.message}`);
    }
  };
}

function optionsOf(view, block, windows) {
  const state = stateOf(view, block);
  const many = windows || block.rows.length > block.page_length;
  const rows = windows
    ? { serverSide: true, ajax: asker(view, block), searchDelay: TYPING_MS }
    : { data: block.rows };
  return {
    ...rows,
    columns: block.columns.map((_, place) => columnOf(view, block, place)),
    autoWidth: false,
    order: state.order,
    orderMulti: false,
    displayStart: state.start,
    search: { search: state.search },
    pageLength: block.page_length,
    lengthChange: false,
    paging: many,
    layout: {
      topStart: null,
      topEnd: many ? "search" : null,
      bottomStart: many ? "info" : null,
      bottomEnd: many ? "paging" : null,
    },
    language: {
      search: "Search",
      info: "_START_ to _END_ of _TOTAL_",
      infoFiltered: "(of _MAX_)",
      infoEmpty: "no rows",
      emptyTable: "No rows",
      zeroRecords: "No row matches",
    },
  };
}

async function fill(view, block, place, windows) {
  const DataTable = await dataTables();
  if (!place.isConnected) return;
  await new Promise((resolve) => {
    const options = optionsOf(view, block, windows);
    const table = new DataTable(place, { ...options, initComplete: resolve });
    const search = table.table().container().querySelector("input[type=search]");
    search?.setAttribute("aria-label", `Search in ${block.title}`);
    if (search) search.id = `search-${block.key}`;
    table.on("draw", () => keepState(view, block, table));
    view.leaving.push(() => table.destroy());
    place.table = table;
  });
}

// A long table comes by windows: its first rows, in the order and with the search that are shown.
async function csvOf(view, block, place, windows) {
  let rows = block.rows;
  if (windows) {
    const shown = place.table?.settings()[0].lastWindow ?? { search: "" };
    const window = { ...shown, start: 0, length: MAX_SAVED };
    rows = (await view.source.rows(view.page, block.source, view.parameters, window)).rows;
  }
  saveCsv(block.key, block.columns.map((column) => column.label), rows);
}

export function tableBlock(view, block, level) {
  const windows = Boolean(block.source);
  const title = text(block.title, `h${level}`, { id: `table-${block.key}` });
  const place = make("table", { "aria-labelledby": title.id }, headOf(block));
  view.tables.push(() => fill(view, block, place, windows));
  const save = button("CSV", () => csvOf(view, block, place, windows), {
    "aria-label": `CSV of ${block.title}`,
  });
  return make(
    "div",
    { class: "card table", id: block.key },
    make("div", { class: "head" }, title, save),
    block.note ? text(block.note, "p", { class: "quiet small" }) : null,
    place,
    originLine(view, block.origins),
  );
}
