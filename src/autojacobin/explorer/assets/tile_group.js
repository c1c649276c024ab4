// A group of pictures that stays on the page while what it shows changes: a slider has a group for every method, and to
// make all their buttons anew takes longer than a frame.

import { element } from "./elements.js";
import { makeRoving, makeStop } from "./roving.js";
import { setPicture, setSheet, tile } from "./tiles.js";

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
