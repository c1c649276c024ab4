// The code of one neighbour beside that of the query.

import { codeStrip } from "./code_strip.js";
import { byId, element, fill } from "./elements.js";
import { bitsOf, codeDistance } from "./ranking.js";
import { ask } from "./search.js";
import { change, state } from "./state.js";

export async function drawDetail(index) {
  const body = byId("service-detail-body");
  const { id, item } = state;
  byId("service-detail").classList.toggle("open", item !== null);
  if (item === null) {
    const how = "Choose a neighbour in the table to compare its code with that of the query.";
    return fill(body, element("p", { class: "hint" }, how));
  }
  const close = element("button", { type: "button", class: "close", click: () => change({ item: null }) }, "Close");
  try {
    const { bits, codes } = await ask(`explorer/codes?index=${encodeURIComponent(index.name)}&ids=${id},${item}`);
    if (item !== state.item) return; // somebody looks at another one by now
    const [query, point] = codes.map((digits) => bitsOf(bytesOf(digits), 0, bits));
    const differing = codeDistance({ query, point }, null);
    const hint = "Above the query, below the neighbour. Filled is 1, hollow 0, red where they differ.";
    const title = element("h3", null, `Vector ${item}: ${differing} of ${bits} bits differ`);
    const strip = codeStrip({ query, point }, null);
    fill(body, close, element("div", null, title, strip, element("p", { class: "hint" }, hint)));
  } catch (error) {
    fill(body, close, element("p", null, error.message));
  }
}

function bytesOf(digits) {
  return Uint8Array.from({ length: digits.length / 2 }, (_, i) => parseInt(digits.slice(2 * i, 2 * i + 2), 16));
}
