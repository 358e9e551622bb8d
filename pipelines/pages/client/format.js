// How numbers are written.

const NONE = "\u2013";
const MINUS = "\u2212";
const COUNT = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const PLAIN = new Intl.NumberFormat("en", { maximumSignificantDigits: 5 });
const UNITS = ["B", "kB", "MB", "GB", "TB"];

function seconds(value) {
  if (value < 1) return `${Math.round(value * 1000)} ms`;
  if (value < 60) return `${value.toFixed(value < 10 ? 1 : 0)} s`;
  const whole = Math.round(value);
  const [days, hours] = [Math.floor(whole / 86400), Math.floor((whole % 86400) / 3600)];
  const [minutes, rest] = [Math.floor((whole % 3600) / 60), whole % 60];
  if (days) return `${days} d ${hours} h`;
  if (hours) return `${hours} h ${minutes} min`;
  return `${minutes} min ${rest} s`;
}

function bytes(value) {
  let place = 0;
  let size = value;
  while (size >= 1000 && place < UNITS.length - 1) {
    size /= 1000;
    place += 1;
  }
  return `${place && size < 10 ? size.toFixed(1) : Math.round(size)} ${UNITS[place]}`;
}

// Of seconds since 1970, or of a text in ISO 8601.
function time(value) {
  const date = new Date(typeof value === "number" ? value * 1000 : value);
  if (Number.isNaN(date.getTime())) return String(value);
  return `${date.toISOString().slice(0, 16).replace("T", " ")} UTC`;
}

const WRITERS = {
  metric: (value) => value.toFixed(4),
  count: (value) => COUNT.format(value),
  percent: (value) => `${(100 * value).toFixed(1)}%`,
  seconds,
  bytes,
  signed: (value) => `${value >= 0 ? "+" : ""}${value.toFixed(4)}`.replace("-", MINUS),
  time,
};

// A cell as text: a number by its column's format, nothing as a dash.
export function written(value, format = "") {
  if (value === null || value === undefined || value === "") return NONE;
  if (typeof value === "boolean") return value ? "yes" : "no";
  if (typeof value === "number") {
    if (WRITERS[format]) return WRITERS[format](value);
    return Number.isInteger(value) && Math.abs(value) < 1e4 ? String(value) : PLAIN.format(value);
  }
  if (typeof value === "object") return value.text;
  if (format === "time") return time(value);
  return String(value);
}
