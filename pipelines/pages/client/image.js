// A chart as a picture that stands alone: its title, its legend, colours in place of variables.
import { save } from "./element.js";

const XMLNS = "http://www.w3.org/2000/svg";
const ROW = 20;
const SCALE = 2;

function resolved(value) {
  const probe = document.createElement("span");
  probe.style.color = value;
  document.body.append(probe);
  const color = getComputedStyle(probe).color;
  probe.remove();
  return color;
}

function svgNode(tag, attributes, content = "") {
  const made = document.createElementNS(XMLNS, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.textContent = content;
  return made;
}

// The drawn chart as SVG text, with its size.
function standalone(block, place) {
  const drawn = place.querySelector("svg");
  if (!drawn) return null;
  const legend = Object.entries(block.legend);
  const above = ROW * (legend.length + 1) + 10;
  const [width, height] = [drawn.width.baseVal.value, drawn.height.baseVal.value + above];
  const made = svgNode("svg", { xmlns: XMLNS, width, height, viewBox: `0 0 ${width} ${height}` });
  made.append(svgNode("rect", { width, height, fill: "var(--card)" }));
  const words = { x: 4, y: 15, fill: "var(--ink)", "font-size": 14, "font-weight": 600 };
  const font = "system-ui, sans-serif";
  made.append(svgNode("text", { ...words, "font-family": font }, block.title));
  legend.forEach(([name, color], row) => {
    const y = ROW * (row + 2) - 5;
    made.append(svgNode("circle", { cx: 9, cy: y - 4, r: 5, fill: color }));
    const side = { x: 20, y, fill: "var(--ink)", "font-size": 12, "font-family": font };
    made.append(svgNode("text", side, name));
  });
  const inner = drawn.cloneNode(true);
  inner.setAttribute("y", above);
  made.append(inner);
  const source = new XMLSerializer().serializeToString(made);
  return { width, height, source: source.replace(/var\(--[\w-]+\)/g, resolved) };
}

export function saveSvg(block, place) {
  const made = standalone(block, place);
  if (made) save(`${block.key}.svg`, [made.source], "image/svg+xml");
}

export function savePng(block, place) {
  const made = standalone(block, place);
  if (!made) return;
  const picture = new Image();
  picture.addEventListener("load", () => {
    const canvas = document.createElement("canvas");
    [canvas.width, canvas.height] = [made.width * SCALE, made.height * SCALE];
    const drawing = canvas.getContext("2d");
    drawing.scale(SCALE, SCALE);
    drawing.drawImage(picture, 0, 0);
    canvas.toBlob((found) => save(`${block.key}.png`, [found], "image/png"));
  });
  picture.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(made.source)}`;
}
