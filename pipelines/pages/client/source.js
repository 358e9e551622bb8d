// Where documents come from: the server, or the file that this page is.
import { ofPage, queryOf } from "./address.js";

export class Refusal extends Error {
  constructor(status, words) {
    super(words);
    this.status = status;
  }
}

async function answer(reply) {
  let body = null;
  try {
    body = await reply.json();
  } catch {
    // Not from the dashboard; said below.
  }
  if (reply.ok && body !== null) return body;
  throw new Refusal(reply.status, body?.error ?? `The dashboard answered ${reply.status}.`);
}

async function got(path, query, signal) {
  try {
    return await answer(await fetch(query ? `${path}?${query}` : path, { signal }));
  } catch (error) {
    if (error instanceof Refusal || error.name === "AbortError") throw error;
    throw new Refusal(0, "The dashboard does not answer. Is recsys dashboard still running?");
  }
}

async function posted(path, values, key) {
  const headers = { "content-type": "application/json", "x-api-key": key };
  try {
    const body = JSON.stringify(values);
    return await answer(await fetch(path, { method: "POST", headers, body }));
  } catch (error) {
    if (error instanceof Refusal) throw error;
    throw new Refusal(0, "The dashboard does not answer, or the key has characters that no key has.");
  }
}

function windowQuery(parameters, window) {
  return queryOf({
    ...ofPage(parameters),
    "w.start": window.start,
    "w.length": window.length,
    "w.order": window.order ?? "",
    "w.descending": window.descending ? "1" : "",
    "w.search": window.search,
  });
}

export class Served {
  constructor(settings) {
    this.exported = false;
    this.names = new Set(settings.pages.map((page) => page.name));
  }

  page(name, parameters, signal) {
    return got(`/api/page/${encodeURIComponent(name)}`, queryOf(ofPage(parameters)), signal);
  }

  rows(name, source, parameters, window, signal) {
    const path = `/api/rows/${encodeURIComponent(name)}/${encodeURIComponent(source)}`;
    return got(path, windowQuery(parameters, window), signal);
  }

  suggest(name, suggest, parameters, typed, signal) {
    const path = `/api/suggest/${encodeURIComponent(name)}/${encodeURIComponent(suggest)}`;
    return got(path, queryOf({ ...ofPage(parameters), "w.text": typed }), signal);
  }

  enter(key) {
    return posted("/api/enter", {}, key);
  }

  has(name) {
    return this.names.has(name);
  }
}

export class Exported {
  // The one page that this file holds.
  constructor(settings) {
    this.exported = true;
    this.held = settings.exported;
    this.name = settings.pages[0].name;
  }

  has(name) {
    return name === this.name;
  }

  async page(name) {
    if (this.has(name)) return this.held;
    throw new Refusal(404, "This file does not hold that page; recsys dashboard shows all of them.");
  }
}
