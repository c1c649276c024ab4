// Making parts of the page. Styles are set through properties, which strict security policies allow.

const SVG = "http://www.w3.org/2000/svg";

export function element(tag, attributes, ...children) {
  return dress(document.createElement(tag), attributes, children);
}

export function svgElement(tag, attributes, ...children) {
  return dress(document.createElementNS(SVG, tag), attributes, children);
}

export function byId(id) {
  return document.getElementById(id);
}

function dress(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === "function") node.addEventListener(name, value);
    else if (name.startsWith("--")) node.style.setProperty(name, value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

export function fill(container, ...children) {
  container.replaceChildren(...children.filter((child) => child !== null && child !== undefined));
}
