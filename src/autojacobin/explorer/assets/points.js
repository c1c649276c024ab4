// Points as small pictures from a sprite or as rows of a table, and the keys that move between them.

import { element } from "./elements.js";
import { decimal, whole } from "./numbers.js";

const STEPS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };

export function tile({ sprite, number, place, label, className, tabIndex, text }) {
  const button = element("button", {
    type: "button",
    class: `tile ${className ?? ""}`,
    "data-place": place,
    "aria-label": label,
    title: label,
    tabindex: tabIndex,
  });
  if (sprite) setPicture(button, sprite, number);
  else button.append(text);
  return button;
}

// What all pictures of a sprite share is set once, on the node around them: a page with hundreds of them is faster so.
export function setSheet(node, sprite, url) {
  node.classList.toggle("coarse", sprite.width < 16);
  node.style.setProperty("--sheet", `url("${new URL(url, document.baseURI)}")`);
  node.style.setProperty("--sheet-size", `${100 * sprite.columns}% ${100 * sprite.rows}%`);
  node.style.setProperty("--sheet-shape", `${sprite.width} / ${sprite.height}`);
}

export function setPicture(node, sprite, number) {
  const across = number % sprite.columns;
  const down = Math.floor(number / sprite.columns);
  node.classList.add("picture");
  node.style.backgroundPosition = `${share(across, sprite.columns)}% ${share(down, sprite.rows)}%`;
}

function share(number, of) {
  return of > 1 ? (100 * number) / (of - 1) : 0;
}

// A group of pictures that stays on the page while what it shows changes. A slider changes a group for every method, and
// new buttons for all of them would take longer than a frame.
export function tileGroup(name) {
  const node = element("div", { class: "tiles", role: "group", "aria-label": name });
  makeRoving(node);
  let sheet = null;
  const show = (sprite, url, items) => {
    const other = sheet !== url;
    if (other) setSheet(node, sprite, url);
    sheet = url;
    while (node.children.length > items.length) node.lastElementChild.remove();
    items.forEach(({ place, label, isTrue }, i) => {
      if (i === node.children.length) node.append(tile({ sprite, number: place, place, label, tabIndex: -1 }));
      const one = node.children[i];
      if (other || one.dataset.place !== String(place)) {
        one.dataset.place = place;
        setPicture(one, sprite, place);
      }
      if (one.title !== label) {
        one.title = label;
        one.setAttribute("aria-label", label);
      }
      one.classList.toggle("true", isTrue);
    });
    if (other || !node.querySelector('[tabindex="0"]')) makeStop(node, node.firstElementChild);
  };
  return { node, show };
}

// Each point has its place, its label, its numbers, and whether it is a true neighbour.
export function pointsTable(points, heads) {
  const body = element("tbody");
  points.forEach(({ place, id, label, isTrue, numbers, rank }, i) => {
    const button = element(
      "button",
      { type: "button", class: "row-button", "data-place": place, tabindex: i === 0 ? 0 : -1, "aria-label": label },
      String(id),
    );
    const cells = [button, ...numbers.map(decimal), ...(rank === undefined ? [] : [whole(rank)])];
    const row = element("tr", { class: isTrue ? "true" : "" }, element("td", { class: "mark" }, isTrue ? "◤" : ""));
    row.append(...cells.map((cell) => element("td", null, cell)));
    body.append(row);
  });
  const head = element("tr", null, ...["", ...heads].map((text) => element("th", { scope: "col" }, text)));
  const node = element("table", { class: "points" }, element("thead", null, head), body);
  makeRoving(node);
  return element("div", { class: "scroll" }, node);
}

// Makes a group of many buttons one stop of the Tab key; the arrow keys move within it.
export function makeRoving(container) {
  container.addEventListener("keydown", (event) => {
    const here = event.target.closest("[data-place]");
    const all = [...container.querySelectorAll("[data-place]")];
    if (!here || event.ctrlKey || event.metaKey || event.altKey) return;
    const next = target(event.key, here, all);
    if (!next) return;
    event.preventDefault();
    next.focus();
  });
  container.addEventListener("focusin", (event) => {
    const here = event.target.closest("[data-place]");
    if (here) makeStop(container, here);
  });
}

export function makeStop(container, stop) {
  for (const other of container.querySelectorAll('[data-place][tabindex="0"]')) other.tabIndex = -1;
  if (stop) stop.tabIndex = 0;
}

function target(key, here, all) {
  if (key === "Home") return all[0];
  if (key === "End") return all[all.length - 1];
  if (!(key in STEPS)) return null;
  const [across, down] = STEPS[key];
  if (across) return all[all.indexOf(here) + across];
  const from = here.getBoundingClientRect();
  let best = null;
  let least = Infinity;
  for (const other of all) {
    const to = other.getBoundingClientRect();
    const rows = (to.top - from.top) * down;
    if (rows < from.height / 2) continue;
    const distance = rows * 1000 + Math.abs(to.left - from.left);
    if (distance < least) [best, least] = [other, distance];
  }
  return best;
}
