// Lists to rate one by one: yes or no to each question; each answer is sent at once.
import { button, make, text } from "./element.js";

const ANSWERS = [["yes", "Yes", "y"], ["no", "No", "n"]];

// One question about the list that is shown; answers holds what was kept of that list.
function question(name, sentence, answers, send) {
  const group = make("fieldset", {}, make("legend", {}, text(sentence)));
  const inputs = ANSWERS.map(([value, label, key]) => {
    const input = make("input", { type: "radio", name, value, "aria-keyshortcuts": key });
    input.addEventListener("change", () => answer(value, false));
    group.append(make("label", {}, input, ` ${label} `, make("kbd", { "aria-hidden": "true" }, key)));
    return input;
  });
  const mark = (chosen) => {
    for (const input of inputs) input.checked = input.value === chosen;
  };
  const kept = () => mark(name in answers ? (answers[name] ? "yes" : "no") : "");
  const answer = async (value, moves) => {
    mark(value);
    await send(group, name, value, moves);
    kept();
  };
  group.addEventListener("keydown", (event) => {
    const found = ANSWERS.find(([, , key]) => key === event.key.toLowerCase());
    if (!found || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    answer(found[0], true);
  });
  kept();
  return group;
}

export function ratingBlock(view, block, drawLists) {
  const { lists, questions, answers } = block;
  const made = make("div", { id: block.key });
  const isDone = (at) => questions.every(([name]) => name in answers[at]);
  const focus = (group) => (group.querySelector("input:checked") ?? group.querySelector("input")).focus();
  let groups = [];

  function draw(at) {
    const fault = make("p", { class: "fault", role: "alert" });
    const progress = make("p", { class: "quiet small", role: "status" });
    const count = () => {
      const done = lists.filter((_, place) => isDone(place)).length;
      progress.textContent = `List ${at + 1} of ${lists.length}; ${done} rated by ${block.parameters.rater}.`;
    };
    const send = async (group, name, answer, moves) => {
      const following = groups[groups.indexOf(group) + 1];
      if (moves) following ? focus(following) : next.focus();
      try {
        await view.source.save(view.page, { ...block.parameters, list: lists[at].key, criterion: name, answer });
        answers[at][name] = answer === "yes";
        fault.textContent = "";
      } catch (error) {
        fault.textContent = `Not kept: ${error.message}`;
        focus(group);
      }
      count();
    };
    const to = (place) => draw((place + lists.length) % lists.length);
    const next = button("Next list", () => to(at + 1), { class: "main" });
    groups = questions.map(([name, sentence]) => question(name, sentence, answers[at], send));
    const form = make(
      "form",
      { class: "card rating", on: { submit: (event) => event.preventDefault() } },
      groups,
      next,
      " ",
      button("Previous list", () => to(at - 1)),
      fault,
      progress,
      make("p", { class: "quiet small" }, "Keys: y yes, n no, then Enter. Each answer is kept at once."),
    );
    made.replaceChildren(drawLists(lists[at]), form);
    count();
    const open = groups.find((group) => !group.querySelector("input:checked"));
    if (made.isConnected) focus(open ?? groups[0]);
  }

  const first = lists.findIndex((_, place) => !isDone(place));
  if (lists.length) draw(Math.max(first, 0));
  // The page gives the focus back to what had it, which was the name.
  if (lists.length) requestAnimationFrame(() => focus(groups[0]));
  return made;
}
