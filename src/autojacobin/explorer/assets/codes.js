// Codes of points: their bits, and two codes as strips of bits. Filled is 1, hollow is 0; where the codes differ, both
// bits and a bar below them are red.

import { svgElement } from "./elements.js";
import { decimal } from "./numbers.js";

const BITS_PER_LINE = 32;
const CELL = 9;
const GAP = 2;
const LINE = 44;

const unpacked = new WeakMap();

function bytesOf(entry) {
  if (!unpacked.has(entry)) {
    const decode = (text) => Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
    unpacked.set(entry, { query: decode(entry.query), codes: decode(entry.codes) });
  }
  return unpacked.get(entry);
}

export function bitsOf(bytes, start, n) {
  return Array.from({ length: n }, (_, j) => (bytes[start + (j >> 3)] >> (j & 7)) & 1);
}

export function codesOf(entry, place, n) {
  const { query, codes } = bytesOf(entry);
  return { query: bitsOf(query, 0, n), point: bitsOf(codes, place * Math.ceil(n / 8), n) };
}

export function differing({ query, point }) {
  return query.filter((bit, j) => bit !== point[j]).length;
}

// With weights, the bars are as long as the weights of their bits.
export function codeStrip({ query, point }, weights) {
  const n = query.length;
  const lines = Math.ceil(n / BITS_PER_LINE);
  const svg = svgElement("svg", {
    class: "code-strip",
    viewBox: `0 0 ${Math.min(n, BITS_PER_LINE) * CELL + 2} ${lines * LINE}`,
    role: "img",
    "aria-label":
      `The codes of the query, above, and of the point, below, differ in ${differing({ query, point })} of ${n} bits`,
  });
  svg.style.maxWidth = `${Math.min(n, BITS_PER_LINE) * 14}px`;
  const heaviest = weights ? Math.max(...weights, 1e-30) : 1;
  for (let j = 0; j < n; j += 1) {
    const x = 1 + (j % BITS_PER_LINE) * CELL;
    const y = 1 + Math.floor(j / BITS_PER_LINE) * LINE;
    const differs = query[j] !== point[j];
    svg.append(cell(x, y, query[j], differs), cell(x, y + CELL + GAP, point[j], differs));
    if (!differs) continue;
    const height = weights ? Math.max(1, 14 * (weights[j] / heaviest)) : 6;
    const size = { x: x + 1.5, y: y + 2 * (CELL + GAP), width: CELL - GAP - 3, height };
    const title = `bit ${j + 1}${weights ? `, weight ${decimal(weights[j])}` : ""}`;
    svg.append(svgElement("rect", { class: "mark", ...size }, svgElement("title", null, title)));
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
