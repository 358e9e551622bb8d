// A text field with a list of suggestions (the combobox pattern of WAI-ARIA 1.2).

const WAIT_MS = 60;
// After a request that failed, as those of a busy server do; doubled up to the most.
const RETRY_MS = 1000;
const MAX_RETRY_MS = 30000;

export class Combobox {
  // options: suggest(text, signal) -> [choice]; show(choice) -> {main, side}; choose(choice);
  // enter(text): Enter without a suggestion chosen; leave(): the field was left; empty: what to say
  // where there is no suggestion.
  constructor(input, options) {
    this.input = input;
    this.options = options;
    this.choices = [];
    this.active = -1;
    this.retryMs = RETRY_MS;
    this.list = document.createElement("ul");
    this.list.id = `${input.id}-choices`;
    this.list.className = "choices";
    this.list.hidden = true;
    this.list.setAttribute("role", "listbox");
    this.list.setAttribute("aria-label", `Suggestions: ${input.labels[0].textContent}`);
    input.after(this.list);
    for (const [name, value] of Object.entries({
      role: "combobox",
      "aria-autocomplete": "list",
      "aria-expanded": "false",
      "aria-controls": this.list.id,
    })) {
      input.setAttribute(name, value);
    }
    input.addEventListener("input", () => this.later());
    input.addEventListener("focus", () => this.later());
    input.addEventListener("click", () => this.list.hidden && this.later());
    input.addEventListener("blur", () => {
      this.close();
      this.options.leave();
    });
    input.addEventListener("keydown", (event) => this.key(event));
    // Before the field loses focus, which would close the list.
    this.list.addEventListener("pointerdown", (event) => event.preventDefault());
    this.list.addEventListener("click", (event) => {
      const option = event.target.closest("[role=option]");
      if (option) this.take(Number(option.dataset.place));
    });
  }

  later(milliseconds = WAIT_MS) {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.ask(), milliseconds);
  }

  async ask() {
    this.asking?.abort();
    this.asking = new AbortController();
    const { signal } = this.asking;
    try {
      const choices = await this.options.suggest(this.input.value, signal);
      this.retryMs = RETRY_MS;
      if (!signal.aborted && document.activeElement === this.input) this.open(choices);
    } catch (error) {
      if (error.name === "AbortError") return;
      this.close();
      if (document.activeElement !== this.input) return;
      this.later(this.retryMs);
      this.retryMs = Math.min(2 * this.retryMs, MAX_RETRY_MS);
    }
  }

  open(choices) {
    this.choices = choices;
    this.list.replaceChildren(...choices.map((choice, place) => this.row(choice, place)));
    if (!choices.length) {
      const none = document.createElement("li");
      none.className = "none";
      none.textContent = this.options.empty;
      this.list.append(none);
    }
    this.list.hidden = false;
    this.input.setAttribute("aria-expanded", "true");
    this.point(-1);
  }

  row(choice, place) {
    const { main, side } = this.options.show(choice);
    const row = document.createElement("li");
    row.id = `${this.list.id}-${place}`;
    row.dataset.place = String(place);
    row.setAttribute("role", "option");
    row.setAttribute("aria-selected", "false");
    const [text, more] = [document.createElement("span"), document.createElement("span")];
    text.textContent = main;
    text.dir = "auto";
    more.textContent = side;
    more.className = "quiet";
    row.append(text, more);
    return row;
  }

  close() {
    clearTimeout(this.timer);
    this.asking?.abort();
    this.list.hidden = true;
    this.input.setAttribute("aria-expanded", "false");
    this.point(-1);
  }

  point(place) {
    this.active = place;
    for (const row of this.list.querySelectorAll("[role=option]")) {
      const here = Number(row.dataset.place) === place;
      row.setAttribute("aria-selected", String(here));
      if (here) row.scrollIntoView({ block: "nearest" });
    }
    if (place < 0) this.input.removeAttribute("aria-activedescendant");
    else this.input.setAttribute("aria-activedescendant", `${this.list.id}-${place}`);
  }

  take(place) {
    const choice = this.choices[place];
    this.close();
    this.options.choose(choice);
  }

  key(event) {
    if (event.isComposing) return;
    const number = this.choices.length;
    if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      event.preventDefault();
      if (this.list.hidden) this.ask();
      else if (number) {
        const step = event.key === "ArrowDown" ? 1 : -1;
        // One place more than there are choices: the field itself.
        this.point(((this.active + 1 + step + number + 1) % (number + 1)) - 1);
      }
    } else if (event.key === "Enter") {
      event.preventDefault();
      if (this.active >= 0) this.take(this.active);
      else {
        this.close();
        this.options.enter(this.input.value.trim());
      }
    } else if (event.key === "Escape") {
      if (this.list.hidden) this.input.value = "";
      event.preventDefault();
      this.close();
    }
  }
}
