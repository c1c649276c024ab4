// A group of many buttons that is one stop of the Tab key; arrows move within it, as the eye does.

const STEPS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };

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
