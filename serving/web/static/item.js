// The dialog of one item: why it is in its list, what to do with it, what is similar.

import { showList, showParts } from "./lists.js";
import * as server from "./server.js";
import { detailsOf, notesOf } from "./words.js";

const at = (id) => document.getElementById(id);
const MAX_VALUES = 12;
let opened = null; // {id, column, page}

// page: act(id, type, column), hide(card), refuse(card, type, column), kinds()
export async function openItem(id, from, column, page) {
  const dialog = at("item");
  opened = { id, column, page };
  const [card] = await server.titled([id]);
  at("item-title").textContent = card.title;
  at("item-details").textContent = detailsOf(card);
  at("values").replaceChildren();
  at("similar-note").textContent = "";
  at("similar-list").replaceChildren();
  at("why").hidden = true;
  dialog.onclose = () => from?.isConnected && from.focus();
  dialog.showModal();
  await Promise.all([showValues(card, column, page), why(id, column), similar(id, page, column)]);
}

// A button for each value that can be hidden: categories, brand, other properties that are texts.
async function showValues({ item_id: id, categories }, column, page) {
  const kinds = page.kinds();
  const properties = await server.propertiesOf(id).catch(() => ({}));
  const values = Object.entries({ category: categories, ...properties })
    .filter(([name]) => ["text", "list"].includes(kinds[name]))
    .flatMap(([name, value]) => [value].flat().map((text) => hideValue(name, text, column, page)));
  if (opened.id === id) at("values").replaceChildren(...values.slice(0, MAX_VALUES));
}

function hideValue(name, text, column, page) {
  const button = document.createElement("button");
  Object.assign(button, { type: "button", className: "plain small", textContent: `Hide ${text}`, title: `All items of ${name} ${text}` });
  button.addEventListener("click", () => {
    at("item").close();
    page.refuse({ item_id: `${name}:${text}`, title: text }, "hide", column);
  });
  return button;
}

async function why(id, column) {
  if (!column?.requestId || !column.slotOf(id)) return;
  try {
    const { items, experiment, num_live_events: live } = await server.explained(column.requestId);
    const slot = items.find((item) => item.item_id === id);
    if (!slot || opened.id !== id) return;
    const said = [`Slot ${slot.slot}.`];
    if (slot.sentence) said.push(slot.sentence);
    else if (slot.rules?.length) said.push(`Put there by rule ${slot.rules.join(", ")}.`);
    if (slot.propensity !== undefined) {
      said.push(`Drawn with probability ${slot.propensity.toPrecision(2)}.`);
    }
    if (live) said.push(`The list was made with ${live} of the visitor's latest events.`);
    if (experiment) said.push(`Experiment ${experiment.name}, arm ${experiment.arm}.`);
    at("why-text").textContent = said.join(" ");
    showParts(at("why-parts"), slot.contributions ?? {});
    at("why").hidden = false;
  } catch (error) {
    at("why-text").textContent = error.message;
    at("why-parts").replaceChildren();
    at("why").hidden = false;
  }
}

async function similar(id, page, column) {
  const add = (other) => {
    at("item").close();
    return page.act(other, "view", column);
  };
  try {
    const reply = await server.similarTo(id);
    if (opened.id !== id) return;
    showList(at("similar-list"), reply.items, { add }, { compare: false });
    at("similar-note").textContent = notesOf(reply, {}).join(" ");
  } catch (error) {
    at("similar-note").textContent = error.message;
  }
}

export function listenToItem() {
  const dialog = at("item");
  at("item-close").addEventListener("click", () => dialog.close());
  dialog.addEventListener("click", (event) => {
    if (event.target === dialog) dialog.close();
  });
  for (const type of ["like", "purchase"]) {
    at(type).addEventListener("click", () => {
      dialog.close();
      opened.page.act(opened.id, type, opened.column);
    });
  }
  at("hide").addEventListener("click", async () => {
    const [card] = await server.titled([opened.id]);
    dialog.close();
    opened.page.hide(card);
  });
}
