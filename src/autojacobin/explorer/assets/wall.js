// The queries to choose from.

import { byId, fill } from "./elements.js";
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
    if (chosen) change({ query: Number(chosen.dataset.place), item: null });
  });
  makeRoving(wall);
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
