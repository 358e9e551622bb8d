// Texts: what a reply says about itself, and the request as a curl command.

export const SOURCES = {
  sequence: { label: "next item", title: "sequence model: predicts the next item" },
  ensemble: { label: "next item", title: "ensemble of sequence models: predicts the next item" },
  generative: { label: "generated", title: "generative model: predicts the next semantic ID" },
  two_tower: { label: "two-tower", title: "two-tower model: fits the user's history" },
  item_to_item: { label: "co-occurs", title: "item-to-item: often in the same histories" },
  ease: { label: "goes with", title: "EASE: linear weights from the items of the history" },
  repeats: { label: "again", title: "repeats: was taken before" },
  next_basket: { label: "next basket", title: "next basket: follows the history's baskets" },
  content_similarity: { label: "similar", title: "similar content" },
  popularity: { label: "popular", title: "popular with all users" },
  search: { label: "found", title: "found by its title" },
  rules: { label: "pinned", title: "put there by a rule" },
};

const count = (n, one, many) => `${n.toLocaleString("en")} ${n === 1 ? one : many}`;
export const items = (n) => count(n, "item", "items");
export const users = (n) => count(n, "user", "users");

function degradedInWords({ code, detail = "" }, sent, titles) {
  switch (code) {
    case "unknown_user":
      return sent.user_id.startsWith("visitor-")
        ? "A new visitor: the list is made of this visit."
        : `User ${sent.user_id} was not in the training data.`;
    case "empty_history":
      return "There is no history yet.";
    case "unknown_item":
      return `${titles.get(detail) ?? detail} is not in the catalogue, so it was left out.`;
    case "unknown_items":
      return `${detail} items are not in the catalogue either.`;
    case "unknown_category":
      return `The catalogue has no category ${detail}.`;
    case "nothing_eligible":
      return detail === "exclude" ? "Every item is excluded." : "No item passes the filter.";
    case "seen_items_shown":
      return "Every item was seen already, so seen items are shown again.";
    case "short_list":
      return `Only ${detail.replace(" of ", " of the ")} places could be filled.`;
    case "late_source":
      return `The ${detail} model took too long, so the list is made without it.`;
    case "failed_source":
      return `The ${detail} model failed, so the list is made without it.`;
    case "corrected_query":
      return `Nothing has these words; searched for ${detail} instead.`;
    case "no_word_found":
      return "Nothing has these words; these are spelt most like them.";
    case "unknown_wish":
      return `Nothing here is called ${detail || "that"}, so the list is as it was.`;
    case "many_refusals":
      return `Of what was hidden, ${detail} count.`;
    case "failed_store":
      return "The online store did not answer, so the list knows no events since the release.";
    case "stale_data":
      return "The newest event is old, so times are counted from it.";
    default:
      return `${code.replaceAll("_", " ")}${detail && ": "}${detail}`;
  }
}

export function notesOf(reply, sent, titles = new Map()) {
  const notes = reply.degraded.map((note) => degradedInWords(note, sent, titles));
  for (const { words, direction, num_items: number } of reply.steered ?? []) {
    notes.push(`${direction} ${words}: ${items(number)} ${direction === "never" ? "left out" : "moved"}.`);
  }
  if (reply.fallback === "popularity" && reply.items.length) {
    notes.push("These are the most popular items.");
  }
  if (!reply.items.length) notes.push("There is nothing to show.");
  return notes;
}

export const actInWords = (type) =>
  ({ view: "viewed", like: "liked", purchase: "purchased", hide: "hidden", dislike: "disliked", undo: "undone" })[type] ?? type;

// A filter that this catalogue has the properties for.
export function exampleOf(properties, categories) {
  const tests = categories.length ? [`category = '${categories[0].name.replaceAll("'", "''")}'`] : [];
  const number = Object.keys(properties).find((name) => properties[name] === "number");
  if (number) tests.push(`${number} > ${number.includes("year") ? 1990 : 10}`);
  return tests.join(" and ") || "item_id != '1'";
}

// Which part of an item's score each source added, largest first.
export function partsInWords(contributions) {
  const parts = Object.entries(contributions ?? {}).map(
    ([source, part]) => `${SOURCES[source]?.label ?? source} ${Math.round(100 * part)}%`,
  );
  return parts.join(", ");
}

// An item's details, for the head of its dialog.
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

const KEY_HEADER = ` \\\n  -H "authorization: Bearer $RECSYS_KEY"`;

export const curlOf = (address, body, hasKey) =>
  `curl -s ${address} \\\n  -H 'content-type: application/json'${hasKey ? KEY_HEADER : ""} \\\n  -d ${quoted(body)}`;
