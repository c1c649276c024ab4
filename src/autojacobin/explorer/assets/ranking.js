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
