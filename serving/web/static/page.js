// The try-it page: one state, and what follows from it.

import { Combobox } from "./combobox.js";
import { showHistory, showList, showVisit } from "./lists.js";
import * as server from "./server.js";
import { changeInWords, curlOf, detailsOf, items, notesOf, users } from "./words.js";

const at = (id) => document.getElementById(id);
const state = { user: "", session: [], category: "", k: 10, explain: true };
let showsUsers = false;
let latest = null; // the request in flight
let shownFor = null; // the user whose list is shown

// ---- the address keeps the state, after #, which no server sees

function readAddress() {
  const given = new URLSearchParams(location.hash.slice(1));
  state.user = given.get("user") ?? "";
  state.session = given.getAll("item");
  state.category = given.get("category") ?? "";
  if (["10", "20", "50"].includes(given.get("k"))) state.k = Number(given.get("k"));
}

function writeAddress() {
  const given = new URLSearchParams(state.session.map((id) => ["item", id]));
  if (state.user) given.set("user", state.user);
  if (state.category) given.set("category", state.category);
  if (state.k !== 10) given.set("k", String(state.k));
  history.replaceState(null, "", `${location.pathname}${given.size ? `#${given}` : ""}`);
}

// ---- the list

function bodyOf() {
  const body = {};
  if (state.user) body.user_id = state.user;
  if (state.session.length) body.session = state.session;
  if (state.category) body.filter = { categories: [state.category] };
  return JSON.stringify({ ...body, k: state.k, explain: state.explain });
}

function showNotes(notes, failed = false) {
  const lines = notes.map((note) => {
    const line = document.createElement("p");
    line.textContent = note;
    line.dir = "auto";
    return line;
  });
  at("notes").classList.toggle("failed", failed);
  at("notes").replaceChildren(...lines);
}

function showGone(titles) {
  at("gone").textContent = titles.length ? `No longer in the list: ${titles.join("; ")}` : "";
  at("gone").title = titles.join("; ");
}

async function refresh() {
  latest?.abort();
  latest = new AbortController();
  const { signal } = latest;
  const body = bodyOf();
  const user = state.user;
  const started = performance.now();
  writeAddress();
  at("curl").textContent = curlOf(location.origin, body, server.hasKey());
  at("list-title").textContent = user ? `Recommended for user ${user}` : "Recommended";
  at("list").setAttribute("aria-busy", "true");
  try {
    const reply = await server.recommend(body, signal);
    if (server.follow(reply.served_by.bundle)) about();
    if (signal.aborted) return;
    const compare = shownFor === user;
    const options = { compare, taken: state.session };
    const shown = showList(at("list"), reply.items, { add, similar }, options);
    shownFor = user;
    const changed = compare ? [`Since the last list: ${changeInWords(shown.change)}.`] : [];
    showNotes([...notesOf(reply, JSON.parse(body)), ...changed]);
    showGone(shown.leftTitles);
    const took = performance.now() - started;
    at("timing").textContent = `${took.toFixed(0)} ms, models ${reply.timings_ms.total.toFixed(0)} ms`;
    const what = compare ? changeInWords(shown.change) : items(reply.items.length);
    at("status").textContent = `List updated: ${what}.`;
    performance.measure("list", { start: started, end: performance.now() });
  } catch (error) {
    if (error.name === "AbortError") return;
    showNotes([error.message], true);
    at("status").textContent = error.message;
  } finally {
    if (latest.signal === signal) at("list").removeAttribute("aria-busy");
  }
}

// ---- this visit

async function showSession() {
  at("clear").disabled = !state.session.length;
  const cards = await server.titled(state.session).catch(() =>
    state.session.map((id) => ({ item_id: id, title: id, categories: [] })),
  );
  showVisit(at("visit"), cards, remove);
}

async function sessionChanged() {
  await Promise.all([showSession(), refresh()]);
}

function add(id) {
  state.session = [...state.session, id];
  return sessionChanged();
}

async function remove(place) {
  state.session = state.session.filter((_, other) => other !== place);
  await sessionChanged();
  const left = at("visit").querySelectorAll("button");
  (left[Math.min(place, left.length - 1)] ?? at("search")).focus();
}

// ---- the user

async function showPast() {
  const user = state.user;
  at("user").value = user;
  at("history-count").textContent = "";
  if (!user) {
    at("user-note").textContent = "No user: the list is for an anonymous visitor.";
    showHistory(at("history"), [], "Pick a user to see their history.", similar);
    return;
  }
  at("user-note").textContent = "\u00a0";
  try {
    const past = await server.historyOf(user);
    if (state.user !== user) return;
    at("user-note").textContent = `${items(past.num_events)} in the history.`;
    at("history-count").textContent = past.num_events ? "newest first" : "";
    showHistory(at("history"), past.items, "Nothing yet.", similar);
  } catch (error) {
    if (state.user !== user) return;
    const unknown = error.code === "unknown_user";
    const none = unknown ? "This user is not known." : "This server does not show histories.";
    at("user-note").textContent = none;
    showHistory(at("history"), [], error.status === 404 ? none : error.message, similar);
  }
}

function choose(user) {
  if (user === state.user) return undefined;
  state.user = user;
  return Promise.all([showPast(), refresh()]);
}

async function surprise() {
  try {
    const found = await server.anyUser();
    if (found) await choose(found.user_id);
  } catch (error) {
    at("user-note").textContent = error.message;
  }
}

// ---- items similar to one

async function similar(id, from) {
  const dialog = at("similar");
  const [card] = await server.titled([id]);
  at("similar-title").textContent = `Similar to ${card.title}`;
  at("similar-details").textContent = detailsOf(card);
  at("similar-note").textContent = "";
  at("similar-list").replaceChildren();
  dialog.onclose = () => from?.isConnected && from.focus();
  dialog.showModal();
  const actions = {
    add: (other) => {
      dialog.close();
      return add(other);
    },
  };
  try {
    const reply = await server.similarTo(id);
    showList(at("similar-list"), reply.items, actions, { compare: false });
    at("similar-note").textContent = notesOf(reply, {}).join(" ");
  } catch (error) {
    at("similar-note").textContent = error.message;
  }
}

// ---- the key, where the server asks for one

function askForKey(isWrong) {
  const dialog = at("key-dialog");
  at("key").value = "";
  if (isWrong) at("key-note").textContent = "The server does not know this key.";
  dialog.showModal();
  return new Promise((answered) => {
    let given = null;
    const use = () => {
      // A header takes no others.
      given = at("key").value.replace(/[^\x21-\x7e]/g, "") || null;
      dialog.close();
    };
    at("key-use").onclick = use;
    at("key").onkeydown = (event) => {
      if (event.key === "Enter") use();
    };
    dialog.onclose = () => answered(given);
  });
}

// ---- once

async function about() {
  try {
    const found = await server.catalogue();
    showsUsers = found.shows_users;
    const counts = [items(found.num_items)];
    if (showsUsers) counts.push(users(found.num_users));
    at("about").textContent = `${counts.join(", ")} \u00b7 bundle ${found.bundle} \u00b7 profile ${found.profile}`;
    at("surprise").disabled = !showsUsers;
    if (!showsUsers) at("user-note").textContent = "This server does not list its users.";
    const choices = found.categories.map(
      ({ name, num_items }) => new Option(`${name} (${num_items.toLocaleString("en")})`, name),
    );
    at("category").replaceChildren(new Option("All", ""), ...choices);
    at("category").value = state.category;
    if (at("category").value !== state.category) {
      at("category").append(new Option(state.category, state.category, true, true));
    }
  } catch (error) {
    at("about").textContent = error.message;
  }
}

function listen() {
  at("surprise").addEventListener("click", surprise);
  at("clear").addEventListener("click", () => {
    state.session = [];
    sessionChanged();
    at("search").focus();
  });
  at("category").addEventListener("change", (event) => {
    state.category = event.target.value;
    refresh();
  });
  at("size").addEventListener("change", (event) => {
    state.k = Number(event.target.value);
    refresh();
  });
  at("explain").addEventListener("change", (event) => {
    state.explain = event.target.checked;
    refresh();
  });
  at("similar-close").addEventListener("click", () => at("similar").close());
  at("similar").addEventListener("click", (event) => {
    if (event.target === at("similar")) at("similar").close();
  });
  at("copy").addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(at("curl").textContent);
      at("status").textContent = "Copied.";
      at("copy").textContent = "Copied";
    } catch {
      getSelection().selectAllChildren(at("curl"));
      at("copy").textContent = "Press Ctrl+C";
    }
    setTimeout(() => (at("copy").textContent = "Copy"), 1500);
  });
  new Combobox(at("user"), {
    suggest: (text, signal) => (showsUsers ? server.usersBeginning(text.trim(), signal) : []),
    show: ({ user_id, num_events }) => ({ main: user_id, side: items(num_events) }),
    choose: ({ user_id }) => choose(user_id),
    enter: choose,
    leave: () => (at("user").value = state.user),
    empty: "No such user. Press Enter to recommend for an unknown user.",
  });
  new Combobox(at("search"), {
    suggest: (text, signal) => server.searchTitles(text, signal),
    show: ({ title, categories }) => ({ main: title, side: categories.slice(0, 2).join(", ") }),
    choose: ({ item_id }) => {
      at("search").value = "";
      add(item_id);
    },
    enter: () => {},
    leave: () => {},
    empty: "No title matches.",
  });
}

readAddress();
server.askForKeysBy(askForKey);
at("size").value = String(state.k);
at("explain").checked = state.explain;
listen();
Promise.all([about(), showPast(), showSession(), refresh()]);
