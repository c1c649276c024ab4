// Pictures from a sprite as small buttons, and numbers where there are no pictures.

import { element } from "./elements.js";

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

// What all pictures of a sprite share; said once on something around them, a page of hundreds is styled sooner.
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
