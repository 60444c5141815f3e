// The frame of every page: which page an address means, the bar at the top, keys, themes.

import { comparePage } from "./compare.js";
import { fill, h, failed } from "./dom.js";
import { runPage } from "./run.js";
import { runsPage } from "./runs.js";
import { sweepPage } from "./sweep.js";

const THEMES = ["auto", "light", "dark"];
const KEYS = [
  ["/", "filter the runs, or the metrics of a run"], ["j  k", "next, previous row"], ["Enter", "open the row"],
  ["x", "choose the row for a comparison"], ["c", "compare the chosen runs"], ["g", "all runs"], ["1 … 7", "tabs of a run"],
  ["space  ←  →", "play, step an episode"], ["w", "to the worst value error"], ["t", "light, dark or as the system"], ["?", "these keys"], ["Esc", "close, undo a zoom"],
];

let page = { close() {}, key() {} };

export function go(path) {
  history.pushState(null, "", path);
  show();
}

function show() {
  page.close?.();
  const place = document.getElementById("page");
  fill(place);
  const [kind = "", ...rest] = location.pathname.split("/").slice(1).map(decoded);
  const parameters = new URLSearchParams(location.search);
  try {
    if (kind === "run" && rest[0]) page = runPage(place, rest[0], rest[1] || "curves", parameters, go);
    else if (kind === "compare") page = comparePage(place, parameters, go);
    else if (kind === "sweep") page = sweepPage(place, rest[0] || "", go);
    else page = runsPage(place, parameters, go);
  } catch (error) {
    fill(place, failed(error));
    page = {};
  }
  for (const link of document.querySelectorAll("#top a")) {
    const own = link.getAttribute("href");
    link.toggleAttribute("aria-current", own === "/" ? kind === "" || kind === "run" : `/${kind}`.startsWith(own));
  }
  window.scrollTo(0, 0);
}

function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

function theme(next) {
  const chosen = next ?? (THEMES.includes(localStorage.getItem("rl-lab-theme")) ? localStorage.getItem("rl-lab-theme") : "auto");
  localStorage.setItem("rl-lab-theme", chosen);
  const dark = chosen === "dark" || (chosen === "auto" && matchMedia("(prefers-color-scheme: dark)").matches);
  document.documentElement.dataset.theme = dark ? "dark" : "light";
  const button = document.getElementById("theme");
  if (button) {
    button.textContent = { auto: "◐", light: "☀", dark: "☾" }[chosen];
    button.title = `theme: ${chosen} (t)`;
  }
  page.redraw?.();
}

function turnTheme() {
  const now = localStorage.getItem("rl-lab-theme") ?? "auto";
  theme(THEMES[(THEMES.indexOf(now) + 1) % THEMES.length]);
}

function help() {
  const known = document.querySelector("dialog");
  if (known) return known.remove();
  const dialog = h("dialog", { "aria-label": "Keys" }, h("h2", {}, "Keys"),
    h("dl", {}, KEYS.map(([key, text]) => [h("dt", {}, h("kbd", {}, key)), h("dd", {}, text)])),
    h("button", { type: "button", onclick: () => dialog.remove() }, "Close"));
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const field = event.target.closest?.("input, textarea, select");
  if (event.key === "Escape" && field) return field.blur();
  if (field && field.type !== "checkbox" && field.type !== "range") return;
  if (document.querySelector("dialog") && event.key !== "?") return;
  if (event.key === "?") help();
  else if (event.key === "t") turnTheme();
  else if (event.key === "g") go("/");
  else if (event.key === "/") document.querySelector("[data-search]")?.focus();
  else if (!page.key?.(event)) return;
  event.preventDefault();
});

document.addEventListener("click", (event) => {
  const link = event.target.closest?.("a[href^='/']");
  if (!link || link.target || link.hasAttribute("download") || event.ctrlKey || event.metaKey || event.shiftKey || event.button) return;
  event.preventDefault();
  go(link.getAttribute("href"));
});

fill(document.getElementById("top"),
  h("a", { href: "/", class: "brand" }, h("img", { src: "/assets/icon.svg", alt: "", width: 22, height: 22 }), h("span", {}, "RL Lab")),
  h("nav", { "aria-label": "Pages" }, h("a", { href: "/" }, "Runs"), h("a", { href: "/compare" }, "Compare"), h("a", { href: "/sweep/" }, "Sweeps")),
  h("span", { class: "grow" }),
  h("button", { type: "button", id: "theme", "aria-label": "Theme", onclick: turnTheme }, "◐"),
  h("button", { type: "button", "aria-label": "Keys", title: "keys (?)", onclick: help }, "?"));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => theme());
window.addEventListener("popstate", show);
theme();
show();
