// The key of a reader, in memory alone: it is gone with the page.
import { make } from "./element.js";

let key = "";

export function keyField(id) {
  const made = make("input", { id, type: "password", autocomplete: "off", required: true });
  made.value = key;
  return make("div", { class: "field" }, make("label", { for: id }, "Key"), made);
}

export function keepKey(value) {
  key = value;
}
