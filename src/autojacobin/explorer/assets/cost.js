// The cost of the training step by step, and the terms that it is made of.

import { byId, element, fill } from "./elements.js";
import { decimal } from "./numbers.js";
import { plot, powersOfTen, roundTicks, sample } from "./plot.js";
import { state, watch } from "./state.js";

const HEIGHT = 240;
const TERMS = {
  cost: { label: "cost", colour: "#000000", dashes: [] },
  reconstruction: { label: "reconstruction", colour: "#0072B2", dashes: [] },
  jacobian: { label: "Jacobian: follow the tangent spaces", colour: "#D55E00", dashes: [5, 2] },
  binary: { label: "binary: spread the codes", colour: "#009E73", dashes: [5, 1.5, 1.2, 1.5] },
  contraction: { label: "contraction", colour: "#882255", dashes: [1.2, 1.5] },
};

export function startCost(about) {
  if (!about.training.length) return;
  byId("cost-card").hidden = false;
  const names = [...new Set(about.training.map((one) => one.method))];
  const select = element("select", { id: "cost-method", change: () => draw() });
  for (const name of names) {
    const label = about.methods.find((one) => one.name === name).label;
    select.append(element("option", { value: name }, label));
  }
  if (names.includes("AutoJacoBin")) select.value = "AutoJacoBin";
  const whole = element("div", { class: "drawing" });
  const parts = element("div", { class: "drawing" });
  const titled = (title, node) => element("figure", null, element("figcaption", null, title), node);
  const legend = element("ul", { class: "legend-list" });
  const caption = element("p", { class: "hint" });
  const label = element("label", { for: "cost-method" }, "Method ");
  const panels = [titled("cost of the batch after each step", whole), titled("the terms that add up to it", parts)];
  fill(
    byId("cost"),
    names.length > 1 ? element("p", null, label, select) : null,
    element("div", { class: "two" }, ...panels),
    legend,
    caption,
  );
  const draw = () => drawCost(about, select.value, { whole, parts, legend, caption });
  watch(["bits"], draw);
  new ResizeObserver(draw).observe(whole);
}

function drawCost(about, name, { whole, parts, legend, caption }) {
  const run = about.training.find((one) => one.method === name && one.bits === state.bits);
  if (!run || !whole.clientWidth) return;
  const { history } = run;
  const terms = Object.keys(TERMS).filter((term) => term !== "cost" && history[term]);
  const positive = terms.every((term) => history[term].every((value) => value > 0));
  fill(whole, panel(whole.clientWidth, history, ["cost"], false, "Cost of the batch after each step"));
  fill(parts, panel(parts.clientWidth, history, terms, positive, "Its terms after each step"));
  fill(legend, ...["cost", ...terms].map(entry));
  const label = about.methods.find((one) => one.name === name).label;
  const steps = history.cost.length;
  const [first, last] = [history.cost[0], history.cost[steps - 1]].map(decimal);
  caption.textContent =
    `${label}, ${state.bits} bits: ${steps} steps took the cost from ${first} to ${last}.` +
    (positive ? " The terms are on a logarithmic scale." : "");
}

function panel(width, history, terms, log, label) {
  const values = terms.flatMap((term) => history[term]);
  const steps = history.cost.length;
  let [from, to] = [Math.min(...values), Math.max(...values)];
  if (log) [from, to] = [10 ** Math.floor(Math.log10(from)), 10 ** Math.ceil(Math.log10(to))];
  else [from, to] = [from - 0.05 * (to - from), to + 0.05 * (to - from) || 1];
  const ticks = roundTicks(1, steps, Math.max(2, width / 90)).filter(Number.isInteger);
  return plot({
    width,
    height: HEIGHT,
    label,
    x: { from: 1, to: steps, ticks, say: String, label: "step" },
    y: { from, to, log, ticks: log ? powersOfTen(from, to) : roundTicks(from, to, 5), say: short },
    lines: terms.map((term) => ({ points: history[term].map((value, i) => [i + 1, value]), ...TERMS[term] })),
  }).svg;
}

function short(value) {
  const size = Math.abs(value);
  if (size >= 1e6) return `${Number((value / 1e6).toPrecision(3))}M`;
  if (size >= 1e4) return `${Number((value / 1e3).toPrecision(3))}k`;
  if (size !== 0 && size < 1e-2) return value.toExponential(0);
  return String(Number(value.toPrecision(3)));
}

function entry(term) {
  return element("li", null, sample(TERMS[term]), TERMS[term].label);
}
