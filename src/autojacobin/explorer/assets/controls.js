// Bits, candidates, k and the distance.

import { byId, fill } from "./elements.js";
import { percent, whole } from "./numbers.js";
import { choice, slider } from "./slider.js";
import { change, state, watch } from "./state.js";

export function startControls(about) {
  const upTo = Array.from({ length: about.k }, (_, i) => i + 1);
  const parts = {
    bits: slider({
      id: "bits",
      label: "Length of a code",
      values: about.bits,
      value: state.bits,
      say: (n) => `${n} bits`,
      choose: (bits) => change({ bits }),
    }),
    candidates: slider({
      id: "candidates",
      label: "Candidates",
      values: about.stops,
      value: state.candidates,
      say: (n) => `${whole(n)} (${percent(n / about.sizes.base)})`,
      choose: (candidates) => change({ candidates }),
      hint: "Points with the nearest codes, put in their true order afterwards",
    }),
    k: slider({
      id: "k",
      label: "Neighbours wanted, k",
      values: upTo,
      value: state.k,
      say: (n) => String(n),
      choose: (k) => change({ k }),
    }),
    distance: choice({
      name: "distance",
      legend: "Codes are compared",
      options: { hamming: "bit by bit (Hamming)", asymmetric: "with the query's real values (asymmetric)" },
      value: state.distance,
      choose: (distance) => change({ distance }),
    }),
  };
  fill(byId("controls"), ...Object.values(parts).map((part) => part.node));
  for (const [key, part] of Object.entries(parts)) watch([key], () => part.show(state[key]));
}
