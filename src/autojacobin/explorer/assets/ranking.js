// What a search would answer, from ranks that were computed beforehand. Points are named by their place in the order
// of true distance, so place 0 is the nearest, and the true neighbours are the places below k.

export function retrieved(ranks, candidates, k) {
  const shown = [];
  for (let place = 0; place < ranks.length && shown.length < k; place += 1) {
    if (ranks[place] > 0 && ranks[place] <= candidates) shown.push(place);
  }
  return shown;
}

export function countTrue(ranks, candidates, k) {
  return retrieved(ranks.slice(0, k), candidates, k).length;
}

// Share of the first k true neighbours among the candidates, over all queries: found[j][i] says for how many of them
// the j-th was within the i-th stop.
export function meanRecall(found, asked, k) {
  return found[0].map((_, stop) => {
    let sum = 0;
    for (let j = 0; j < k; j += 1) sum += found[j][stop];
    return sum / (asked * k);
  });
}

const unpacked = new WeakMap();

function bytesOf(entry) {
  if (!unpacked.has(entry)) {
    const decode = (text) => Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
    unpacked.set(entry, { query: decode(entry.query), codes: decode(entry.codes) });
  }
  return unpacked.get(entry);
}

export function bitsOf(bytes, start, n) {
  return Array.from({ length: n }, (_, j) => (bytes[start + (j >> 3)] >> (j & 7)) & 1);
}

export function codesOf(entry, place, n) {
  const { query, codes } = bytesOf(entry);
  return { query: bitsOf(query, 0, n), point: bitsOf(codes, place * Math.ceil(n / 8), n) };
}

const measured = new WeakMap();

// What codeDistance gives for a point, remembered: every step of a slider asks for hundreds of them.
export function distanceOf(entry, place, n, distance) {
  if (!measured.has(entry)) measured.set(entry, { hamming: [], asymmetric: [] });
  const known = measured.get(entry)[distance];
  known[place] ??= codeDistance(codesOf(entry, place, n), distance === "asymmetric" ? entry.weights : null);
  return known[place];
}

export function codeDistance({ query, point }, weights) {
  return query.reduce((sum, bit, j) => sum + (bit === point[j] ? 0 : weights ? weights[j] : 1), 0);
}
