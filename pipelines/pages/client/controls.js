// Controls: what changes a parameter of the page, and with it the address.
import { Combobox } from "./combobox.js";
import { make, text } from "./element.js";

const FEW = 8;

function changed(view, control, value) {
  const parameters = { ...view.parameters, [control.name]: value };
  for (const name of control.clears) delete parameters[name];
  view.go(view.page, parameters);
}

function select(view, control, id) {
  const known = control.options.some((one) => one.value === control.value);
  const options = known ? control.options : [{ value: control.value, label: control.value || "\u2013" }, ...control.options];
  const made = make("select", { id }, options.map((one) => make("option", { value: one.value }, one.label)));
  made.value = control.value;
  made.addEventListener("change", () => changed(view, control, made.value));
  return made;
}

function number(view, control, id) {
  const bounds = { min: control.least, max: control.most };
  const made = make("input", { id, type: "number", step: "any", ...bounds, value: control.value });
  made.addEventListener("change", () => {
    if (made.reportValidity()) changed(view, control, made.value);
  });
  return made;
}

// shown: what the field says of the value that is chosen, which is nothing typed.
function suggester(view, control, choose, shown = "") {
  return {
    suggest: async (text, signal) => {
      const typed = text === shown ? "" : text.trim();
      if (control.suggest && (typed || !control.options.length)) {
        const { source, page, parameters } = view;
        return source.suggest(page, control.suggest, parameters, typed, signal);
      }
      const wanted = typed.toLowerCase();
      const found = control.options.filter((one) => one.label.toLowerCase().includes(wanted));
      return found.slice(0, 20);
    },
    show: (option) => ({
      main: option.label,
      side: option.label === option.value ? "" : option.value,
    }),
    choose: (option) => choose(option.value),
    enter: (typed) => choose(typed),
    leave: () => {},
    empty: "nothing found",
  };
}

function searchInput(id, value) {
  return make("input", { id, type: "search", autocomplete: "off", spellcheck: "false", value });
}

function search(view, control, id) {
  const shown = control.options.find((one) => one.value === control.value)?.label ?? control.value;
  const made = searchInput(id, shown);
  made.addEventListener("focus", () => made.select());
  const take = (value) => value !== shown && value !== control.value && changed(view, control, value);
  view.later.push(() => {
    const options = suggester(view, control, take, shown);
    // A cleared field means no value; text that names nothing is dropped.
    options.leave = () => {
      if (made.value.trim() === "" && control.value) changed(view, control, "");
      else made.value = shown;
    };
    new Combobox(made, options);
  });
  return make("div", { class: "combo" }, made);
}

function chips(view, control, values) {
  return values.map((value) => {
    const label = control.options.find((one) => one.value === value)?.label ?? value;
    const without = values.filter((one) => one !== value);
    const remove = () => changed(view, control, without);
    const made = make("button", { type: "button", class: "chip", on: { click: remove } });
    made.append(text(label), make("span", { "aria-hidden": "true" }, "\u00d7"));
    made.setAttribute("aria-label", `Remove ${label}`);
    return made;
  });
}

function severalFound(view, control, id, values) {
  const made = searchInput(id, "");
  const full = control.at_most !== null && values.length >= control.at_most;
  made.disabled = full;
  made.placeholder = full ? `at most ${control.at_most}` : "add";
  view.later.push(() => {
    const add = (value) => value && !values.includes(value) && changed(view, control, [...values, value]);
    new Combobox(made, suggester(view, control, add));
  });
  return make("div", { class: "combo" }, chips(view, control, values), made);
}

function severalFew(view, control, id, values) {
  const full = control.at_most !== null && values.length >= control.at_most;
  const boxes = control.options.map((one, place) => {
    const box = make("input", { type: "checkbox", id: `${id}-${place}` });
    box.checked = values.includes(one.value);
    const next = box.checked ? values.filter((v) => v !== one.value) : [...values, one.value];
    box.disabled = !box.checked && full;
    box.addEventListener("change", () => changed(view, control, next));
    return make("label", {}, box, text(one.label));
  });
  const rest = full ? make("p", { class: "quiet small" }, `At most ${control.at_most}.`) : null;
  return make("div", { class: "boxes", role: "group", "aria-label": control.label }, boxes, rest);
}

function several(view, control, id) {
  const values = Array.isArray(control.value) ? control.value : [control.value].filter(Boolean);
  if (control.suggest || control.options.length > 4 * FEW) {
    return severalFound(view, control, id, values);
  }
  const labels = control.options.filter((one) => values.includes(one.value)).map((o) => o.label);
  const shown = text(labels.join(", ") || "none", "summary", { id });
  return make("details", { class: "pick", id: `${id}-pick` }, shown, severalFew(view, control, id, values));
}

const KINDS = { select, number, search, several };

export function controlsBar(view, controls) {
  if (!controls.length) return null;
  const fields = controls.map((control) => {
    const id = `control-${control.name}`;
    const field = KINDS[control.kind](view, control, id);
    const label = text(control.label, "label", { for: id });
    if (control.kind === "several" && !control.suggest) {
      field.querySelector("summary")?.setAttribute("aria-label", `${control.label}: ${field.querySelector("summary").textContent}`);
    }
    return make("div", { class: `field ${control.kind}` }, label, field);
  });
  const form = make("form", { class: "controls", role: "group", "aria-label": "What is shown" }, fields);
  form.addEventListener("submit", (event) => event.preventDefault());
  return form;
}
