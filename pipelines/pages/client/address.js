// Addresses: #/<page>?name=value&name=value#<section>. Parameters that begin with ~ are of the
// tables on the page and are not sent with it.

export const TABLE = "~";

export function parse(hash) {
  const [path, section = ""] = hash.replace(/^#\/?/, "").split("#");
  const [page, query = ""] = path.split("?");
  const parameters = {};
  for (const [name, value] of new URLSearchParams(query)) (parameters[name] ??= []).push(value);
  return { page: decoded(page), parameters, section: decoded(section) };
}

function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

// Parameters as name -> [value], without those that are empty.
export function listed(parameters) {
  const found = {};
  for (const [name, value] of Object.entries(parameters)) {
    const values = (Array.isArray(value) ? value : [value]).map(String).filter((one) => one !== "");
    if (values.length) found[name] = values;
  }
  return found;
}

export function queryOf(parameters) {
  const query = new URLSearchParams();
  for (const [name, values] of Object.entries(listed(parameters))) {
    for (const value of values) query.append(name, value);
  }
  return query.toString();
}

export function hrefOf(page, parameters = {}, section = "") {
  const query = queryOf(parameters);
  const part = section ? `#${encodeURIComponent(section)}` : "";
  return `#/${encodeURIComponent(page)}${query ? `?${query}` : ""}${part}`;
}

// The parameters that a page is made from.
export function ofPage(parameters) {
  return Object.fromEntries(Object.entries(parameters).filter(([name]) => !name.startsWith(TABLE)));
}
