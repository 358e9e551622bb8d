// Light or dark: as the system says, or as the reader chose.
import { make } from "./element.js";

const STORED = "recsys-scheme";
const SCHEMES = { "": "As the system", light: "Light", dark: "Dark" };

// A page in a sandbox, or from a file, may have no storage.
function stored() {
  try {
    return localStorage.getItem(STORED) ?? "";
  } catch {
    return "";
  }
}

function keep(scheme) {
  try {
    localStorage.setItem(STORED, scheme);
  } catch {
    // It holds for this page then.
  }
}

function apply(scheme) {
  document.documentElement.style.colorScheme = scheme;
}

export function schemeSwitch() {
  const options = Object.entries(SCHEMES).map(([value, label]) => make("option", { value }, label));
  const made = make("select", { id: "scheme" }, options);
  made.value = stored() in SCHEMES ? stored() : "";
  apply(made.value);
  made.addEventListener("change", () => {
    keep(made.value);
    apply(made.value);
  });
  return make("label", {}, make("span", { class: "unseen" }, "Colours"), made);
}
