// The paper's example: a plane in three dimensions, and how the network bends it onto a cube; both turn together.

import { byId, element, fill } from "./elements.js";
import { counted } from "./numbers.js";

const TURN = 0.01;
const KEYS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
const EDGES = [];
for (let corner = 0; corner < 8; corner += 1) {
  for (const axis of [1, 2, 4]) if (!(corner & axis)) EDGES.push([corner, corner | axis]);
}

export function startToy(toy) {
  if (!toy) return () => {};
  byId("toy-card").hidden = false;
  const view = { turn: 0.62, tilt: 0.42 };
  const panels = [
    { points: toy.points.map((p) => p.map((x) => 2 * x - 1)), title: "the points, in a plane" },
    { points: toy.hidden, title: "what the network makes of them, in a cube" },
  ];
  const draw = () => panels.forEach((panel) => drawPanel(panel, toy.codes, view));
  for (const panel of panels) {
    panel.canvas = element("canvas", {
      tabindex: 0,
      role: "img",
      "aria-label": `${panel.title}; turn with the arrow keys or by dragging`,
    });
    makeTurnable(panel.canvas, view, draw);
  }
  const used = [...new Set(toy.codes)].sort((a, b) => a - b);
  const intro =
    "A thousand points of a plane are hashed to three bits. Training pushes what the network makes of them towards " +
    `the corners of a cube, and the corner is the code. Here ${used.length} of the 8 codes are used; a plane cut ` +
    "by three lines has seven parts. Drag to turn, or use the arrow keys.";
  const figures = panels.map(({ canvas, title }) =>
    element("figure", null, canvas, element("figcaption", null, title)),
  );
  const entries = used.map((code) => entry(code, toy.codes.filter((one) => one === code).length));
  fill(
    byId("toy"),
    element("p", null, intro),
    element("div", { class: "two" }, ...figures),
    element("ul", { class: "legend-list" }, ...entries),
  );
  for (const { canvas } of panels) new ResizeObserver(draw).observe(canvas);
  return draw;
}

function entry(code, n) {
  const dot = element("span", { class: "dot", "aria-hidden": "true", "--dot": `var(--code-${code})` });
  const signs = [4, 2, 1].map((bit) => (code & bit ? "+" : "−")).join(" ");
  return element("li", null, dot, `${signs}  (${counted(n, "point")})`);
}

function makeTurnable(canvas, view, draw) {
  let last = null;
  const turn = (across, down) => {
    view.turn += across * TURN;
    view.tilt = Math.max(-1.5, Math.min(1.5, view.tilt + down * TURN));
    draw();
  };
  canvas.addEventListener("pointerdown", (event) => {
    last = [event.clientX, event.clientY];
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointermove", (event) => {
    if (!last) return;
    turn(event.clientX - last[0], event.clientY - last[1]);
    last = [event.clientX, event.clientY];
  });
  for (const end of ["pointerup", "pointercancel"]) canvas.addEventListener(end, () => (last = null));
  canvas.addEventListener("keydown", (event) => {
    if (!(event.key in KEYS)) return;
    event.preventDefault();
    turn(...KEYS[event.key].map((step) => step * 10));
  });
}

function drawPanel({ canvas, points }, codes, { turn, tilt }) {
  const side = canvas.clientWidth;
  if (!side) return;
  const sharp = devicePixelRatio || 1;
  canvas.width = Math.round(side * sharp);
  canvas.height = canvas.width;
  const pen = canvas.getContext("2d");
  pen.scale(sharp, sharp);
  const styles = getComputedStyle(document.documentElement);
  const named = (name) => styles.getPropertyValue(name).trim();
  const colours = Array.from({ length: 8 }, (_, code) => named(`--code-${code}`));
  const project = turned(turn, tilt, side);
  pen.strokeStyle = named("--edge");
  for (const [a, b] of EDGES) {
    const [from, to] = [a, b].map((corner) => project([4, 2, 1].map((bit) => (corner & bit ? 1 : -1))));
    pen.beginPath();
    pen.moveTo(from[0], from[1]);
    pen.lineTo(to[0], to[1]);
    pen.stroke();
  }
  const seen = points.map((point, i) => ({ at: project(point), code: codes[i] })).sort((a, b) => a.at[2] - b.at[2]);
  for (const { at, code } of seen) {
    pen.fillStyle = colours[code];
    pen.globalAlpha = 0.55 + 0.2 * (at[2] + 1);
    pen.beginPath();
    pen.arc(at[0], at[1], 2.2 + 0.4 * at[2], 0, 7);
    pen.fill();
  }
  pen.globalAlpha = 1;
}

// A view from afar: x to the left front, y to the right, z up.
function turned(turn, tilt, side) {
  const [c, s, ct, st] = [Math.cos(turn), Math.sin(turn), Math.cos(tilt), Math.sin(tilt)];
  const size = side / 3.6;
  return ([x, y, z]) => {
    const across = c * y - s * x;
    const depth = c * x + s * y;
    return [side / 2 + size * across, side / 2 - size * (ct * z - st * depth), ct * depth + st * z];
  };
}
