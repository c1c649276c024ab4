// The queries to choose from.

import { firstLook } from "./detail.js";
import { byId, fill } from "./elements.js";
import { counted } from "./numbers.js";
import { makeRoving, makeStop, setSheet, tile } from "./points.js";
import { change, state, watch } from "./state.js";

export function startWall(about) {
  const wall = byId("wall");
  if (about.sprite) setSheet(wall, about.sprite, `data/wall.${about.sprite.ending}`);
  const tiles = about.wall.map((row, number) =>
    tile({
      sprite: about.sprite,
      number,
      place: number,
      label: `Query ${row}`,
      tabIndex: -1,
      text: String(row),
    }),
  );
  fill(wall, ...tiles);
  wall.classList.toggle("numbers", !about.sprite);
  wall.addEventListener("click", (event) => {
    const chosen = event.target.closest("[data-place]");
    if (chosen) change({ query: Number(chosen.dataset.place), item: firstLook() });
  });
  makeRoving(wall);
  byId("wall-count").textContent = counted(tiles.length, "query", "queries");
  // fades at the end where there is more to scroll to
  const fade = () => {
    const below = wall.scrollHeight - wall.clientHeight - wall.scrollTop;
    const aside = wall.scrollWidth - wall.clientWidth - wall.scrollLeft;
    wall.classList.toggle("more-below", below > 4);
    wall.classList.toggle("more-aside", aside > 4);
  };
  wall.addEventListener("scroll", fade, { passive: true });
  new ResizeObserver(fade).observe(wall);
  const show = () => {
    tiles.forEach((one, number) => one.setAttribute("aria-pressed", String(number === state.query)));
    makeStop(wall, tiles[state.query]);
  };
  watch(["query"], show);
  show();
  // a query from the address may be outside of what the wall shows
  const there = tiles[state.query];
  wall.scrollTo(
    there.offsetLeft - wall.offsetLeft - wall.clientWidth / 2,
    there.offsetTop - wall.offsetTop - wall.clientHeight / 2,
  );
}
