// Questions to the service. A vector that is in the index finds itself first; one more is asked for, and it is left out.

export async function ask(path, body) {
  const headers = { "Content-Type": "application/json" };
  const answer = await fetch(path, body && { method: "POST", headers, body: JSON.stringify(body) });
  const content = await answer.json().catch(() => ({}));
  if (!answer.ok) throw new Error(content.detail ?? `The service answered ${answer.status}; ask again.`);
  return content;
}

// The answer as the index gives it, the place of each neighbour in the order of the codes, and, to judge it by, the
// nearest of as many candidates as the service allows: of all vectors, if the index is not larger than that.
export async function neighbours(index, limits, { id, k, candidates, distance }) {
  const question = { index: index.name, id, distance };
  const most = Math.min(limits.candidates, index.vectors);
  const listed = Math.min(limits.k, index.vectors, candidates + 1);
  const [byCode, answer, best] = await Promise.all([
    ask("v1/search", { ...question, k: listed, rerank: false }),
    ask("v1/search", { ...question, k: k + 1, candidates: Math.max(k, candidates) + 1 }),
    ask("v1/search", { ...question, distance: "asymmetric", k: k + 1, candidates: most }),
  ]);
  const codes = others(byCode, id, listed - 1);
  const rankOf = new Map(codes.ids.map((one, place) => [one, place]));
  const found = others(answer, id, k);
  const truth = others(best, id, k).ids;
  const rows = found.ids.map((one, place) => ({
    id: one,
    distance: found.distances[place],
    apart: rankOf.has(one) ? codes.distances[rankOf.get(one)] : null,
    rank: rankOf.has(one) ? String(rankOf.get(one) + 1) : `> ${codes.ids.length}`,
    isTrue: truth.includes(one),
  }));
  return { rows, reference: { among: most, exact: most >= index.vectors } };
}

function others({ ids: [ids], distances: [distances] }, itself, n) {
  const kept = ids.map((_, place) => place).filter((place) => ids[place] !== itself).slice(0, n);
  return { ids: kept.map((place) => ids[place]), distances: kept.map((place) => distances[place]) };
}
