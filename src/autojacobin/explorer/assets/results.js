// The true neighbours, and beside them what each method retrieves.

import { byId, element, fill } from "./elements.js";
import { counted, decimal, distanceName, whole } from "./numbers.js";
import { pointsTable, setSheet, tile, tileGroup } from "./points.js";
import { countTrue, retrieved } from "./ranking.js";
import { beside, change, state, watch } from "./state.js";

export function startResults(about, current) {
  const truth = truePart(about);
  const panels = about.methods.map((method) => panel(about, method));
  byId("methods").classList.toggle("tables", !about.sprite);
  const others = about.methods.filter((method) => !method.note).length;
  byId("methods").classList.toggle("by-three", others % 3 === 0);
  const draw = () => {
    const { data } = current;
    if (!data) return;
    if (!truth.node.isConnected) {
      fill(byId("truth"), truth.node);
      fill(byId("methods"), ...panels.map((one) => one.node));
    }
    const { k, candidates, bits } = state;
    byId("truth-title").textContent = `Query ${data.row}, and its ${counted(k, "true nearest neighbour")}`;
    byId("methods-title").textContent =
      `What each method finds: the nearest ${k} of ${counted(candidates, "candidate")}, ${bits} bits`;
    for (const part of [truth, ...panels]) part.show(data);
    markSame();
  };
  watch(["bits", "candidates", "k", "distance"], draw);
  for (const root of [byId("truth"), byId("methods")]) {
    for (const kind of ["click", "focusin", "pointerover"]) root.addEventListener(kind, lookAt);
  }
  watch(["item"], markSame);
  return draw;
}

function truePart(about) {
  const group = points(about, null, "True neighbours");
  const show = (data) => {
    const places = Array.from({ length: Math.min(state.k, data.ids.length) }, (_, place) => place);
    group.show(data, places);
  };
  if (!about.sprite) return { node: group.node, show };
  const query = element("div", { class: "query-tile" });
  setSheet(query, about.sprite, `data/wall.${about.sprite.ending}`);
  const node = element("div", { class: "query-and-truth" }, query, group.node);
  return {
    node,
    show: (data) => {
      const which = { sprite: about.sprite, number: state.query, place: "query", label: "The query" };
      fill(query, tile({ ...which, className: "is-query", tabIndex: -1 }));
      query.firstChild.disabled = true;
      show(data);
    },
  };
}

function panel(about, method) {
  const id = `panel-${method.name}`;
  const hits = element("span", { class: "hits" });
  const share = element("div", { class: "share", "aria-hidden": "true" });
  const trained = element("p", { class: "hint" });
  const less = element("p", { class: "hint" });
  const group = points(about, method, method.label);
  const node = element(
    "section",
    { class: `card panel${method.note ? " recommended" : ""}`, "aria-labelledby": id, "data-method": method.name },
    element("h3", { id }, element("span", { class: "name" }, method.label), hits),
    share,
    method.note ? element("p", { class: "hint note" }, method.note) : null,
    trained,
    group.node,
    less,
  );
  const show = (data) => {
    const { k, candidates } = state;
    const made = about.trained_as?.[method.name]?.[state.bits] ?? "";
    trained.textContent = made.includes("chosen") ? `Here it is ${made}.` : "";
    const ranks = ranksOf(data, method);
    const found = countTrue(ranks, candidates, k);
    const places = retrieved(ranks, candidates, k);
    fill(hits, element("b", null, String(found)), ` of ${k}`);
    share.style.setProperty("--share", `${(100 * found) / k}%`);
    less.hidden = places.length >= k;
    less.textContent = `Only ${counted(places.length, "candidate")} to show; move the candidates up for more.`;
    group.show(data, places);
  };
  return { node, show };
}

// Pictures where the set has them, else a table; of a method, or of the truth.
function points(about, method, name) {
  const item = (data, place) => ({
    place,
    label: describe(data, place, method),
    isTrue: method !== null && place < state.k,
  });
  if (about.sprite) {
    const group = tileGroup(name);
    const show = (data, places) => {
      const url = `data/query-${state.query}.${about.sprite.ending}`;
      group.show(data.sprite, url, places.map((place) => item(data, place)));
    };
    return { node: group.node, show };
  }
  const node = element("div");
  const heads = () => ["point", "Euclidean distance", ...(method ? [distanceName(state.distance), "rank"] : [])];
  const row = (data, place) => ({
    ...item(data, place),
    id: data.ids[place],
    numbers: [data.distances[place], ...(method ? [apart(data, place, method)] : [])],
    rank: method ? ranksOf(data, method)[place] : undefined,
  });
  return { node, show: (data, places) => fill(node, pointsTable(places.map((place) => row(data, place)), heads())) };
}

function ranksOf(data, method) {
  return data.methods[method.name][state.bits].ranks[state.distance];
}

function apart(data, place, method) {
  return data.methods[method.name][state.bits].distances[state.distance][place];
}

function describe(data, place, method) {
  const truth = `${place < state.k ? `True neighbour ${place + 1}` : "Not a true neighbour"}, point ${data.ids[place]}`;
  if (!method) return truth;
  const distance = `${distanceName(state.distance)} ${decimal(apart(data, place, method))}`;
  return `${truth}; ${method.label}: ${distance}, rank ${whole(ranksOf(data, method)[place])}`;
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
