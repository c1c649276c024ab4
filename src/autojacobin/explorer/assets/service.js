// An index behind a service: what it finds for a vector that is in it.

import { byId, element, fill } from "./elements.js";
import { ask, neighbours } from "./search.js";
import { drawDetail } from "./service_detail.js";
import { CANDIDATES, KS, drawForm } from "./service_form.js";
import { drawFound } from "./service_found.js";
import { begin, change, state, watch } from "./state.js";

const NONE =
  "No index here can be asked for neighbours of its own vectors: it takes two of them, in an index that keeps them.";

export async function startService() {
  const { indexes, limits } = await ask("v1/indexes");
  byId("title").textContent = "What does the index find?";
  byId("service").hidden = false;
  const usable = indexes.filter((one) => one.vectors > 1 && one.vectors_kept);
  if (!usable.length) return fill(byId("ask"), element("p", null, NONE));
  const defaults = { index: usable[0].name, id: -1, k: 10, candidates: 100, distance: "hamming", item: null };
  begin(defaults, {
    index: (name) => usable.some((one) => one.name === name),
    id: (id) => Number.isSafeInteger(id) && id >= 0,
    k: (n) => KS.includes(n),
    candidates: (n) => CANDIDATES.includes(n),
    distance: (name) => ["hamming", "asymmetric"].includes(name),
  });
  const chosen = () => usable.find((one) => one.name === state.index);
  const page = { number: 0 };
  watch(["index"], () => drawForm(usable, chosen(), limits));
  watch(["index", "id", "k", "candidates", "distance"], () => search(page, chosen(), limits));
  watch(["item"], () => drawDetail(chosen()));
  for (const kind of ["click", "focusin"]) byId("found").addEventListener(kind, look);
  document.addEventListener("keydown", (event) => event.key === "Escape" && change({ item: null }));
  await drawForm(usable, chosen(), limits);
  drawDetail(chosen());
  if (state.id >= 0) await search(page, chosen(), limits);
}

async function search(page, index, limits) {
  page.number += 1;
  const { number } = page;
  const found = byId("found");
  if (state.id < 0) return fill(found);
  found.setAttribute("aria-busy", "true");
  try {
    const answer = await neighbours(index, limits, state);
    if (number !== page.number) return; // a later question is under way
    byId("trouble").hidden = true;
    drawFound(answer);
  } catch (error) {
    if (number !== page.number) return;
    byId("trouble").textContent = error.message;
    byId("trouble").hidden = false;
    fill(found);
  }
  found.setAttribute("aria-busy", "false");
}

function look(event) {
  const chosen = event.target.closest("[data-id]");
  if (chosen) change({ item: Number(chosen.dataset.id) });
}
