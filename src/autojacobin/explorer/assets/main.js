// Starts the page: with the data beside it, or with the indexes of a service.

import { startControls } from "./controls.js";
import { startCost } from "./cost.js";
import { startCurves } from "./curves.js";
import { firstLook, startDetail } from "./detail.js";
import { byId } from "./elements.js";
import { counted, whole } from "./numbers.js";
import { startResults } from "./results.js";
import { startService } from "./service.js";
import { load } from "./source.js";
import { begin, state, watch } from "./state.js";
import { startTheme } from "./theme.js";
import { startToy } from "./toy3d.js";
import { startWall } from "./wall.js";

const FORMAT = 3;

async function startBundle() {
  const about = await load("about");
  if (about.format !== FORMAT) {
    throw new Error(`The data have format ${about.format}, this page reads ${FORMAT}; export it again.`);
  }
  const [{ name: method }] = about.methods;
  const bits = about.bits[Math.floor((about.bits.length - 1) / 2)];
  const candidates = about.stops.findLast((stop) => stop <= 100) ?? about.stops[0];
  const k = Math.min(20, about.k);
  const defaults = { query: 0, bits, candidates, k, distance: Object.keys(about.distances)[0], scope: "all", method, item: firstLook() };
  begin(defaults, {
    query: (n) => n in about.wall,
    bits: (n) => about.bits.includes(n),
    candidates: (n) => about.stops.includes(n),
    k: (n) => Number.isInteger(n) && n >= 1 && n <= about.k,
    distance: (name) => name in about.distances,
    scope: (name) => ["all", "one"].includes(name),
  });
  byId("bundle").hidden = false;
  describe(about);
  const current = { data: null };
  startWall(about);
  startControls(about);
  const drawings = [startResults(about, current), startCurves(about, current), startDetail(about, current)];
  const drawToy = startToy(about.toy);
  startCost(about);
  const show = async () => {
    const wanted = state.query;
    byId("results").setAttribute("aria-busy", "true");
    try {
      const data = await load(`query-${wanted}`);
      if (wanted !== state.query) return; // another one was chosen in the meantime
      current.data = data;
      byId("trouble").hidden = true;
      drawings.forEach((draw) => draw());
    } catch (error) {
      report(error);
    }
    byId("results").setAttribute("aria-busy", "false");
  };
  watch(["query"], show);
  await show();
  return drawToy;
}

function describe(about) {
  const { set, sizes } = about;
  const what = about.sprite ? "picture" : "vector";
  byId("subtitle").textContent = [
    `${set.name}: ${set.description.split(";")[0].replace(/\.$/, "")}`,
    `${counted(sizes.base, what)} to search among`,
    `${counted(sizes.dimension, "dimension")}`,
  ].join(" · ");
  byId("lead").textContent =
    `Every ${what} is kept as a short code of bits. For a query, a method takes the candidates whose codes are ` +
    "nearest, and only these are put in their true order. The better the codes, the more of the true neighbours " +
    "are among them.";
  const source = [set.source, set.licence].filter(Boolean).join("; ");
  byId("footer").textContent =
    `Trained on ${counted(sizes.train, "vector")} with seed 0, measured over ` +
    `${counted(sizes.queries, "query", "queries")}, ${whole(about.wall.length)} of which are on the wall. ` +
    `autojacobin ${about.library}.${source ? ` Data: ${source}.` : ""}`;
}

function report(error) {
  const trouble = byId("trouble");
  trouble.textContent = error.message;
  trouble.hidden = false;
}

let redraw = () => {};
startTheme(() => redraw());
const start = document.documentElement.dataset.mode === "service" ? startService : startBundle;
start()
  .then((draw) => {
    redraw = draw ?? redraw;
  })
  .catch(report);
