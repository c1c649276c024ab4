// Pictures from a sprite as small buttons, and numbers where there are no pictures.

import { element } from "./elements.js";

export function tile({ sprite, url, number, place, label, className, tabIndex, text }) {
  const button = element("button", {
    type: "button",
    class: `tile ${className ?? ""}`,
    "data-place": place,
    "aria-label": label,
    title: label,
    tabindex: tabIndex,
  });
  if (sprite) showPicture(button, sprite, url, number);
  else button.append(text);
  return button;
}

export function showPicture(node, sprite, url, number) {
  const across = number % sprite.columns;
  const down = Math.floor(number / sprite.columns);
  node.classList.add("picture");
  node.classList.toggle("coarse", sprite.width < 16);
  node.style.aspectRatio = `${sprite.width} / ${sprite.height}`;
  node.style.backgroundImage = `url("${url}")`;
  node.style.backgroundSize = `${100 * sprite.columns}% ${100 * sprite.rows}%`;
  node.style.backgroundPosition = `${share(across, sprite.columns)}% ${share(down, sprite.rows)}%`;
}

function share(number, of) {
  return of > 1 ? (100 * number) / (of - 1) : 0;
}
