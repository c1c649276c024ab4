// Sliders and choices, and those that set the search: bits, candidates, k and the distance.

import { byId, element, fill } from "./elements.js";
import { percent, whole } from "./numbers.js";
import { change, state, watch } from "./state.js";

export function startControls(about) {
  const upTo = Array.from({ length: about.k }, (_, i) => i + 1);
  const parts = {
    bits: slider({
      id: "bits",
      label: "Length of a code",
      values: about.bits,
      value: state.bits,
      say: (n) => `${n} bits`,
      choose: (bits) => change({ bits }),
    }),
    candidates: slider({
      id: "candidates",
      label: "Candidates",
      values: about.stops,
      value: state.candidates,
      say: (n) => `${whole(n)} (${percent(n / about.sizes.base)})`,
      choose: (candidates) => change({ candidates }),
      hint: "Points with the nearest codes, put in their true order afterwards",
    }),
    k: slider({
      id: "k",
      label: "Neighbours wanted, k",
      values: upTo,
      value: state.k,
      say: (n) => String(n),
      choose: (k) => change({ k }),
    }),
    distance: distanceChoice(about.distances),
  };
  fill(byId("controls"), ...Object.values(parts).map((part) => part.node));
  for (const [key, part] of Object.entries(parts)) watch([key], () => part.show(state[key]));
}

// The distances are given with their summaries, by name.
export function distanceChoice(distances) {
  const options = Object.entries(distances).map(([name, summary]) => [name, `${summary} (${name})`]);
  return choice({
    name: "distance",
    legend: "Codes are compared",
    options: Object.fromEntries(options),
    value: state.distance,
    choose: (distance) => change({ distance }),
  });
}

// A slider over a list of values; it says in words which one is chosen. A single value is only said.
export function slider({ id, label, values, value, say, choose, hint }) {
  if (values.length < 2) {
    const only = element("output", { id }, say(values[0]));
    const name = element("span", { class: "label" }, label);
    const node = element("div", { class: "slider" }, element("div", { class: "slider-head" }, name, only));
    return { node, show: () => {} };
  }
  const output = element("output", { for: id });
  const input = element("input", { id, type: "range", min: 0, max: values.length - 1, step: 1 });
  const show = (current) => {
    const words = say(current);
    input.value = String(values.indexOf(current));
    input.setAttribute("aria-valuetext", words);
    output.textContent = words;
  };
  show(value);
  input.addEventListener("input", () => {
    const chosen = values[Number(input.value)];
    show(chosen);
    choose(chosen);
  });
  const head = element("div", { class: "slider-head" }, element("label", { for: id }, label), output);
  const node = element("div", { class: "slider" }, head, input);
  if (hint) {
    node.append(element("p", { class: "hint", id: `${id}-hint` }, hint));
    input.setAttribute("aria-describedby", `${id}-hint`);
  }
  return { node, show };
}

export function choice({ name, legend, options, value, choose }) {
  const inputs = Object.entries(options).map(([key, label]) => {
    const id = `${name}-${key}`;
    const input = element("input", { type: "radio", name, value: key, id, change: () => choose(key) });
    input.checked = key === value;
    return { input, node: element("label", { for: input.id }, input, element("span", null, label)) };
  });
  const labels = inputs.map((one) => one.node);
  const node = element("fieldset", { class: "choice" }, element("legend", null, legend), ...labels);
  return {
    node,
    show: (key) => {
      for (const { input } of inputs) input.checked = input.value === key;
    },
  };
}
