// A code as a strip of bits: filled is 1, hollow is 0; where two codes differ, both bits and a mark below are red.

import { svgElement } from "./elements.js";
import { decimal } from "./numbers.js";

const BITS_A_LINE = 32;
const CELL = 9;
const GAP = 2;

export function codeStrip({ query, point }, weights) {
  const n = query.length;
  const height = weights ? 44 : 36;
  const lines = Math.ceil(n / BITS_A_LINE);
  const differing = query.filter((bit, j) => bit !== point[j]).length;
  const svg = svgElement("svg", {
    class: "code-strip",
    viewBox: `0 0 ${Math.min(n, BITS_A_LINE) * CELL + 2} ${lines * height}`,
    role: "img",
    "aria-label": `The codes of the query, above, and of the point, below, differ in ${differing} of ${n} bits`,
  });
  svg.style.maxWidth = `${Math.min(n, BITS_A_LINE) * 14}px`;
  const heaviest = weights ? Math.max(...weights, 1e-30) : 1;
  for (let j = 0; j < n; j += 1) {
    const x = 1 + (j % BITS_A_LINE) * CELL;
    const y = 1 + Math.floor(j / BITS_A_LINE) * height;
    const differs = query[j] !== point[j];
    const size = weights ? 14 * (weights[j] / heaviest) : 6;
    svg.append(cell(x, y, query[j], differs), cell(x, y + CELL + GAP, point[j], differs));
    const top = y + 2 * (CELL + GAP);
    if (differs || weights) {
      svg.append(
        svgElement(
          "rect",
          {
            class: differs ? "differs mark" : "agrees mark",
            x: x + 1.5,
            y: top,
            width: CELL - GAP - 3,
            height: Math.max(1, size),
          },
          svgElement("title", null, `bit ${j + 1}${weights ? `, weight ${decimal(weights[j])}` : ""}`),
        ),
      );
    }
  }
  return svg;
}

function cell(x, y, bit, differs) {
  const side = CELL - GAP;
  return svgElement("rect", {
    class: `bit ${bit ? "one" : "zero"} ${differs ? "differs" : ""}`,
    x: x + 0.5,
    y: y + 0.5,
    width: side - 1,
    height: side - 1,
  });
}
