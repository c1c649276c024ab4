// Recall over the number of candidates, for all queries or for the chosen one.

import { choice } from "./controls.js";
import { byId, element, fill, svgElement } from "./elements.js";
import { counted, percent, whole } from "./numbers.js";
import { plot, powersOfTen, sample } from "./plot.js";
import { countTrue, meanRecall } from "./ranking.js";
import { change, state, watch } from "./state.js";

const HEIGHT = 320;

export function startCurves(about, current) {
  const root = byId("curves");
  const picture = element("div", { class: "drawing" });
  const legend = element("div");
  const scope = choice({
    name: "scope",
    legend: "Measured over",
    options: { all: `all ${whole(about.sizes.queries)} queries`, one: "the chosen query" },
    value: state.scope,
    choose: (value) => change({ scope: value }),
  });
  fill(root, scope.node, element("div", { class: "plot-and-legend" }, picture, legend));
  let width = 0; // from the observer; reading it here would make the browser lay out the page at every step of a slider
  const draw = () => current.data && width && drawCurves(about, current.data, picture, legend, width);
  watch(["bits", "candidates", "k", "distance", "scope"], draw);
  new ResizeObserver(([seen]) => {
    width = Math.round(seen.contentRect.width);
    draw();
  }).observe(picture);
  return draw;
}

function recalls(about, data, method) {
  const { bits, distance, k, scope } = state;
  if (scope === "all") return meanRecall(about.found[method.name][bits][distance], about.sizes.queries, k);
  const ranks = data.methods[method.name][bits].ranks[distance];
  return about.stops.map((stop) => countTrue(ranks, stop, k) / k);
}

function drawCurves(about, data, picture, legend, width) {
  const { stops } = about;
  const last = stops[stops.length - 1];
  const curves = about.methods.map((method) => ({ method, values: recalls(about, data, method) }));
  const { svg, across, top, bottom } = plot({
    width,
    height: HEIGHT,
    label: `Recall over the number of candidates, k = ${state.k}, ${state.bits} bits; the numbers are in the table`,
    x: { from: stops[0], to: last, log: true, ticks: powersOfTen(1, last), say: whole, label: "candidates" },
    y: {
      from: 0,
      to: 1,
      ticks: [0, 0.2, 0.4, 0.6, 0.8, 1],
      say: (value) => value.toFixed(1),
      label: `share of the ${state.k} true neighbours (k = ${state.k})`,
    },
    lines: curves.map(({ method, values }) => ({
      points: values.map((value, i) => [stops[i], value]),
      ...look(method),
    })),
  });
  const here = across(state.candidates);
  svg.prepend(svgElement("line", { class: "here", x1: here, x2: here, y1: top, y2: bottom }));
  svg.addEventListener("click", (event) => {
    const x = event.clientX - svg.getBoundingClientRect().left;
    const away = (stop) => Math.abs(across(stop) - x);
    change({ candidates: stops.reduce((best, stop) => (away(stop) < away(best) ? stop : best)) });
  });
  fill(picture, svg);
  fill(legend, numbers(curves, stops.indexOf(state.candidates)));
}

function numbers(curves, stop) {
  const rows = curves.map(({ method, values }) =>
    element(
      "tr",
      null,
      element("td", null, sample(look(method))),
      element("th", { scope: "row" }, method.label),
      element("td", null, percent(values[stop])),
    ),
  );
  const head = element("tr", null, element("td", null), element("th", { scope: "col" }, "method"),
    element("th", { scope: "col" }, `recall, k = ${state.k}, ${counted(state.candidates, "candidate")}`));
  return element("table", { class: "numbers-table" }, element("thead", null, head), element("tbody", null, ...rows));
}

function look(method) {
  return { colour: method.colour, dashes: method.dashes, width: method.name.startsWith("AutoJacoBin") ? 2.6 : 1.8 };
}
