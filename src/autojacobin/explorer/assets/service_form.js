// What to ask of an index: a vector by its id, k, candidates, the distance.

import { byId, element, fill } from "./elements.js";
import { counted, whole } from "./numbers.js";
import { makeRoving } from "./roving.js";
import { ask } from "./search.js";
import { choice, slider } from "./slider.js";
import { change, state } from "./state.js";

export const KS = [1, 2, 3, 5, 10, 20, 50, 100];
export const CANDIDATES = [10, 20, 50, 100, 200, 500, 1000, 2000, 5000];

export async function drawForm(usable, index, limits) {
  const { ids } = await ask(`explorer/ids?index=${encodeURIComponent(index.name)}`);
  // one less than there is, since a vector that is asked for finds itself and does not count
  const ks = fitting(KS, Math.min(limits.k, index.vectors) - 1);
  const stops = fitting(CANDIDATES, Math.min(limits.candidates, index.vectors) - 1);
  change({ k: nearest(ks, state.k), candidates: nearest(stops, state.candidates) });
  const kept = `${counted(index.vectors, "vector")} of ${counted(index.features, "dimension")}`;
  byId("subtitle").textContent = `${kept} as codes of ${index.bits} bits by ${index.hasher}`;
  const number = element("input", { id: "id", type: "number", min: 0, step: 1, inputmode: "numeric", required: true });
  if (state.id >= 0) number.value = String(state.id);
  fill(
    byId("ask"),
    usable.length > 1 ? indexChoice(usable, index) : null,
    idForm(number),
    element("p", { class: "hint" }, "or one of these:"),
    someIds(ids, number),
    slider({
      id: "k",
      label: "Neighbours wanted, k",
      values: ks,
      value: state.k,
      say: String,
      choose: (k) => change({ k }),
    }).node,
    slider({
      id: "candidates",
      label: "Candidates",
      values: stops,
      value: state.candidates,
      say: whole,
      choose: (candidates) => change({ candidates }),
    }).node,
    choice({
      name: "distance",
      legend: "Codes are compared",
      options: { hamming: "bit by bit (Hamming)", asymmetric: "with the query's real values (asymmetric)" },
      value: state.distance,
      choose: (distance) => change({ distance }),
    }).node,
  );
}

function indexChoice(usable, index) {
  const select = element("select", { id: "index", change: () => change({ index: select.value, id: -1, item: null }) });
  select.append(...usable.map((one) => element("option", { value: one.name }, one.name)));
  select.value = index.name;
  return element("div", { class: "ask-form" }, element("label", { for: "index" }, "Index"), select);
}

function idForm(number) {
  const submit = (event) => {
    event.preventDefault();
    change({ id: Number(number.value), item: null });
  };
  const button = element("button", { class: "ask-button" }, "Search");
  return element("form", { class: "ask-form", submit }, element("label", { for: "id" }, "Its id"), number, button);
}

function someIds(ids, number) {
  const group = element("div", { class: "tiles some-ids", role: "group", "aria-label": "Some ids" });
  ids.forEach((id, place) => {
    const click = () => {
      number.value = String(id);
      change({ id, item: null });
    };
    const look = { type: "button", class: "tile", "data-place": place, tabindex: place ? -1 : 0, click };
    group.append(element("button", look, String(id)));
  });
  makeRoving(group);
  return group;
}

function fitting(values, most) {
  const fit = values.filter((value) => value <= most);
  return fit.length ? fit : [Math.max(1, most)];
}

function nearest(values, wanted) {
  return values.reduce((best, value) => (Math.abs(value - wanted) < Math.abs(best - wanted) ? value : best));
}
