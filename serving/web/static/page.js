// The try-it page: who the lists are for, what they do, and the columns that show the lists.

import { Column } from "./column.js";
import { Combobox } from "./combobox.js";
import { listenToItem, openItem } from "./item.js";
import { showHistory, showTopics, showVisit } from "./lists.js";
import * as server from "./server.js";
import { actInWords, items, users } from "./words.js";

const at = (id) => document.getElementById(id);
// visit: what was done since the page was opened, {id, type, sent}
const state = { user: "", visit: [], k: 10, explain: true, events: false };
let showsUsers = false;
let described = null; // what the catalogue says

const page = {
  user: () => state.user,
  // Of a home list what is stored is known to the server; a cart or a session is of the page.
  session: (kind) =>
    state.visit.filter(({ sent }) => !sent || ["cart", "session"].includes(kind)).map(({ id }) => id),
  naming,
  kinds: () => described?.properties ?? {},
  taken: () => state.visit.map(({ id }) => id),
  size: () => state.k,
  explains: () => state.explain,
  changed: writeAddress,
  say: (text) => (at("status").textContent = text),
  arrived: (bundle) => server.follow(bundle) && about(),
  open: (id, from, column) => openItem(id, from, column, page),
  drawn: showShared,
  act,
  refuse,
  hide,
};
const columns = [new Column("", page)];

// ---- the address keeps the state, after #, which no server sees

function readAddress() {
  const given = new URLSearchParams(location.hash.slice(1));
  state.user = given.get("user") ?? "";
  state.visit = given.getAll("item").map((id) => ({ id, type: "view", sent: false }));
  if (["10", "20", "50"].includes(given.get("k"))) state.k = Number(given.get("k"));
  if (given.has("compare")) addColumn();
  for (const column of columns) column.read(given);
}

function writeAddress() {
  const unsent = state.visit.filter(({ sent }) => !sent);
  const given = new URLSearchParams(unsent.map(({ id }) => ["item", id]));
  if (state.user) given.set("user", state.user);
  if (state.k !== 10) given.set("k", String(state.k));
  if (columns.length > 1) given.set("compare", "1");
  for (const column of columns) column.write(given);
  history.replaceState(null, "", `${location.pathname}${given.size ? `#${given}` : ""}`);
}

// ---- the columns

function addColumn() {
  const column = new Column("other-", page);
  Object.assign(column.state, columns[0].state);
  columns.push(column);
  return column;
}

function showColumns() {
  at("columns").replaceChildren(...columns.map(({ element }) => element));
  const two = columns.length > 1;
  document.body.classList.toggle("two", two);
  at("compare").setAttribute("aria-pressed", String(two));
  at("compare").textContent = two ? "Show one list" : "Compare two lists";
  showShared();
}

function toggleCompare() {
  if (columns.length > 1) {
    columns.pop();
    showColumns();
  } else {
    const column = addColumn();
    showColumns();
    column.listen();
    if (described) column.describe(described);
    column.refresh();
  }
  writeAddress();
}

// Of two lists, mark what only one of them has.
function showShared() {
  const [ids, others] = columns.map((column) => new Set(column.ids()));
  for (const column of columns) {
    for (const row of column.at("list").children) {
      row.classList.toggle("only", Boolean(others) && !(ids.has(row.dataset.id) && others.has(row.dataset.id)));
    }
  }
  const both = others ? [...ids].filter((id) => others.has(id)).length : 0;
  at("shared").textContent = others ? `${items(both)} in both lists` : "";
}

function refresh() {
  writeAddress();
  return Promise.all(columns.map((column) => column.refresh()));
}

// ---- this visit

async function showSession() {
  at("clear").disabled = !state.visit.length;
  const ids = state.visit.map(({ id }) => id);
  const cards = await server.titled(ids).catch(() =>
    ids.map((id) => ({ item_id: id, title: id, categories: [] })),
  );
  const shown = cards.map((card, place) => ({ ...card, ...state.visit[place] }));
  showVisit(at("visit"), shown, remove);
}

async function visitChanged() {
  await Promise.all([showSession(), refresh()]);
}

// What a person did with an item: sent as an event where the server keeps them, else only part of
// the next requests.
async function act(id, type, column) {
  if (state.events && !(await send(id, type, column))) return;
  state.visit = [...state.visit, { id, type, sent: state.events }];
  await visitChanged();
}

// A visitor without an id gets one, so that events and topics are of someone.
async function named() {
  if (state.user) return;
  state.user = `visitor-${crypto.getRandomValues(new Uint32Array(1))[0].toString(16)}`;
  await showPast();
}

// Store an event; return whether it is stored.
async function send(id, type, column) {
  await named();
  const slot = column?.slotOf(id);
  const shown = slot && column.requestId ? { request_id: column.requestId, slot } : {};
  try {
    await server.sendEvent({ user_id: state.user, item_id: id, event_type: type, ...shown });
    page.say(`Sent: ${actInWords(type)}.`);
    return true;
  } catch (error) {
    page.say(error.message);
    (column ?? columns[0]).showNotes([error.message], true);
    return false;
  }
}

async function remove(place) {
  state.visit = state.visit.filter((_, other) => other !== place);
  await visitChanged();
  const left = at("visit").querySelectorAll("button");
  (left[Math.min(place, left.length - 1)] ?? at("search")).focus();
}

// ---- topics

const saidHere = new Map(); // user -> topics said since the page was opened, if no others are shown

function keepHere(words, topics) {
  const others = (saidHere.get(state.user) ?? []).filter((topic) => !words.includes(topic.words));
  saidHere.set(state.user, [...others, ...topics]);
}

async function changeTopics(change, said) {
  try {
    await named();
    const further = await change();
    at("wish-note").textContent = further ? `${said} ${further}` : said;
    await Promise.all([showSaid(), refresh()]);
  } catch (error) {
    at("wish-note").textContent = error.message;
  }
}

let topicCalls = 0; // an answer that a later one has overtaken is not shown

async function showSaid() {
  const user = state.user;
  const call = ++topicCalls;
  const found = user && described?.keeps_events ? await server.topicsOf(user).catch(() => saidHere.get(user) ?? []) : [];
  if (call !== topicCalls) return;
  showTopics(at("topics"), found, (words) =>
    changeTopics(async () => {
      await server.unsay(user, words);
      keepHere([words], []);
    }, `Deleted: ${words}.`),
  );
}

// "This" is what was chosen last, else the first item of the list.
function naming(wish) {
  const id = state.visit.at(-1)?.id ?? columns[0].ids()[0];
  const title = server.titleOf(id);
  return title ? wish.replace(/\b(?:of|like) (?:this|these|that)\b/gi, () => `like "${title}"`) : wish;
}

function say(event) {
  event.preventDefault();
  const wish = naming(at("wish").value.trim());
  if (!wish) return;
  changeTopics(async () => {
    const { topics, degraded } = await server.say(state.user, wish);
    if (!topics.length) throw new Error("Nothing in this can be looked up; name a category or a title.");
    keepHere(topics.map(({ words }) => words), topics);
    at("wish").value = "";
    return degraded && `Rules alone read it: ${degraded[0].detail}.`;
  }, "Kept; the list follows.");
}

// ---- refused and hidden items

// Always stored: a list knows what a user refuses by its event alone.
async function refuse(card, type, column) {
  if (!(await send(card.item_id, type, column))) return;
  toast(`${type === "hide" ? "Hidden" : "Less like this"}: ${card.title}`, async () => {
    await send(card.item_id, "undo", null);
    await refresh();
  });
  await refresh();
}

async function hide(card) {
  try {
    await server.setHidden(card.item_id, true);
  } catch (error) {
    columns[0].showNotes([`${card.title} was not hidden: ${error.message}`], true);
    page.say(error.message);
    return;
  }
  toast(`Hidden from every list: ${card.title}`, async () => {
    await server.setHidden(card.item_id, false);
    page.say(`${card.title} is shown again.`);
    await refresh();
  });
  await refresh();
}

function toast(text, undo) {
  at("toast-text").textContent = text;
  at("toast").hidden = false;
  at("undo").onclick = async () => {
    at("toast").hidden = true;
    await undo();
  };
}

// ---- the user

async function showPast() {
  const user = state.user;
  at("user").value = user;
  at("history-count").textContent = "";
  at("wish-note").textContent = "";
  showSaid();
  if (!user) {
    at("user-note").textContent = "No user: the list is for an anonymous visitor.";
    showHistory(at("history"), [], "Pick a user to see their history.", page.open);
    return;
  }
  if (user.startsWith("visitor-")) {
    at("user-note").textContent = "A new visitor.";
    showHistory(at("history"), [], "Only this visit.", page.open);
    return;
  }
  at("user-note").textContent = "\u00a0";
  try {
    const past = await server.historyOf(user);
    if (state.user !== user) return;
    at("user-note").textContent = `${items(past.num_events)} in the history.`;
    at("history-count").textContent = past.num_events ? "newest first" : "";
    showHistory(at("history"), past.items, "Nothing yet.", page.open);
  } catch (error) {
    if (state.user !== user) return;
    const unknown = error.code === "unknown_user";
    const none = unknown ? "This user is not known." : "This server does not show histories.";
    at("user-note").textContent = none;
    showHistory(at("history"), [], error.status === 404 ? none : error.message, page.open);
  }
}

function choose(user) {
  if (user === state.user) return undefined;
  state.user = user;
  // What was stored is of the user before.
  state.visit = state.visit.filter(({ sent }) => !sent);
  return Promise.all([showPast(), showSession(), refresh()]);
}

async function surprise() {
  try {
    const found = await server.anyUser();
    if (found) await choose(found.user_id);
  } catch (error) {
    at("user-note").textContent = error.message;
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
    described = found;
    showsUsers = found.shows_users;
    const counts = [items(found.num_items)];
    if (showsUsers) counts.push(users(found.num_users));
    at("about").textContent = `${counts.join(", ")} \u00b7 bundle ${found.bundle} \u00b7 profile ${found.profile}`;
    at("surprise").disabled = !showsUsers;
    if (!showsUsers) at("user-note").textContent = "This server does not list its users.";
    at("events").disabled = !found.keeps_events;
    state.events = at("events").checked = found.keeps_events && !state.visit.length;
    for (const column of columns) column.describe(found);
    showSaid();
  } catch (error) {
    at("about").textContent = error.message;
  }
}

function listen() {
  at("surprise").addEventListener("click", surprise);
  at("wish-form").addEventListener("submit", say);
  at("compare").addEventListener("click", toggleCompare);
  at("clear").addEventListener("click", () => {
    state.visit = [];
    visitChanged();
    at("search").focus();
  });
  at("events").addEventListener("change", (event) => (state.events = event.target.checked));
  at("size").addEventListener("change", (event) => {
    state.k = Number(event.target.value);
    refresh();
  });
  at("explain").addEventListener("change", (event) => {
    state.explain = event.target.checked;
    refresh();
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
      act(item_id, "view", null);
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
showColumns();
for (const column of columns) column.listen();
listen();
listenToItem();
const surfacesKnown = about();
// A surface of the deployment's own is known by its kind, which the catalogue says.
if (columns.some(({ state: { surface } }) => surface !== "home")) await surfacesKnown;
Promise.all([showPast(), showSession(), refresh()]);
