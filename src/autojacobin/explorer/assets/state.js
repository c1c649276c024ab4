// What is chosen. The address of the page has it too, so that a view can be kept and shared.

export const state = {};

// Whether there is room for the detail beside the rest of the page.
export const beside = matchMedia("(min-width: 1200px)");

const watchers = [];
const REST = 200; // browsers refuse an address that changes with every step of a slider
let writing = null;

export function begin(defaults, limits) {
  Object.assign(state, defaults);
  const given = new URLSearchParams(location.hash.slice(1));
  for (const [key, allows] of Object.entries(limits)) {
    if (!given.has(key)) continue;
    const value = typeof defaults[key] === "number" ? Number(given.get(key)) : given.get(key);
    if (allows(value)) state[key] = value;
  }
  watchers.push({ keys: Object.keys(limits), notify: () => writeSoon(Object.keys(limits)) });
}

export function watch(keys, notify) {
  watchers.push({ keys, notify });
}

export function change(changes) {
  const changed = Object.keys(changes).filter((key) => state[key] !== changes[key]);
  Object.assign(state, changes);
  for (const { keys, notify } of watchers) {
    if (keys.some((key) => changed.includes(key))) notify();
  }
}

function writeSoon(keys) {
  clearTimeout(writing);
  writing = setTimeout(() => writeAddress(keys), REST);
}

function writeAddress(keys) {
  const chosen = new URLSearchParams(keys.map((key) => [key, state[key]]));
  try {
    history.replaceState(null, "", `#${chosen}`);
  } catch {
    // some browsers keep the address of a file from a disk as it is; nothing else depends on it
  }
}
