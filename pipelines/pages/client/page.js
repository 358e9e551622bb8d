// A whole page: its head, notices, controls, contents and blocks.
import { drawBlocks } from "./blocks.js";
import { controlsBar } from "./controls.js";
import { button, make, text } from "./element.js";
import { hrefOf } from "./address.js";
import { keepKey, keyField } from "./key.js";

function contents(view, blocks) {
  const sections = blocks.filter((block) => block.kind === "section");
  if (sections.length < 2) return null;
  const rows = sections.map((one) =>
    make("li", {}, make("a", { href: hrefOf(view.page, view.parameters, one.key), data: { to: one.key } }, text(one.title))));
  return make("nav", { class: "contents", "aria-label": "On this page" }, make("ol", {}, rows));
}

function notices(lines) {
  if (!lines.length) return null;
  const rows = lines.map((line) => text(line, "li"));
  return make("div", { class: "card notices", role: "note", "aria-label": "Notices" }, make("ul", {}, rows));
}

// Draw a document into main; ready when what is in view is drawn.
export function drawPage(view, main, document_) {
  const list = contents(view, document_.blocks);
  main.replaceChildren(
    make(
      "header",
      { class: "title" },
      text(document_.title, "h1", { tabindex: "-1" }),
      text(document_.lead, "p", { class: "answer" }),
    ),
    ...[
      notices(document_.notices),
      controlsBar(view, document_.controls),
      list,
      make("div", { class: "blocks" }, drawBlocks(view, document_.blocks, 2)),
    ].filter(Boolean),
  );
  main.classList.toggle("with-contents", list !== null);
  for (const act of view.later) act();
  if (list) follow(view, main, list);
}

// Mark the section that is being read.
function follow(view, main, list) {
  const seen = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      if (!entry.isIntersecting) continue;
      for (const link of list.querySelectorAll("a")) {
        if (link.dataset.to === entry.target.id) link.setAttribute("aria-current", "true");
        else link.removeAttribute("aria-current");
      }
    }
  }, { rootMargin: "-10% 0px -75% 0px" });
  for (const section of main.querySelectorAll("section[id]")) seen.observe(section);
  view.leaving.push(() => seen.disconnect());
}

export function drawError(view, main, error) {
  const bare = hrefOf(view.page);
  const ways = [];
  if (location.hash !== bare && view.known) {
    ways.push(make("a", { href: bare }, "This page as it begins"));
  }
  ways.push(make("a", { href: hrefOf(view.first) }, "The first page"));
  if (history.length > 1) ways.push(button("Back", () => history.back()));
  ways.push(button("Once more", () => view.reload()));
  main.classList.remove("with-contents");
  main.replaceChildren(
    make(
      "header",
      { class: "title" },
      make("h1", { tabindex: "-1" }, error.status === 404 ? "Not found" : "This cannot be shown"),
      text(error.message, "p", { class: "answer" }),
    ),
    make("p", { class: "ways links" }, ways),
  );
}

// Of a dashboard that other machines reach.
export function drawKey(view, main) {
  const fault = make("p", { class: "fault", role: "alert" });
  const form = make(
    "form",
    { class: "card key" },
    keyField("reader-key"),
    fault,
    make("button", { type: "submit", class: "main" }, "Open the dashboard"),
  );
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const { value } = form.querySelector("input");
    try {
      await view.source.enter(value);
      keepKey(value);
      await view.reload();
    } catch (error) {
      fault.textContent = error.message;
    }
  });
  main.classList.remove("with-contents");
  main.replaceChildren(
    make("header", { class: "title" }, make("h1", { tabindex: "-1" }, "This dashboard needs a key")),
    form,
  );
}
