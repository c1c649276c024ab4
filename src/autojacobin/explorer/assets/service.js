// The page of a service: what an index finds for a vector that is in it.

import { bitsOf, codeStrip, differing } from "./codes.js";
import { distanceChoice, slider } from "./controls.js";
import { byId, element, fill } from "./elements.js";
import { counted, decimal, distanceName, whole } from "./numbers.js";
import { makeRoving } from "./points.js";
import { begin, change, state, watch } from "./state.js";

const KS = [1, 2, 3, 5, 10, 20, 50, 100];
const CANDIDATES = [10, 20, 50, 100, 200, 500, 1000, 2000, 5000];
const MEASURES = { euclidean: "Euclidean distance", cosine: "Cosine similarity", inner_product: "Inner product" };
const MOST_COLUMNS = 8;
const LONGEST_VALUE = 60;
const NONE =
  "No index here can be asked for neighbours of its own vectors: it takes two of them, in an index that keeps them.";

export async function startService() {
  const { indexes, limits } = await ask("v1/indexes");
  byId("title").textContent = "What does the index find?";
  byId("service").hidden = false;
  const usable = indexes.filter((one) => one.vectors > 1 && one.vectors_kept);
  if (!usable.length) return fill(byId("ask"), element("p", null, NONE));
  const [distance] = Object.keys(usable[0].distances);
  const defaults = { index: usable[0].name, id: "", k: 10, candidates: 100, distance, where: "", item: null };
  begin(defaults, {
    index: (name) => usable.some((one) => one.name === name),
    id: (id) => id !== "",
    k: (n) => KS.includes(n),
    candidates: (n) => CANDIDATES.includes(n),
    distance: (name) => usable.some((one) => name in one.distances),
    where: () => true,
  });
  const chosen = () => usable.find((one) => one.name === state.index);
  const page = { number: 0 };
  watch(["index"], () => drawForm(usable, chosen(), limits));
  watch(["index", "id", "k", "candidates", "distance", "where"], () => search(page, chosen(), limits));
  watch(["item"], () => drawDetail(chosen()));
  for (const kind of ["click", "focusin"]) byId("found").addEventListener(kind, look);
  document.addEventListener("keydown", (event) => event.key === "Escape" && change({ item: null }));
  await drawForm(usable, chosen(), limits);
  drawDetail(chosen());
  if (!page.number && state.id !== "") await search(page, chosen(), limits); // the address has an id
}

async function search(page, index, limits) {
  page.number += 1;
  const { number } = page;
  const found = byId("found");
  if (state.id === "") return fill(found);
  found.setAttribute("aria-busy", "true");
  try {
    const answer = await neighbours(index, limits, state);
    if (number !== page.number) return; // a later question is under way
    byId("trouble").hidden = true;
    drawFound(answer, index);
  } catch (error) {
    if (number !== page.number) return;
    byId("trouble").textContent = error.message;
    byId("trouble").hidden = false;
    fill(found);
  }
  found.setAttribute("aria-busy", "false");
}

function look(event) {
  const chosen = event.target.closest("[data-id]") ?? event.target.closest("tbody tr")?.querySelector("[data-id]");
  if (chosen) change({ item: chosen.dataset.id });
}

async function drawForm(usable, index, limits) {
  const { ids } = await ask(`explorer/ids?index=${encodeURIComponent(index.name)}`);
  // one less than there is, since a vector that is asked for finds itself and does not count
  const ks = fitting(KS, Math.min(limits.k, index.vectors) - 1);
  const stops = fitting(CANDIDATES, Math.min(limits.candidates, index.vectors) - 1);
  const distance = state.distance in index.distances ? state.distance : Object.keys(index.distances)[0];
  change({ k: nearest(ks, state.k), candidates: nearest(stops, state.candidates), distance });
  const kept = `${counted(index.vectors, "vector")} of ${counted(index.features, "dimension")}`;
  byId("subtitle").textContent = `${kept} as codes of ${index.bits} bits by ${index.trained_as}`;
  if (state.id === "" && ids.length) change({ id: String(ids[0]) }); // a first answer without a question
  const number = { type: "number", min: 0, step: 1, inputmode: "numeric" };
  const kind = index.ids === "integer" ? number : { type: "text" };
  const input = element("input", { id: "id", required: true, ...kind });
  input.value = state.id;
  fill(
    byId("ask"),
    usable.length > 1 ? indexChoice(usable, index) : null,
    idForm(input),
    element("p", { class: "hint" }, "or one of these:"),
    someIds(ids, input),
    index.columns?.length ? whereForm(index) : null,
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
    distanceChoice(index.distances).node,
  );
}

function indexChoice(usable, index) {
  const select = element("select", { id: "index", change: () => change({ index: select.value, id: "", where: "", item: null }) });
  select.append(...usable.map((one) => element("option", { value: one.name }, one.name)));
  select.value = index.name;
  return element("div", { class: "ask-form" }, element("label", { for: "index" }, "Index"), select);
}

function idForm(input) {
  const submit = (event) => {
    event.preventDefault();
    change({ id: input.value, item: null });
  };
  const button = element("button", { class: "ask-button" }, "Search");
  return element("form", { class: "ask-form", submit }, element("label", { for: "id" }, "Its id"), input, button);
}

function whereForm(index) {
  const input = element("input", { id: "where", type: "text", maxlength: 1000, placeholder: "a condition" });
  input.value = state.where;
  const submit = (event) => {
    event.preventDefault();
    change({ where: input.value.trim(), item: null });
  };
  const button = element("button", { class: "ask-button" }, "Filter");
  const label = element("label", { for: "where" }, "Only where");
  const hint = element("p", { class: "hint" }, `Columns: ${index.columns.join(", ")}`);
  return element("form", { class: "ask-form", submit }, label, input, button, hint);
}

function someIds(ids, input) {
  const group = element("div", { class: "tiles some-ids", role: "group", "aria-label": "Some ids" });
  ids.forEach((id, place) => {
    const click = () => {
      input.value = String(id);
      change({ id: String(id), item: null });
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

async function ask(path, body) {
  const headers = { "Content-Type": "application/json" };
  const answer = await fetch(path, body && { method: "POST", headers, body: JSON.stringify(body) });
  const content = await answer.json().catch(() => ({}));
  if (!answer.ok) throw new Error(content.detail ?? `The service answered ${answer.status}; ask again.`);
  return content;
}

// What the index finds, the rank of each neighbour in the order of the codes, and for comparison the nearest of as many
// candidates as the service allows: of all vectors, if the index is not larger than that. A vector that is in the index
// finds itself first, so one more is asked for, and it is left out.
async function neighbours(index, limits, { id: text, k, candidates, distance, where }) {
  const id = index.ids === "integer" ? Number(text) : text; // the service takes numbers and names apart
  const question = { index: index.name, id, distance, ...(where && index.columns?.length ? { where } : {}) };
  const columns = shownColumns(index).length ? { columns: shownColumns(index) } : {};
  const most = Math.min(limits.candidates, index.vectors);
  const listed = Math.min(limits.k, index.vectors, candidates + 1);
  const [byCode, answer, best] = await Promise.all([
    ask("v1/search", { ...question, k: listed, rerank: false }),
    ask("v1/search", { ...question, ...columns, k: k + 1, candidates: Math.max(k, candidates) + 1 }),
    ask("v1/search", { ...question, k: k + 1, candidates: most }),
  ]);
  const codes = others(byCode, id, listed - 1);
  const rankOf = new Map(codes.ids.map((one, place) => [one, place]));
  const found = others(answer, id, k);
  const truth = others(best, id, k).ids;
  const rows = found.ids.map((one, place) => ({
    id: one,
    distance: found.distances[place],
    payload: found.payload[place],
    apart: rankOf.has(one) ? codes.distances[rankOf.get(one)] : null,
    rank: rankOf.has(one) ? String(rankOf.get(one) + 1) : `> ${codes.ids.length}`,
    isTrue: truth.includes(one),
  }));
  return { rows, reference: { among: most, exact: most >= index.vectors } };
}

// Where a filter leaves too few, the last ids are null.
function others({ ids: [ids], distances: [distances], payload: [payload] = [[]] }, itself, n) {
  const kept = ids.map((_, place) => place).filter((place) => ids[place] !== itself && ids[place] !== null).slice(0, n);
  const [found, values, rows] = [ids, distances, payload].map((list) => kept.map((place) => list[place]));
  return { ids: found, distances: values, payload: rows };
}

function shownColumns(index) {
  return (index.columns ?? []).slice(0, MOST_COLUMNS);
}

function quoted(id, index) {
  return index.ids === "integer" ? String(id) : `“${id}”`;
}

function valueCell(value) {
  const text = value === null || value === undefined ? "–" : typeof value === "object" ? JSON.stringify(value) : String(value);
  if (text.length <= LONGEST_VALUE) return element("td", null, text);
  return element("td", { title: text }, `${text.slice(0, LONGEST_VALUE)}…`);
}

function drawFound({ rows, reference }, index) {
  const hits = rows.filter((row) => row.isTrue).length;
  const among = reference.exact ? "by exact search" : `of ${counted(reference.among, "candidate")}, the most that are allowed`;
  const marked = `Orange marks the ${hits} that are also among the ${rows.length} nearest ${among}.`;
  const what = counted(rows.length, "neighbour");
  byId("found-title").textContent = `The ${what} of vector ${quoted(state.id, index)} that the index finds`;
  const columns = shownColumns(index);
  const heads = ["", "", "id", MEASURES[index.metric], distanceName(state.distance), "rank by code", ...columns];
  const head = element("tr", null, ...heads.map((text) => element("th", { scope: "col" }, text)));
  const body = element("tbody", { class: "clickable" }, ...rows.map((row, place) => tableRow(row, place, columns)));
  const table = element("table", { class: "points" }, element("thead", null, head), body);
  makeRoving(table);
  fill(byId("found"), element("p", null, marked), element("div", { class: "scroll tall" }, table));
}

function tableRow({ id, distance, apart, rank, isTrue, payload }, place, columns) {
  const look = { type: "button", class: "row-button", "data-place": place, "data-id": id, tabindex: place ? -1 : 0 };
  const button = element("button", look, String(id));
  const cells = [String(place + 1), button, decimal(distance), apart === null ? "–" : decimal(apart), rank];
  const mark = element("td", { class: "mark" }, isTrue ? "◤" : "");
  const values = columns.map((name) => valueCell(payload?.[name]));
  const all = [mark, ...cells.map((cell) => element("td", null, cell)), ...values];
  return element("tr", { class: isTrue ? "true" : "" }, ...all);
}

async function drawDetail(index) {
  const body = byId("service-detail-body");
  const { id, item } = state;
  byId("service-detail").classList.toggle("open", item !== null);
  if (item === null) {
    const how = "Choose a neighbour in the table to compare its code with that of the query.";
    return fill(body, element("p", { class: "hint" }, how));
  }
  const close = element("button", { type: "button", class: "close", click: () => change({ item: null }) }, "Close");
  try {
    const asked = [["index", index.name], ["id", id], ["id", item]];
    const { bits, codes } = await ask(`explorer/codes?${new URLSearchParams(asked)}`);
    if (item !== state.item) return; // another one was chosen in the meantime
    const [query, point] = codes.map((digits) => bitsOf(bytesOf(digits), 0, bits));
    const hint = "Above the query, below the neighbour. Filled is 1, hollow 0, red where they differ.";
    const title = element("h3", null, `Vector ${quoted(item, index)}: ${differing({ query, point })} of ${bits} bits differ`);
    const strip = codeStrip({ query, point }, null);
    fill(body, close, element("div", null, title, strip, element("p", { class: "hint" }, hint)));
  } catch (error) {
    fill(body, close, element("p", null, error.message));
  }
}

function bytesOf(digits) {
  return Uint8Array.from({ length: digits.length / 2 }, (_, i) => parseInt(digits.slice(2 * i, 2 * i + 2), 16));
}
