// One point close up: its distance, its rank by every method, and its code beside that of the query.

import { codeStrip, codesOf, differing } from "./codes.js";
import { byId, element, fill } from "./elements.js";
import { decimal, distanceName, whole } from "./numbers.js";
import { setPicture, setSheet } from "./points.js";
import { beside, change, state, watch } from "./state.js";

const HOW =
  "Point at a neighbour, tap it, or go to it with Tab and the arrow keys: its distance, rank and code appear here.";
const LEGEND =
  "Above the query, below the point. Filled is 1, hollow 0, red where they differ. Bars: how far the query's projection " +
  "is from zero, where its bit changes.";

// Where the detail has a column of its own, the nearest neighbour is in it from the start.
export function firstLook() {
  return beside.matches ? 0 : null;
}

export function startDetail(about, current) {
  const draw = () => drawDetail(about, current.data);
  watch(["item", "method", "bits", "candidates", "k", "distance"], draw);
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && state.item !== null) change({ item: null });
  });
  return draw;
}

function drawDetail(about, data) {
  const body = byId("detail-body");
  byId("detail").classList.toggle("open", state.item !== null);
  if (!data || state.item === null) {
    fill(body, element("p", { class: "hint" }, HOW));
    return;
  }
  const place = state.item;
  const method = about.methods.find((one) => one.name === state.method);
  const entry = data.methods[method.name][state.bits];
  const codes = codesOf(entry, place, state.bits);
  const close = element("button", { type: "button", class: "close", click: () => change({ item: null }) }, "Close");
  fill(
    body,
    close,
    pictures(about, data, place),
    element("div", null, summary(data, place), whereabouts(about, data, place), ranks(about, data, place)),
    element(
      "div",
      null,
      element("h3", null, `Its code by ${method.label}: ${differing(codes)} of ${state.bits} bits differ`),
      codeStrip(codes, entry.weights),
      element("p", { class: "hint" }, LEGEND),
    ),
  );
}

function pictures(about, data, place) {
  if (!data.sprite) return null;
  const query = element("div", { role: "img", "aria-label": "The query" });
  setSheet(query, about.sprite, `data/wall.${about.sprite.ending}`);
  setPicture(query, about.sprite, state.query);
  const point = element("div", { role: "img", "aria-label": "The point" });
  setSheet(point, data.sprite, `data/query-${state.query}.${about.sprite.ending}`);
  setPicture(point, data.sprite, place);
  const caption = (node, text) => element("figure", null, node, element("figcaption", null, text));
  return element("div", { class: "pair" }, caption(query, "query"), caption(point, `point ${data.ids[place]}`));
}

// The photographs that the query and the point are from, with a frame around each of them.
function whereabouts(about, data, place) {
  if (!data.places) return null;
  const photograph = ([number, x, y, side], whose) => {
    const { name: file, ending } = about.photographs[number];
    const name = file.replace(/\.\w+$/, "").replaceAll("_", " ");
    const picture = element("img", { src: `data/photograph-${number}.${ending}`, alt: `${whose} in ${name}` });
    const at = { "--x": `${100 * x}%`, "--y": `${100 * y}%`, "--side": `${100 * side}%` };
    const frame = element("span", { class: "frame", "aria-hidden": "true", ...at });
    const whole = element("div", { class: "whole" }, picture, frame);
    return element("figure", null, whole, element("figcaption", null, `${whose} in ${name}`));
  };
  const both = [photograph(data.query_place, "query"), photograph(data.places[place], "point")];
  return element("div", { class: "photographs" }, ...both);
}

function summary(data, place) {
  const truth = place < state.k ? `True neighbour number ${place + 1}` : `Not among the ${state.k} nearest`;
  const name = data.sprite ? "" : `Point ${data.ids[place]}. `;
  return element("p", { class: place < state.k ? "verdict true" : "verdict" },
    `${name}${truth}, at Euclidean distance ${decimal(data.distances[place])}.`);
}

function ranks(about, data, place) {
  const rows = about.methods.map((method) => {
    const entry = data.methods[method.name][state.bits];
    const rank = entry.ranks[state.distance][place];
    const name = element("button", {
      type: "button",
      class: "link",
      "aria-pressed": String(method.name === state.method),
      click: () => change({ method: method.name }),
    }, method.label);
    const last = about.stops[about.stops.length - 1];
    return element("tr", { class: rank > 0 && rank <= state.candidates ? "in" : "out" },
      element("th", { scope: "row" }, name),
      element("td", null, decimal(entry.distances[state.distance][place])),
      element("td", null, rank > 0 ? whole(rank) : `> ${whole(last)}`),
      element("td", null, rank > 0 && rank <= state.candidates ? "found" : "–"));
  });
  const heads = ["method", distanceName(state.distance), "rank", ""];
  return element("table", { class: "ranks" },
    element("thead", null, element("tr", null, ...heads.map((text) => element("th", { scope: "col" }, text)))),
    element("tbody", null, ...rows));
}
