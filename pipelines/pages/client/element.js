// Elements from plain values. Strings become text, never markup.

export function make(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "on") {
      for (const [event, act] of Object.entries(value)) made.addEventListener(event, act);
    } else if (name === "class") made.className = value;
    else if (name === "data") Object.assign(made.dataset, value);
    else made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return made;
}

// Text of unknown direction.
export function text(value, tag = "bdi", attributes = {}) {
  return make(tag, { dir: "auto", ...attributes }, String(value));
}

export function button(label, act, attributes = {}) {
  return make("button", { type: "button", on: { click: act }, ...attributes }, label);
}

export function save(name, parts, type) {
  const address = URL.createObjectURL(new Blob(parts, { type }));
  make("a", { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}

// What a spreadsheet would take for a formula begins with one of these.
const FORMULA = /^[=+\-@\t\r]/;

function csvCell(value) {
  if (value === null || value === undefined) return "";
  let written = typeof value === "object" ? value.text : value;
  if (typeof written === "string" && FORMULA.test(written)) written = `'${written}`;
  written = String(written);
  return /[",\n\r]/.test(written) ? `"${written.replaceAll('"', '""')}"` : written;
}

export function saveCsv(name, columns, rows) {
  const lines = [columns, ...rows].map((row) => row.map(csvCell).join(","));
  save(`${name}.csv`, [lines.join("\n"), "\n"], "text/csv;charset=utf-8");
}
