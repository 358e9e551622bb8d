// One list with its own surface, filter and diversity. Two of them stand side by side.

import { Combobox } from "./combobox.js";
import { showList, showStages } from "./lists.js";
import * as server from "./server.js";
import { changeInWords, curlOf, exampleOf, items, notesOf } from "./words.js";

const SUBJECTS = {
  related: { label: "Item", placeholder: "Search titles" },
  search: { label: "Search for", placeholder: "Words of a title" },
};
const KEPT = ["surface", "category", "where", "diversity", "item", "query"];

export class Column {
  // page: user(), session(), size(), explains(), act(id, type, column), refuse(card, type, column), open(id, from, column),
  // changed(), say(text), arrived(bundle), drawn(), taken(), naming(wish)
  constructor(name, page) {
    this.name = name;
    this.page = page;
    this.state = { surface: "home", category: "", where: "", diversity: "", item: "", query: "" };
    this.surfaces = [];
    this.latest = null; // the request in flight
    this.next = null; // the request of the next turn of a conversation
    this.shownFor = null; // whose list is shown
    this.requestId = null;
    this.element = document.getElementById("column").content.cloneNode(true).firstElementChild;
    for (const part of this.element.querySelectorAll("[data-part]")) {
      part.id = name + part.dataset.part;
    }
    for (const label of this.element.querySelectorAll("label")) label.htmlFor = name + label.dataset.for;
    this.at("title").id = `${name}list-title`;
    this.element.setAttribute("aria-labelledby", `${name}list-title`);
  }

  at(part) {
    return this.element.querySelector(`[data-part="${part}"]`);
  }

  // Once it is in the document.
  listen() {
    for (const part of ["surface", "category", "where"]) {
      this.at(part).addEventListener("change", (event) => this.set({ [part]: event.target.value.trim() }));
    }
    this.at("diversity").addEventListener("input", (event) => this.showStrength(event.target.value));
    this.at("diversity").addEventListener("change", (event) => this.set({ diversity: event.target.value }));
    this.at("own").addEventListener("click", () => {
      this.at("diversity").value = "0";
      this.showStrength("");
      this.set({ diversity: "" });
      this.at("diversity").focus();
    });
    this.at("copy").addEventListener("click", () => this.copy());
    this.at("turn").addEventListener("submit", (event) => {
      event.preventDefault();
      this.say(this.at("correction").value.trim());
    });
    const titles = {
      suggest: (text, signal) => server.searchTitles(text, signal),
      show: ({ title, categories }) => ({ main: title, side: categories.slice(0, 2).join(", ") }),
      empty: "No title matches.",
    };
    new Combobox(this.at("subject"), {
      ...titles,
      choose: (card) => this.about(card, card.title),
      enter: (text) => this.kind() === "search" && this.about(null, text),
      leave: () => {},
    });
    new Combobox(this.at("absent"), {
      ...titles,
      choose: (card) => {
        this.at("absent").value = card.title;
        this.whyNot(card);
      },
      enter: () => {},
      leave: () => {},
    });
    this.at("diversity").value = this.state.diversity || "0";
    this.at("where").value = this.state.where;
    this.showStrength(this.state.diversity);
  }

  set(changes) {
    Object.assign(this.state, changes);
    this.showSubject();
    this.page.changed();
    return this.refresh();
  }

  about(card, text) {
    this.at("subject").value = text;
    return this.kind() === "search" ? this.set({ query: text }) : this.set({ item: card.item_id });
  }

  // ---- what the address keeps

  read(given) {
    for (const key of KEPT) this.state[key] = given.get(this.name + key) ?? this.state[key];
  }

  write(given) {
    for (const key of KEPT) {
      const usual = key === "surface" ? "home" : "";
      if (this.state[key] && this.state[key] !== usual) given.set(this.name + key, this.state[key]);
    }
  }

  // ---- what the catalogue says

  describe({ surfaces, categories, properties }) {
    this.surfaces = surfaces;
    this.at("where").placeholder = exampleOf(properties, categories);
    this.fill("surface", surfaces.map(({ name }) => new Option(name, name)));
    const counted = categories.map(
      ({ name, num_items }) => new Option(`${name} (${num_items.toLocaleString("en")})`, name),
    );
    this.fill("category", [new Option("All", ""), ...counted]);
    this.showSubject();
  }

  fill(part, options) {
    const select = this.at(part);
    select.replaceChildren(...options);
    select.value = this.state[part];
    if (select.value !== this.state[part]) {
      select.append(new Option(this.state[part], this.state[part], true, true));
    }
  }

  surface() {
    return this.surfaces.find(({ name }) => name === this.state.surface);
  }

  kind() {
    return this.surface()?.kind ?? this.state.surface;
  }

  showSubject() {
    const subject = SUBJECTS[this.kind()];
    for (const part of ["subject-label", "subject-box"]) this.at(part).hidden = !subject;
    if (subject) {
      this.at("subject-label").textContent = subject.label;
      this.at("subject").placeholder = subject.placeholder;
      this.showTopic();
    }
    this.showForce(null);
  }

  async showTopic() {
    const { item, query } = this.state;
    const isItem = this.kind() === "related" && item;
    const [card] = isItem ? await server.titled([item]).catch(() => []) : [];
    const shown = isItem ? (card?.title ?? item) : this.kind() === "search" ? query : "";
    if (document.activeElement !== this.at("subject")) this.at("subject").value = shown;
    return shown;
  }

  async showTitle(sent) {
    const name = this.state.surface;
    const whose = sent.user_id ? ` for user ${sent.user_id}` : "";
    let title = name === "home" ? "Recommended" : name[0].toUpperCase() + name.slice(1);
    if (sent.item_id) title = `Similar to ${await this.showTopic()}`;
    if (sent.query) title = `Results for \u201c${sent.query}\u201d`;
    this.at("title").textContent = title + whose;
  }

  showForce(experiment) {
    const lines = (this.surface()?.rules ?? []).map(({ name, does }) => [`Rule ${name}`, does]);
    if (experiment) lines.push([`Experiment ${experiment.name}`, `arm ${experiment.arm}`]);
    const chips = lines.map(([name, does]) => {
      const chip = document.createElement("li");
      const strong = document.createElement("b");
      strong.textContent = name;
      chip.append(strong, ` ${does}`);
      chip.title = `${name} ${does}`;
      return chip;
    });
    if (!chips.length) chips.push(Object.assign(document.createElement("li"), { className: "quiet", textContent: "No rules in force" }));
    this.at("force").replaceChildren(...chips);
  }

  showStrength(value) {
    const own = value === "";
    this.at("strength").textContent = own ? "as set" : Number(value).toFixed(1);
    this.at("diversity").classList.toggle("own", own);
    this.at("own").hidden = own;
  }

  // ---- the list

  body() {
    const { surface, category, where, diversity, item, query } = this.state;
    const kind = this.kind();
    const body = {};
    const user = this.page.user();
    const session = this.page.session(kind);
    if (surface !== "home") body.surface = surface;
    if (user && ["home", "cart", "search"].includes(kind)) body.user_id = user;
    if (session.length && kind !== "related") body.session = session;
    if (kind === "related") body.item_id = item;
    if (kind === "search") body.query = query;
    if (category || where) {
      body.filter = { ...(category && { categories: [category] }), ...(where && { where }) };
    }
    if (diversity !== "") body.diversity = Number(diversity);
    return { ...body, k: this.page.size(), explain: this.page.explains() };
  }

  // What the surface still needs before there can be a list.
  missing(body) {
    const kind = this.kind();
    if (kind === "related" && !body.item_id) return "Choose the item that the list is about.";
    if (kind === "search" && !body.query) return "Type what to search for.";
    if (["cart", "session"].includes(kind) && !body.session) return "Add an item to this visit first.";
    return null;
  }

  showNotes(notes, failed = false) {
    const lines = notes.map((note) => {
      const line = document.createElement("p");
      line.textContent = note;
      line.dir = "auto";
      return line;
    });
    this.at("notes").classList.toggle("failed", failed);
    this.at("notes").replaceChildren(...lines);
  }

  // One turn of a conversation about the list: a correction, or the answer to its question.
  say(text) {
    this.at("correction").value = "";
    if (text && !this.missing(this.body())) this.refresh(this.page.naming(text));
  }

  showQuestion(question) {
    this.at("question").textContent = question?.text ?? "";
    const answers = (question?.answers ?? []).map((text) => {
      const button = document.createElement("button");
      Object.assign(button, { type: "button", className: "plain small", textContent: text });
      button.addEventListener("click", () => this.say(text));
      return button;
    });
    this.at("answers").replaceChildren(...answers);
  }

  async refresh(said = "") {
    this.latest?.abort();
    this.latest = new AbortController();
    const { signal } = this.latest;
    const before = said ? (this.next ?? { ...this.body(), exclude: this.ids() }) : null;
    const sent = before ?? this.body();
    const path = said ? "/v1/refine" : "/v1/recommend";
    const body = JSON.stringify(said ? { say: said, request: sent } : sent);
    // A visitor who gets an id stays who they are.
    const user = this.page.user();
    const key = JSON.stringify([user.startsWith("visitor-") ? "" : user, sent.surface ?? ""]);
    const started = performance.now();
    const list = this.at("list");
    this.at("curl").textContent = curlOf(location.origin + path, body, server.hasKey());
    this.showTitle(sent);
    this.at("answer").textContent = "";
    const missing = this.missing(sent);
    if (missing) {
      list.replaceChildren();
      this.showNotes([missing]);
      this.showQuestion(null);
      this.at("timing").textContent = "";
      this.requestId = null;
      performance.measure("list", { start: started });
      return;
    }
    list.setAttribute("aria-busy", "true");
    try {
      const found = await server.listed(path, body, signal);
      const reply = found.list ?? found;
      this.page.arrived(reply.served_by.bundle);
      if (signal.aborted) return;
      this.next = found.request ?? null;
      if (this.next) this.showTitle(this.next);
      this.showQuestion(found.question);
      const compare = this.shownFor === key;
      const actions = {
        add: (id) => this.page.act(id, "view", this),
        open: (id, from) => this.page.open(id, from, this),
        like: (id) => this.page.act(id, "like", this),
        refuse: (card, type) => this.page.refuse(card, type, this),
      };
      const shown = showList(list, reply.items, actions, { compare, taken: this.page.taken() });
      this.shownFor = key;
      this.requestId = reply.request_id;
      this.showForce(reply.experiment);
      const changed = compare ? [`Since the last list: ${changeInWords(shown.change)}.`] : [];
      this.showNotes([...notesOf(reply, sent), ...changed]);
      const gone = shown.leftTitles.join("; ");
      this.at("gone").textContent = gone && `No longer in the list: ${gone}`;
      this.at("gone").title = gone;
      const took = performance.now() - started;
      const total = reply.timings_ms.total;
      this.at("timing").textContent = `${took.toFixed(0)} ms, models ${total.toFixed(0)} ms`;
      showStages(this.at("stages"), reply.timings_ms, took);
      this.page.say(`List updated: ${compare ? changeInWords(shown.change) : items(reply.items.length)}.`);
      this.page.drawn();
      performance.measure("list", { start: started, end: performance.now() });
    } catch (error) {
      if (error.name === "AbortError") return;
      this.showNotes([error.message], true);
      this.page.say(error.message);
    } finally {
      this.at("where").setAttribute("aria-invalid", String(this.at("notes").textContent.startsWith("filter.where")));
      if (this.latest.signal === signal) list.removeAttribute("aria-busy");
    }
  }

  ids() {
    return [...this.at("list").children].map((row) => row.dataset.id);
  }

  slotOf(id) {
    return this.ids().indexOf(id) + 1;
  }

  async whyNot({ item_id, title }) {
    const answer = this.at("answer");
    if (!this.requestId) return;
    try {
      const { why_not: found } = await server.explained(this.requestId, item_id);
      const places = Object.entries(found.places ?? {}).map(([source, place]) => `${source} ${place}`);
      const where = places.length ? ` Its place by source: ${places.join(", ")}.` : "";
      answer.textContent = `${found.sentence ?? `${title}: ${found.detail}.`}${where}`;
    } catch (error) {
      answer.textContent = error.message;
    }
  }

  async copy() {
    try {
      await navigator.clipboard.writeText(this.at("curl").textContent);
      this.page.say("Copied.");
      this.at("copy").textContent = "Copied";
    } catch {
      getSelection().selectAllChildren(this.at("curl"));
      this.at("copy").textContent = "Press Ctrl+C";
    }
    setTimeout(() => (this.at("copy").textContent = "Copy"), 1500);
  }
}
