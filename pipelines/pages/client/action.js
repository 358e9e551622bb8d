// Something the reader can have done, after a confirmation and with a key.
import { button, make, text } from "./element.js";

// In memory alone: it is gone with the page.
let key = "";

export function keyField(id) {
  const made = make("input", { id, type: "password", autocomplete: "off", required: true });
  made.value = key;
  return make("div", { class: "field" }, make("label", { for: id }, "Key"), made);
}

export function keepKey(value) {
  key = value;
}

function fieldOf(block, [name, label]) {
  const id = `${block.key}-${name}`;
  const made = make("input", { id, name, type: "text", required: true, maxlength: "500" });
  return make("div", { class: "field" }, text(label, "label", { for: id }), made);
}

function valuesOf(block, dialog) {
  const given = block.fields.map(([name]) => [name, dialog.querySelector(`[name="${CSS.escape(name)}"]`).value]);
  return { ...block.values, ...Object.fromEntries(given) };
}

function dialogOf(view, block, opener) {
  const id = `dialog-${block.key}`;
  const fault = make("p", { class: "fault", role: "alert" });
  const confirm = make("button", { type: "submit", class: "main" }, text(block.title));
  const form = make(
    "form",
    {},
    text(block.title, "h2", { id }),
    text(block.note, "p"),
    block.fields.map((field) => fieldOf(block, field)),
    keyField(`${block.key}-key`),
    fault,
    make("div", { class: "tools" }, confirm, button("Cancel", () => dialog.close())),
  );
  const dialog = make("dialog", { "aria-labelledby": id }, form);
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    confirm.disabled = true;
    fault.textContent = "";
    keepKey(form.querySelector("input[type=password]").value);
    try {
      const { done } = await view.source.act(view.page, block.name, valuesOf(block, dialog), key);
      dialog.close();
      view.say(done);
      await view.reload();
    } catch (error) {
      fault.textContent = error.message;
    } finally {
      confirm.disabled = false;
    }
  });
  dialog.addEventListener("close", () => {
    dialog.remove();
    opener.focus();
  });
  return dialog;
}

export function actionBlock(view, block, level) {
  const open = button(block.title, () => {
    const dialog = dialogOf(view, block, open);
    document.body.append(dialog);
    dialog.showModal();
  }, { id: `act-${block.key}`, class: "main" });
  open.disabled = !view.source.acts;
  const without = view.source.exported
    ? "recsys dashboard offers this; a file cannot."
    : "Switched off: start recsys dashboard with --key-file.";
  return make(
    "div",
    { class: "card action", id: block.key },
    text(block.title, `h${level}`),
    text(block.note, "p", { class: "quiet small" }),
    open,
    view.source.acts ? null : make("p", { class: "quiet small" }, without),
  );
}
