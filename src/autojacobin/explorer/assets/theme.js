// Light or dark: as the system is set, until the reader chooses.

import { byId } from "./elements.js";

const KEY = "autojacobin-theme";

export function startTheme(redraw) {
  const button = byId("theme");
  const system = matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (document.documentElement.dataset.theme ?? (system.matches ? "dark" : "light")) === "dark";
  const show = () => {
    const other = isDark() ? "light" : "dark";
    button.textContent = other === "dark" ? "☾ Dark" : "☀ Light";
    button.setAttribute("aria-label", `Change to ${other} colours`);
  };
  const kept = recall();
  if (kept === "dark" || kept === "light") document.documentElement.dataset.theme = kept;
  show();
  button.addEventListener("click", () => {
    document.documentElement.dataset.theme = isDark() ? "light" : "dark";
    remember(document.documentElement.dataset.theme);
    show();
    redraw();
  });
  system.addEventListener("change", () => {
    show();
    redraw();
  });
}

function recall() {
  try {
    return localStorage.getItem(KEY);
  } catch {
    return null; // a browser that keeps nothing still shows the page
  }
}

function remember(theme) {
  try {
    localStorage.setItem(KEY, theme);
  } catch {
    // as above
  }
}
