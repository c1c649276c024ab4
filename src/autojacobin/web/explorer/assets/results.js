// The true neighbours, and beside them what each method retrieves.

import { byId, element, fill } from "./elements.js";
import { counted, decimal, whole } from "./numbers.js";
import { codeDistance, codesOf, countTrue, retrieved } from "./ranking.js";
import { makeRoving } from "./roving.js";
import { change, state, watch } from "./state.js";
import { tile } from "./tiles.js";

const beside = matchMedia("(min-width: 1200px)");

export function startResults(about, current) {
  const draw = () => current.data && drawAll(about, current.data);
  watch(["bits", "candidates", "k", "distance"], draw);
  for (const root of [byId("truth"), byId("methods")]) {
    for (const kind of ["click", "focusin", "pointerover"]) root.addEventListener(kind, lookAt);
  }
  watch(["item"], markSame);
  return draw;
}

function drawAll(about, data) {
  const { k, candidates, bits } = state;
  byId("truth-title").textContent = `Query ${data.row}, and its ${counted(k, "true nearest neighbour")}`;
  byId("methods-title").textContent =
    `What each method finds: the nearest ${k} of ${counted(candidates, "candidate")}, ${bits} bits`;
  fill(byId("truth"), trueNeighbours(about, data));
  byId("methods").classList.toggle("tables", !data.sprite);
  fill(byId("methods"), ...about.methods.map((method) => panel(about, data, method)));
  markSame();
}

function trueNeighbours(about, data) {
  const places = Array.from({ length: Math.min(state.k, data.ids.length) }, (_, place) => place);
  if (!data.sprite) return table(data, places, null);
  const query = element("div", { class: "query-tile" });
  query.append(
    tile({
      sprite: about.sprite,
      url: `data/wall.${about.sprite.ending}`,
      number: state.query,
      place: "query",
      label: "The query",
      className: "is-query",
      tabIndex: -1,
    }),
  );
  query.firstChild.disabled = true;
  return element("div", { class: "query-and-truth" }, query, group(about, data, places, null, "True neighbours"));
}

function panel(about, data, method) {
  const ranks = ranksOf(data, method);
  const places = retrieved(ranks, state.candidates, state.k);
  const hits = countTrue(ranks, state.candidates, state.k);
  const id = `panel-${method.name}`;
  const share = element("div", { class: "share", "--share": `${(100 * hits) / state.k}%`, "aria-hidden": "true" });
  const head = element(
    "h3",
    { id },
    element("span", { class: "name" }, method.label),
    element("span", { class: "hits" }, element("b", null, String(hits)), ` of ${state.k}`),
  );
  const node = element("section", { class: "card panel", "aria-labelledby": id, "data-method": method.name });
  const points = data.sprite ? group(about, data, places, method, method.label) : table(data, places, method);
  node.append(head, share, points);
  if (places.length < state.k) {
    const less = `Only ${counted(places.length, "candidate")} to show; move the candidates up for more.`;
    node.append(element("p", { class: "hint" }, less));
  }
  return node;
}

function ranksOf(data, method) {
  return data.methods[method.name][state.bits].ranks[state.distance];
}

function group(about, data, places, method, label) {
  const node = element("div", { class: "tiles", role: "group", "aria-label": label });
  const url = `data/query-${state.query}.${about.sprite.ending}`;
  places.forEach((place, number) => {
    const isTrue = method !== null && place < state.k;
    const words = describe(data, place, method);
    node.append(
      tile({
        sprite: data.sprite,
        url,
        number: place,
        place,
        label: words,
        className: isTrue ? "true" : "",
        tabIndex: number === 0 ? 0 : -1,
      }),
    );
  });
  makeRoving(node);
  return node;
}

function describe(data, place, method) {
  const truth = `${place < state.k ? `True neighbour ${place + 1}` : "Not a true neighbour"}, point ${data.ids[place]}`;
  if (!method) return truth;
  const { distance } = state;
  const apart = decimal(distanceOf(data, place, method));
  const name = distance === "hamming" ? "Hamming" : "asymmetric";
  return `${truth}; ${method.label}: ${name} distance ${apart}, rank ${whole(ranksOf(data, method)[place])}`;
}

function distanceOf(data, place, method) {
  const entry = data.methods[method.name][state.bits];
  return codeDistance(codesOf(entry, place, state.bits), state.distance === "asymmetric" ? entry.weights : null);
}

function table(data, places, method) {
  const body = element("tbody");
  places.forEach((place, number) => {
    const isTrue = method !== null && place < state.k;
    const button = element(
      "button",
      {
        type: "button",
        class: "row-button",
        "data-place": place,
        tabindex: number === 0 ? 0 : -1,
        "aria-label": describe(data, place, method),
      },
      String(data.ids[place]),
    );
    const cells = [button, decimal(data.distances[place])];
    if (method) {
      cells.push(decimal(distanceOf(data, place, method)), whole(ranksOf(data, method)[place]));
    }
    const row = element("tr", { class: isTrue ? "true" : "" }, element("td", { class: "mark" }, isTrue ? "◤" : ""));
    row.append(...cells.map((cell) => element("td", null, cell)));
    body.append(row);
  });
  const heads = ["", "point", "distance", ...(method ? ["of codes", "rank"] : [])];
  const head = element("tr", null, ...heads.map((text) => element("th", { scope: "col" }, text)));
  const node = element("table", { class: "points" }, element("thead", null, head), body);
  makeRoving(node);
  return element("div", { class: "scroll" }, node);
}

function lookAt(event) {
  // A finger that scrolls looks at nothing; and where the detail covers part of the page, it opens by a click only.
  if (event.type === "pointerover" && (event.pointerType !== "mouse" || !beside.matches)) return;
  const chosen = event.target.closest("[data-place]");
  if (!chosen || chosen.disabled) return;
  const method = chosen.closest("[data-method]")?.dataset.method;
  change({ item: Number(chosen.dataset.place), ...(method ? { method } : {}) });
}

// The same point in the other panels, so that one sees who else has found it.
function markSame() {
  for (const one of document.querySelectorAll("#truth .same, #methods .same")) one.classList.remove("same");
  if (state.item === null) return;
  const there = `[data-place="${state.item}"]`;
  for (const one of document.querySelectorAll(`#truth ${there}, #methods ${there}`)) one.classList.add("same");
}
