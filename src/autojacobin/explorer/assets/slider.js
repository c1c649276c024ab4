// A slider over a list of values, which says in words where it stands.

import { element } from "./elements.js";

export function slider({ id, label, values, value, say, choose, hint }) {
  const output = element("output", { for: id });
  const input = element("input", { id, type: "range", min: 0, max: values.length - 1, step: 1 });
  const show = (current) => {
    const words = say(current);
    input.value = String(values.indexOf(current));
    input.setAttribute("aria-valuetext", words);
    output.textContent = words;
  };
  input.disabled = values.length < 2;
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
