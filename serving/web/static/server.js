// Requests to the server. Texts in responses are data: they are only ever set as text.

const cards = new Map(); // item_id -> {item_id, title, categories, semantic_id}
const MAX_IDS = 50;
let bundle = null;

// Forget titles when another bundle is served; return whether it changed.
export function follow(version) {
  const changed = bundle !== null && bundle !== version;
  if (changed) cards.clear();
  bundle = version;
  return changed;
}

export class Refused extends Error {
  constructor(status, code, message) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

// A server with keys: the tab keeps the one that a person gave.
let key = sessionStorage.getItem("key");
let askForKey = () => Promise.resolve(null);
let asking = null; // one question for all requests that are refused

export function askForKeysBy(ask) {
  askForKey = ask;
}

export const hasKey = () => key !== null;

async function fetchJson(path, options = {}, tries = 2) {
  const sent = key;
  const headers = sent === null ? options.headers : { ...options.headers, authorization: `Bearer ${sent}` };
  let response;
  try {
    response = await fetch(path, { ...options, headers, cache: "no-store" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refused(0, "unreachable", "The server does not answer. Is it still running?");
  }
  const body = await response.json().catch(() => ({}));
  if (response.status === 401) {
    if (sent === key) {
      asking ??= askForKey(sent !== null);
      const given = await asking;
      if (given === null) {
        throw new Refused(401, "key_missing", "This server asks for a key. Reload the page to give one.");
      }
      asking = null;
      key = given;
      sessionStorage.setItem("key", key);
    }
    return fetchJson(path, options);
  }
  if (response.status === 503 && tries && body.error?.code === "overloaded") {
    await new Promise((done) => setTimeout(done, 300));
    return fetchJson(path, options, tries - 1);
  }
  if (!response.ok) {
    const { code = "failed", message = `status ${response.status}` } = body.error ?? {};
    throw new Refused(response.status, code, message);
  }
  return body;
}

const query = (values) => new URLSearchParams(values).toString();

// Absent fields are left out of JSON; a page shows an id for a title.
function remember(items) {
  for (const item of items) {
    item.title ??= item.item_id;
    item.categories ??= [];
    cards.set(item.item_id, item);
  }
  return items;
}

export const catalogue = () => fetchJson("/v1/catalogue");

export const searchTitles = async (q, signal) =>
  remember((await fetchJson(`/v1/search?${query({ q, k: 12 })}`, { signal })).items);

export const usersBeginning = async (prefix, signal) =>
  (await fetchJson(`/v1/users?${query({ prefix, k: 12 })}`, { signal })).users;

export const anyUser = async () => (await fetchJson("/v1/users?random=true&k=1")).users[0];

export async function historyOf(user) {
  const found = await fetchJson(`/v1/users/${encodeURIComponent(user)}/history?k=100`);
  remember(found.items);
  return found;
}

// A list, or one turn of a conversation.
export async function listed(path, body, signal) {
  const reply = await fetchJson(path, {
    method: "POST",
    headers: { "content-type": "application/json" },
    body,
    signal,
  });
  remember((reply.list ?? reply).items);
  return reply;
}

const posted = (path, content, method = "POST") =>
  fetchJson(path, {
    method,
    headers: { "content-type": "application/json" },
    body: JSON.stringify(content),
  });

export const sendEvent = (event) =>
  posted("/v1/events", { events: [{ event_id: crypto.randomUUID?.() ?? String(Math.random()), ...event }] });

const topicsPath = (user) => `/v1/users/${encodeURIComponent(user)}/topics`;

export const topicsOf = async (user) => (await fetchJson(topicsPath(user))).topics;

export const say = (user, wish) => posted(topicsPath(user), { wish }, "PUT");

export const unsay = (user, words) =>
  fetchJson(`${topicsPath(user)}?${query({ words })}`, { method: "DELETE" });

export const setHidden = (item_id, hidden) => posted("/v1/items", { items: [{ item_id, hidden }] });

// A list is kept within a tenth of a second.
export async function explained(request, item, tries = 5) {
  try {
    return await fetchJson(`/v1/explain/${request}${item ? `?${query({ item_id: item })}` : ""}`);
  } catch (error) {
    if (error.code !== "unknown_request" || tries === 0) throw error;
    await new Promise((done) => setTimeout(done, 100));
    return explained(request, item, tries - 1);
  }
}

export const similarTo = (id, signal) =>
  listed(
    "/v1/recommend",
    JSON.stringify({ surface: "related", item_id: id, k: 10, explain: true, dry_run: true }),
    signal,
  );

export async function propertiesOf(id) {
  const { items } = await fetchJson(`/v1/items?${query([["id", id]])}`);
  return items[0]?.properties ?? {};
}

// A title as a wish quotes it; undefined if no list has had the item.
export const titleOf = (id) => cards.get(id)?.title.replaceAll('"', " ");

// Titles of items by id; only unknown ones are fetched.
export async function titled(ids, signal) {
  const missing = [...new Set(ids)].filter((id) => !cards.has(id));
  for (let first = 0; first < missing.length; first += MAX_IDS) {
    const some = missing.slice(first, first + MAX_IDS);
    const found = await fetchJson(`/v1/items?${query(some.map((id) => ["id", id]))}`, { signal });
    remember(found.items);
  }
  return ids.map((id) => cards.get(id) ?? { item_id: id, title: id, categories: [], unknown: true });
}
