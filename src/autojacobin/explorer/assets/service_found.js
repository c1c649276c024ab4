// The answer of an index as a table.

import { byId, element, fill } from "./elements.js";
import { counted, decimal } from "./numbers.js";
import { makeRoving } from "./roving.js";
import { state } from "./state.js";

const HEADS = ["", "", "id", "distance", "of codes", "rank of code"];

export function drawFound({ rows, reference }) {
  const hits = rows.filter((row) => row.isTrue).length;
  const among = reference.exact ? "all vectors" : counted(reference.among, "candidate");
  const marked = `In orange the ${hits} that are among the ${rows.length} nearest of ${among}.`;
  const what = counted(rows.length, "neighbour");
  byId("found-title").textContent = `The ${what} of vector ${state.id} that the index finds`;
  const head = element("tr", null, ...HEADS.map((text) => element("th", { scope: "col" }, text)));
  const body = element("tbody", null, ...rows.map(tableRow));
  const table = element("table", { class: "points" }, element("thead", null, head), body);
  makeRoving(table);
  fill(byId("found"), element("p", null, marked), element("div", { class: "scroll tall" }, table));
}

function tableRow({ id, distance, apart, rank, isTrue }, place) {
  const look = { type: "button", class: "row-button", "data-place": place, "data-id": id, tabindex: place ? -1 : 0 };
  const button = element("button", look, String(id));
  const cells = [String(place + 1), button, decimal(distance), apart === null ? "–" : decimal(apart), rank];
  const mark = element("td", { class: "mark" }, isTrue ? "◤" : "");
  return element("tr", { class: isTrue ? "true" : "" }, mark, ...cells.map((cell) => element("td", null, cell)));
}
