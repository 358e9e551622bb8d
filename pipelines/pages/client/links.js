// Links to pages and files, and the origins of numbers.
import { hrefOf } from "./address.js";
import { make, text } from "./element.js";

// Where a link leads; null where it leads nowhere in this file.
export function target(view, link) {
  if (!link) return null;
  if (link.file) {
    const path = link.file.split("/").map(encodeURIComponent).join("/");
    return view.source.exported ? null : `/files/${path}`;
  }
  if (!link.page || !view.source.has(link.page, link.parameters)) return null;
  return hrefOf(link.page, link.parameters);
}

export function linked(view, label, link, attributes = {}) {
  const href = target(view, link);
  if (href === null) return text(label, "bdi", attributes);
  const more = link.file ? { target: "_blank", rel: "noopener" } : {};
  return make("a", { href, ...more, ...attributes }, text(label));
}

export function linkList(view, links) {
  if (!links?.length) return null;
  return make("p", { class: "links" }, links.map((one) => linked(view, one.label, one)));
}

const SHORT = 8;

export function originLine(view, origins) {
  if (!origins?.length) return null;
  const parts = origins.map((one) => {
    const digests = [
      one.config_digest ? `config ${one.config_digest.slice(0, SHORT)}` : null,
      one.data_digest ? `data ${one.data_digest.slice(0, SHORT)}` : null,
    ].filter(Boolean);
    const said = digests.length ? make("span", {}, ` ${digests.join(", ")}`) : null;
    const link = one.run ? { page: "run", parameters: { run: one.run } } : null;
    return make("span", { class: "origin" }, linked(view, one.name, link), said);
  });
  return make("p", { class: "origins" }, "From ", parts);
}
