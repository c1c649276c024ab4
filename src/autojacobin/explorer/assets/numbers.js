// Numbers as people read them.

// made once, because each call of toLocaleString would make a new one, a hundred times per step of a slider
const WHOLE = new Intl.NumberFormat("en");
const DECIMAL = new Intl.NumberFormat("en", { maximumFractionDigits: 4 });

export function whole(n) {
  return WHOLE.format(n);
}

export function decimal(x) {
  if (x !== 0 && Math.abs(x) < 0.001) return x.toExponential(1);
  return DECIMAL.format(Number(x.toPrecision(4)));
}

// The name of a distance as the head of a column.
export function distanceName(name) {
  return `${name[0].toUpperCase()}${name.slice(1)} distance`;
}

export function percent(share) {
  const digits = share > 0 && share < 0.1 ? 1 : 0;
  return `${(100 * share).toFixed(digits)} %`;
}

export function counted(n, one, many) {
  return `${whole(n)} ${n === 1 ? one : many ?? `${one}s`}`;
}
