// Points as rows, for sets that have no pictures.

import { element } from "./elements.js";
import { decimal, whole } from "./numbers.js";
import { makeRoving } from "./roving.js";

// Each point has its place, the words for it, whether it is a true neighbour, and its numbers.
export function pointsTable(points, heads) {
  const body = element("tbody");
  points.forEach(({ place, id, label, isTrue, numbers, rank }, i) => {
    const button = element(
      "button",
      { type: "button", class: "row-button", "data-place": place, tabindex: i === 0 ? 0 : -1, "aria-label": label },
      String(id),
    );
    const cells = [button, ...numbers.map(decimal), ...(rank === undefined ? [] : [whole(rank)])];
    const row = element("tr", { class: isTrue ? "true" : "" }, element("td", { class: "mark" }, isTrue ? "◤" : ""));
    row.append(...cells.map((cell) => element("td", null, cell)));
    body.append(row);
  });
  const head = element("tr", null, ...["", ...heads].map((text) => element("th", { scope: "col" }, text)));
  const node = element("table", { class: "points" }, element("thead", null, head), body);
  makeRoving(node);
  return element("div", { class: "scroll" }, node);
}
