// The page: which part of it is shown, in which theme.

import { closeAll, redrawAll } from "./charts.js";
import { el, runLink } from "./dom.js";
import { showList } from "./list.js";
import { showRun } from "./run.js";

const page = document.getElementById("page");
const trail = document.getElementById("trail");
const themes = matchMedia("(prefers-color-scheme: dark)");
let leave = () => {};

function theme() {
  const chosen = localStorage.getItem("shoal-theme");
  document.documentElement.dataset.theme = chosen ?? (themes.matches ? "dark" : "light");
  redrawAll();
}
themes.addEventListener("change", theme);
document.getElementById("theme").addEventListener("click", () => {
  localStorage.setItem("shoal-theme", document.documentElement.dataset.theme === "dark" ? "light" : "dark");
  theme();
});
theme();

function route() {
  leave();
  closeAll();
  page.replaceChildren();
  const [, kind, name] = location.hash.match(/^#\/(run)\/(.+)$/) ?? [];
  if (kind) {
    const run = decodeURIComponent(name);
    const parts = run.split("/");
    trail.replaceChildren(...parts.flatMap((part, n) => [" / ", n < parts.length - 1 ? runLink(parts.slice(0, n + 1).join("/"), part) : part]));
    document.title = `${run} · shoal`;
    leave = showRun(page, run);
  } else {
    trail.replaceChildren();
    document.title = "shoal";
    leave = showList(page);
  }
}

addEventListener("hashchange", () => { route(); page.focus(); });
addEventListener("keydown", (event) => {
  const typing = /^(INPUT|SELECT|TEXTAREA)$/.test(document.activeElement?.tagName ?? "");
  if (event.key === "/" && !typing) {
    const search = page.querySelector('input[type="search"]');
    if (search) { event.preventDefault(); search.focus(); }
  }
});
route();
