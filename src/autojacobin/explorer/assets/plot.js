// Lines over axes, in SVG. Sizes are in pixels of the page, so that letters stay readable at any width.

import { svgElement } from "./elements.js";

const MARGIN = { left: 46, right: 24, top: 10, bottom: 40 };
const LABEL = 18; // room for the label of a vertical axis

export function plot({ width, height, x, y, lines, label }) {
  const left = MARGIN.left + (y.label ? LABEL : 0);
  const viewBox = `0 0 ${width} ${height}`;
  const svg = svgElement("svg", { class: "plot", width, height, viewBox, role: "img", "aria-label": label });
  const across = scale(x, left, width - MARGIN.right);
  const up = scale(y, height - MARGIN.bottom, MARGIN.top);
  const bottom = height - MARGIN.bottom;
  for (const value of y.ticks) {
    svg.append(
      svgElement("line", { class: "grid", x1: left, x2: width - MARGIN.right, y1: up(value), y2: up(value) }),
      svgElement("text", { class: "tick end", x: left - 6, y: up(value) + 4 }, y.say(value)),
    );
  }
  for (const value of x.ticks) {
    svg.append(
      svgElement("line", { class: "grid", x1: across(value), x2: across(value), y1: MARGIN.top, y2: bottom }),
      svgElement("text", { class: "tick middle", x: across(value), y: bottom + 16 }, x.say(value)),
    );
  }
  svg.append(
    svgElement("text", { class: "axis middle", x: (left + width - MARGIN.right) / 2, y: height - 6 }, x.label),
    svgElement("line", { class: "frame", x1: left, x2: width - MARGIN.right, y1: bottom, y2: bottom }),
  );
  if (y.label) {
    const middle = (MARGIN.top + bottom) / 2;
    const turned = { class: "axis middle", x: 12, y: middle, transform: `rotate(-90 12 ${middle})` };
    svg.append(svgElement("text", turned, y.label));
  }
  for (const line of lines) svg.append(drawn(line, across, up));
  return { svg, across, up, top: MARGIN.top, bottom };
}

function drawn(line, across, up) {
  const steps = line.points.map(([a, b], i) => `${i ? "L" : "M"}${across(a).toFixed(1)} ${up(b).toFixed(1)}`);
  return stroke(steps.join(""), line);
}

// A piece of a line, for legends.
export function sample(look) {
  return svgElement("svg", { width: 34, height: 12, "aria-hidden": "true" }, stroke("M0 6H34", look));
}

function stroke(path, { colour, dashes, width = 2 }) {
  return svgElement("path", {
    class: "line",
    d: path,
    "--method": colour === "#000000" ? "var(--ink)" : colour, // black would vanish on dark paper
    "stroke-dasharray": dashes.length ? dashes.map((part) => part * width).join(" ") : null,
    "stroke-width": width,
  });
}

function scale({ from, to, log }, start, end) {
  const f = log ? Math.log : (value) => value;
  const low = f(from);
  const high = f(to) > low ? f(to) : low + 1;
  return (value) => start + ((f(value) - low) / (high - low)) * (end - start);
}

export function roundTicks(from, to, wanted) {
  const rough = (to - from) / wanted || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((one) => one >= rough);
  const ticks = [];
  for (let i = Math.ceil(from / step); i * step <= to + step * 1e-9; i += 1) ticks.push(i * step);
  return ticks;
}

export function powersOfTen(from, to) {
  const ticks = [];
  const first = Math.ceil(Math.log10(from) - 1e-9);
  for (let power = first; 10 ** power <= to * (1 + 1e-9); power += 1) ticks.push(10 ** power);
  return ticks;
}
