// What a reply says about itself, in plain words; and the request, for a shell.

export const SOURCES = {
  sequence: { label: "next", told: "sequence model: what comes next" },
  ensemble: { label: "next", told: "several sequence models together: what comes next" },
  generative: { label: "generated", told: "generative model: the semantic ID that comes next" },
  two_tower: { label: "taste", told: "two-tower model" },
  item_to_item: { label: "together", told: "taken together" },
  content: { label: "alike", told: "content is alike" },
  popular: { label: "popular", told: "popular with everyone" },
};

const count = (n, one, many) => `${n.toLocaleString("en")} ${n === 1 ? one : many}`;
export const items = (n) => count(n, "item", "items");
export const users = (n) => count(n, "user", "users");

function degradedInWords(note, asked, titles) {
  const [what, ...rest] = note.split(": ");
  const which = rest.join(": ");
  switch (what) {
    case "unknown_user":
      return `Nobody called ${asked.user_id} was there when the models were trained.`;
    case "empty_history":
      return "There is nothing to go by yet.";
    case "unknown_item":
      return `${titles.get(which) ?? which} is not in the catalogue, so it was left out.`;
    case "unknown_items":
      return `${which} items are not in the catalogue either.`;
    case "short_list":
      return `Only ${which.replace(" of ", " of the ")} places could be filled.`;
    case "late_source":
      return `The ${which} model took too long, so the list is made without it.`;
    case "stale_data":
      return "The newest event is long past, so times are counted from then.";
    case "everything_filtered":
      return which.startsWith("categories")
        ? "Nothing new is left in this category, so the list ignores it."
        : "Everything was seen already, so seen items are shown again.";
    case "everything_excluded":
      return "Every item is excluded.";
    default:
      return which ? `${what.replaceAll("_", " ")}: ${which}` : what.replaceAll("_", " ");
  }
}

export function notesOf(reply, asked, titles = new Map()) {
  const notes = reply.degraded.map((note) => degradedInWords(note, asked, titles));
  if (reply.fallback === "popular" && reply.items.length) {
    notes.push("This is what is popular with everyone.");
  }
  if (!reply.items.length) notes.push("There is nothing to show.");
  return notes;
}

// Which part of an item's score each source added, largest first.
export function partsInWords(contributions) {
  const parts = Object.entries(contributions ?? {}).map(
    ([source, part]) => `${SOURCES[source]?.label ?? source} ${Math.round(100 * part)}%`,
  );
  return parts.join(", ");
}

// What is known of one item, for the head of its dialog.
export function detailsOf({ item_id, categories, semantic_id }) {
  const parts = [`item ${item_id}`];
  if (categories.length) parts.push(categories.join(", "));
  if (semantic_id) parts.push(`semantic ID ${semantic_id}`);
  return parts.join(" \u00b7 ");
}

export function changeInWords({ entered, up, down, left }) {
  const parts = [];
  if (entered) parts.push(`${entered} new`);
  if (up) parts.push(`${up} moved up`);
  if (down) parts.push(`${down} moved down`);
  if (left) parts.push(`${left} left the list`);
  return parts.length ? parts.join(", ") : "nothing changed";
}

// One word for a POSIX shell, whatever is in it.
const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;

export const curlOf = (origin, body) =>
  `curl -s ${origin}/v1/recommend \\\n  -H 'content-type: application/json' \\\n  -d ${quoted(body)}`;
