// The table of all runs: filtered by the server, sorted here; only the rows in sight are drawn.

import { address, called, duration, empty, failed, fill, get, h, number, notice, pill, plural, sparkline, when, whole } from "./dom.js";

const ROW = 40; // pixels
const POLL = 3000;
const COLUMNS = [
  { key: "name", text: "run", cell: (run) => h("a", { href: address(["run", run.path]), title: run.path }, called(run), h("small", {}, ` ${run.id}`, h("span", { class: "phone" }, `, seed ${run.seed ?? "–"}`))) },
  { key: "status", text: "status", cell: (run) => [pill(run.status), warned(run)] },
  { key: null, text: "return", name: "wide", cell: (run, page) => sparkline(page.sparks.get(run.path)?.values) },
  { key: "environment", text: "environment", name: "wide" },
  { key: "algorithm", text: "algorithm", name: "middle" },
  { key: "seed", text: "seed", name: "wide number" },
  { key: "env_steps", text: "steps", name: "number middle", cell: (run) => whole(run.env_steps) },
  { key: "best", text: "best", name: "number", cell: (run) => number(run.best) },
  { key: "last_return", text: "last", name: "number middle", cell: (run) => number(run.last_return) },
  { key: "wall_time", text: "time", name: "wide number", cell: (run) => duration(run.wall_time) },
  { key: "tags", text: "tags", name: "wide", cell: (run) => (run.tags ?? []).map((tag) => h("span", { class: "tag" }, tag)) },
  { key: "created", text: "begun", name: "wide", cell: (run) => when(run.created) },
];

export function runsPage(place, parameters, go) {
  const page = { rows: [], sparks: new Map(), chosen: new Set(), cursor: -1, sort: null, up: false, body: "", window: null };
  const search = h("input", {
    type: "search", "data-search": true, "aria-label": "Filter", value: parameters.get("filter") ?? "", spellcheck: "false",
    placeholder: "algorithm=ppo  eval/return_mean>400  tag!=draft  or a word", oninput: () => later(page, () => load(), 200),
  });
  const count = h("span", { class: "count", role: "status" });
  const compare = h("button", { type: "button", class: "primary", disabled: true, onclick: openComparison }, "Compare");
  const head = h("tr", {}, h("th", { class: "pick" }), COLUMNS.map((column) =>
    h("th", { class: named(column) }, column.key ? h("button", { type: "button", onclick: () => sortBy(column) }, column.text) : column.text)));
  const body = h("tbody", {});
  const list = h("div", { class: "runs" }, h("table", { class: "virtual" }, h("thead", {}, head), body));
  const message = h("div", {});
  fill(place, h("div", { class: "bar" }, search, count, compare), message, list);

  async function load() {
    const filter = search.value.trim();
    try {
      const response = await fetch(address(["api", "runs"], { filter }));
      const text = await response.text();
      if (page.closed || filter !== search.value.trim() || text === page.body) return; // another page has its own address
      const data = JSON.parse(text);
      if (!response.ok) throw new Error(data.error);
      page.body = text;
      page.rows = data.rows.map((cells) => Object.fromEntries(data.columns.map((name, index) => [name, cells[index]])));
      const more = data.fulfilling > page.rows.length ? `, the newest ${whole(page.rows.length)} are shown` : "";
      count.textContent = data.fulfilling === data.total ? `${plural(data.total, "run")}${more}` : `${whole(data.fulfilling)} of ${plural(data.total, "run")}${more}`;
      fill(message, !data.total && empty("No runs yet", `Nothing has been trained in ${data.root}. Start with:`, "rl-lab train CartPole-v1:ppo"),
        data.total && !data.fulfilling && empty("No run matches", "Conditions are KEY=VALUE with = != < <= > >=, as of rl-lab list --filter; other words are looked for in names, tags and notes.", "status=running environment=CartPole*"));
      order();
    } catch (error) {
      if (page.closed) return;
      page.body = "";
      fill(message, failed(error));
      page.rows = [];
    }
    draw();
    history.replaceState(null, "", address([], { filter }));
  }

  function sortBy(column) {
    page.up = page.sort === column.key ? !page.up : ["name", "environment", "algorithm", "status"].includes(column.key);
    page.sort = column.key;
    order();
    draw();
  }

  function order() {
    if (!page.sort) return;
    const key = page.sort, sign = page.up ? 1 : -1;
    const value = (run) => (Array.isArray(run[key]) ? run[key].join(" ") : run[key]);
    page.rows.sort((a, b) => {
      const [one, other] = [value(a), value(b)];
      if (one === null || one === "" || other === null || other === "") return (one === null || one === "") - (other === null || other === "");
      return sign * (typeof one === "number" && typeof other === "number" ? one - other : String(one).localeCompare(String(other)));
    });
  }

  function draw() {
    for (const [index, cell] of [...head.children].entries()) {
      const column = COLUMNS[index - 1];
      cell.toggleAttribute("data-sorted", Boolean(column?.key) && column.key === page.sort);
      if (column?.key === page.sort && page.sort) cell.setAttribute("aria-sort", page.up ? "ascending" : "descending");
      else cell.removeAttribute("aria-sort");
    }
    list.hidden = !page.rows.length;
    const [first, last] = page.window = inSight();
    const seen = page.rows.slice(first, last);
    const gap = (rows) => h("tr", { class: "gap", "aria-hidden": "true" }, h("td", { style: { height: `${rows * ROW}px` } }));
    fill(body, gap(first), seen.map((run, index) => row(run, first + index)), gap(page.rows.length - last));
    compare.disabled = !page.chosen.size;
    compare.textContent = page.chosen.size ? `Compare ${page.chosen.size}` : "Compare";
    sparkle(seen);
  }

  // The rows in sight and some around them, so that most scrolling draws nothing.
  function inSight() {
    const top = Math.max(0, -list.getBoundingClientRect().top - ROW);
    const first = Math.max(0, Math.floor(top / ROW / 8) * 8 - 8);
    return [first, Math.min(page.rows.length, first + Math.ceil(window.innerHeight / ROW) + 24)];
  }

  function row(run, index) {
    return h("tr", { class: index === page.cursor ? "cursor" : "", "aria-selected": page.chosen.has(run.path) },
      h("td", { class: "pick" }, h("input", { type: "checkbox", checked: page.chosen.has(run.path), "aria-label": `choose ${called(run)} ${run.id}`, onchange: () => choose(run) })),
      COLUMNS.map((column) => h("td", { class: named(column) }, column.cell ? column.cell(run, page) : String(run[column.key] ?? "–"))));
  }

  function sparkle(runs) {
    const stamp = (run) => `${run.env_steps}/${run.status}`;
    const wanted = runs.filter((run) => page.sparks.get(run.path)?.stamp !== stamp(run)).slice(0, 60);
    if (!wanted.length) return;
    for (const run of wanted) page.sparks.set(run.path, { stamp: stamp(run), values: page.sparks.get(run.path)?.values });
    get(["sparks"], { runs: wanted.map((run) => run.path).join(",") }).then((found) => {
      for (const run of wanted) page.sparks.get(run.path).values = found[run.path];
      draw();
    }).catch((error) => notice(error.message));
  }

  function choose(run) {
    if (!page.chosen.delete(run.path)) page.chosen.add(run.path);
    draw();
  }

  function openComparison() {
    if (page.chosen.size) go(address(["compare"], { runs: [...page.chosen].join(",") }));
    else notice("choose runs first: x, or the boxes on the left");
  }

  function move(by) {
    page.cursor = Math.min(Math.max(page.cursor + by, 0), page.rows.length - 1);
    const y = list.getBoundingClientRect().top + window.scrollY + (page.cursor + 1) * ROW;
    if (y < window.scrollY + 100 || y > window.scrollY + window.innerHeight - ROW) window.scrollTo(0, y - window.innerHeight / 2);
    draw();
  }

  const onscroll = () => inSight().join() !== page.window?.join() && requestAnimationFrame(draw);
  window.addEventListener("scroll", onscroll, { passive: true });
  window.addEventListener("resize", onscroll);
  const timer = setInterval(() => document.hidden || load(), POLL);
  document.title = "Runs · RL Lab";
  load();
  return {
    close() {
      page.closed = true;
      clearInterval(timer);
      clearTimeout(page.timer);
      window.removeEventListener("scroll", onscroll);
      window.removeEventListener("resize", onscroll);
    },
    key(event) {
      const run = page.rows[page.cursor];
      if (event.key === "j" || event.key === "ArrowDown") move(1);
      else if (event.key === "k" || event.key === "ArrowUp") move(-1);
      else if (event.key === "Enter" && run && !event.target.closest("a, button")) go(address(["run", run.path]));
      else if (event.key === "x" && run) choose(run);
      else if (event.key === "c") openComparison();
      else return false;
      return true;
    },
  };
}

// The monitors that have fired, where there are any.
function warned(run) {
  const names = (run.alerts ?? []).join(", ");
  return names && h("span", { class: "warned", role: "img", title: `alerts: ${names}`, "aria-label": `alerts: ${names}` }, "⚠");
}

const named = (column) => `${column.text} ${column.name ?? ""}`;

function later(page, work, wait) {
  clearTimeout(page.timer);
  page.timer = setTimeout(work, wait);
}
