// One run: live curves, episodes, settings, checkpoints, films and pictures, alerts, the log.

import { Chart } from "./chart.js";
import { address, called, duration, empty, failed, fill, get, h, notice, number, pill, post, table, when, whole } from "./dom.js";
import { inspector } from "./inspector.js";

const POLL = 1000;
const TABS = { curves: "Curves", episodes: "Episodes", config: "Settings", checkpoints: "Checkpoints", media: "Films and pictures", alerts: "Alerts", log: "Log" };
const CLOSED = ["time", "sys"]; // groups of metrics that are folded at first

export function runPage(place, name, tab, parameters, go) {
  const page = { facts: null, stamps: {}, view: null, closed: false, tab: tab in TABS ? tab : "curves" };
  const head = h("div", { class: "run-head" }), own = h("div", { class: "labels" }), tabs = h("nav", { class: "tabs", "aria-label": "Of this run" }), view = h("section", { class: "view" });
  fill(place, head, own, tabs, view);

  async function load() {
    page.facts = await get(["runs", name]);
    if (page.closed) return;
    document.title = `${called(page.facts.row)} ${page.facts.row.id} · RL Lab`;
    drawHead();
    if (!own.contains(document.activeElement)) drawLabels(); // what is being typed stays
    drawTabs();
  }

  async function pulse() {
    if (page.closed || document.hidden) return;
    try {
      const stamps = await get(["runs", name, "pulse"]);
      const old = page.stamps;
      page.stamps = stamps;
      const grown = stamps["metrics.jsonl"] !== old["metrics.jsonl"] || stamps["timing.jsonl"] !== old["timing.jsonl"];
      if (stamps.facts !== old.facts || (grown && !page.facts.metrics.length)) {
        await load();
        page.view?.facts?.(page.facts);
      }
      if (grown) page.view?.grown?.();
      if (stamps["logs/run.log"] !== old["logs/run.log"]) page.view?.logged?.();
      page.view?.recorded?.(stamps);
    } catch (error) {
      notice(error.message);
    }
  }

  function drawHead() {
    const { row, summary } = page.facts;
    const total = summary.total_timesteps, share = total ? Math.min((row.env_steps ?? 0) / total, 1) : 0;
    const stop = row.status === "running" && h("button", { type: "button", onclick: stopRun }, "Save and stop");
    const test = Object.entries(summary.test ?? {}).map(([which, each]) => fact(`test (${which})`, `${number(each.return_mean)} ± ${number(each.return_std)}`));
    fill(head,
      h("div", { class: "title" }, h("h1", {}, called(row)), pill(row.status), h("span", { class: "grow" }),
        page.facts.report && h("a", { class: "button", href: address(["api", "runs", name, "report"]), target: "_blank", rel: "noopener" }, "Report"), stop),
      h("div", { class: "facts" },
        fact("environment", row.environment), fact("algorithm", row.algorithm), fact("seed", String(row.seed ?? "–")),
        fact("steps", total ? `${whole(row.env_steps)} of ${whole(total)}` : whole(row.env_steps)),
        fact("best", number(row.best)), fact("last", number(row.last_return)), test, fact("time", duration(row.wall_time)), fact("begun", when(row.created)),
        row.parent && fact("fork of", row.parent), fact("id", row.id)),
      h("progress", { max: 1, value: share, "aria-label": "share of its steps" }),
      summary.error && h("p", { class: "bad" }, summary.error));
  }

  function drawLabels() {
    const { row } = page.facts;
    const add = h("input", { type: "text", placeholder: "+ tag", "aria-label": "Add a tag", maxlength: 64, onchange: () => change({ add: [add.value.trim()] }) });
    const notes = h("textarea", { rows: 1, placeholder: "notes", "aria-label": "Notes", maxlength: 10000, onchange: () => change({ notes: notes.value }) });
    notes.value = row.notes ?? "";
    fill(own,
      (row.tags ?? []).map((tag) => h("span", { class: "tag" }, tag, h("button", { type: "button", "aria-label": `remove ${tag}`, onclick: () => change({ remove: [tag] }) }, "×"))), add, notes);
  }

  async function change(body) {
    try {
      await post(["runs", name, "labels"], body);
    } catch (error) {
      notice(error.message);
    }
    await load();
    drawLabels();
  }

  async function stopRun() {
    try {
      await post(["runs", name, "stop"], {});
      notice("it saves at the end of what it is doing, and ends");
    } catch (error) {
      notice(error.message);
    }
  }

  function drawTabs() {
    const counts = { checkpoints: page.facts.checkpoints.length, media: page.facts.media.length, alerts: page.facts.alerts.length };
    fill(tabs, Object.entries(TABS).map(([key, text]) =>
      h("a", { href: address(["run", name, key]), "aria-current": page.tab === key ? "page" : null }, text, counts[key] ? h("small", {}, String(counts[key])) : null)));
    const own = tabs.querySelector("[aria-current]"); // on a phone it may be out of sight
    tabs.scrollLeft = own ? own.offsetLeft + own.offsetWidth / 2 - tabs.clientWidth / 2 : 0;
  }

  async function begin() {
    try {
      await load();
      if (page.closed) return;
      const views = { curves, episodes: inspector, config, checkpoints, media, alerts, log };
      page.view = views[page.tab](view, name, page.facts, parameters, go);
      page.stamps = await get(["runs", name, "pulse"]);
      page.view?.recorded?.(page.stamps);
    } catch (error) {
      if (page.facts) return fill(view, failed(error));
      clearInterval(timer); // there is nothing to follow
      fill(place, failed(error), h("p", {}, h("a", { href: "/" }, "All runs")));
    }
  }

  const timer = setInterval(pulse, POLL);
  begin();
  return {
    close() {
      page.closed = true;
      clearInterval(timer);
      page.view?.close?.();
    },
    redraw: () => page.view?.redraw?.(),
    key(event) {
      const key = Object.keys(TABS)[Number(event.key) - 1];
      if (key) go(address(["run", name, key]));
      return Boolean(key) || page.view?.key?.(event);
    },
  };
}

const fact = (name, value) => h("div", {}, h("span", {}, name), h("b", {}, value ?? "–"));

// -------------------------------------------------------------------------------------- curves

function curves(place, name, facts) {
  const state = { charts: new Map(), range: null, busy: false, again: false, smooth: Number(localStorage.getItem("rl-lab-smooth") ?? 0), log: false, together: [], metrics: facts.metrics, alerts: facts.alerts, closed: false };
  const search = h("input", { type: "search", "data-search": true, placeholder: "metrics", "aria-label": "Filter the metrics", spellcheck: "false", oninput: draw });
  const smooth = h("input", { type: "range", min: 0, max: 0.99, step: 0.01, value: state.smooth, "aria-label": "Smoothing", oninput: () => {
    state.smooth = Number(smooth.value);
    localStorage.setItem("rl-lab-smooth", smooth.value);
    each((chart) => chart.set({ smooth: state.smooth }));
  } });
  const log = h("input", { type: "checkbox", onchange: () => {
    state.log = log.checked;
    each((chart) => chart.set({ log: state.log }));
  } });
  const reset = h("button", { type: "button", hidden: true, onclick: () => zoom(null) }, "Reset zoom");
  const known = h("span", { class: "count", role: "status" });
  const groups = h("div", {});
  fill(place, h("div", { class: "bar" }, search, h("label", {}, "smoothing ", smooth), h("label", {}, log, " log scale"), reset, known), groups);

  const each = (work) => state.charts.forEach(({ chart }) => work(chart));

  function draw() {
    each((chart) => chart.close());
    state.charts.clear();
    const wanted = state.metrics.filter((metric) => metric.name.toLowerCase().includes(search.value.trim().toLowerCase()));
    if (!state.metrics.length) return fill(groups, empty("No metrics yet", "The first row is written after the first cycle; the page follows by itself."));
    const parts = new Map();
    for (const metric of wanted) {
      const group = metric.name.split("/")[0];
      parts.set(group, [...(parts.get(group) ?? []), metric]);
    }
    const sections = [...parts].map(([group, metrics]) => {
      const grid = h("div", { class: "charts" });
      const section = h("details", { open: search.value || !CLOSED.includes(group), ontoggle: () => refresh() }, h("summary", {}, group, h("small", {}, String(metrics.length))), grid);
      for (const metric of metrics) add(metric.name, [metric], grid, section);
      return section;
    });
    const own = h("div", { class: "charts" });
    fill(groups, own, sections);
    if (state.together.length > 1) add("together", state.metrics.filter((metric) => state.together.includes(metric.name)), own, null);
    refresh();
  }

  function add(key, metrics, grid, section) {
    const together = key === "together";
    const metric = metrics[0];
    const join = h("button", { type: "button", class: "small", title: together ? "close" : "draw with others in one chart", "aria-label": together ? "close" : `draw ${metric.name} with others`, onclick: () => {
      state.together = together ? [] : state.together.includes(metric.name) ? state.together.filter((each) => each !== metric.name) : [...state.together, metric.name];
      if (state.together.length === 1) notice("choose another metric with + to draw both in one chart");
      draw();
    } }, together ? "×" : state.together.includes(metric.name) ? "−" : "+");
    const chart = new Chart(grid, { title: together ? "together" : metric.name, unit: together ? "" : metric.unit, smooth: state.smooth, log: state.log, label: "environment steps", height: together ? 280 : 190, onzoom: zoom, onhover: (step) => each((other) => other !== chart && other.set({ hover: step })), actions: [join] });
    if (together) chart.element.classList.add("large");
    chart.range = state.range;
    state.charts.set(key, { chart, metrics, section });
  }

  function zoom(range) {
    state.range = range;
    reset.hidden = !range;
    each((chart) => chart.zoom(range));
    refresh();
  }

  // One request for all charts in sight; while it is under way, the next one waits.
  async function refresh() {
    if (state.closed) return;
    if (state.busy) return void (state.again = true);
    const open = [...state.charts.values()].filter(({ section }) => !section || section.open);
    const names = [...new Set(open.flatMap(({ metrics }) => metrics.map((metric) => metric.name)))];
    if (!names.length) return;
    state.busy = true;
    try {
      let share = 1;
      for (let first = 0; first < names.length; first += 60) {
        const range = state.range?.map(Math.round).map((step) => Math.max(step, 0));
        const found = await get(["runs", name, "series"], { names: names.slice(first, first + 60).join(","), low: range?.[0], high: range?.[1], points: Math.min(Math.round(window.innerWidth * 0.8), 1600) });
        share = Math.min(share, found.known);
        for (const { chart, metrics } of open) {
          const here = metrics.filter((metric) => names.slice(first, first + 60).includes(metric.name));
          if (here.length) chart.show(metrics.map((metric, color) => ({ name: metric.name, color, steps: [], values: [], ...found.curves[metric.name] })), state.alerts.filter((alert) => Number.isFinite(alert.step) && metrics.some((metric) => metric.name === alert.metric)).map((alert) => ({ step: alert.step, text: String(alert.message) })));
        }
      }
      known.textContent = share < 1 ? `reading ${Math.round(share * 100)} %: the rest is sampled` : "";
      if (share < 1) state.again = true;
    } catch (error) {
      notice(error.message);
    }
    state.busy = false;
    if (state.again && !state.closed) {
      state.again = false;
      setTimeout(refresh, 50);
    }
  }

  draw();
  return {
    close() {
      state.closed = true;
      each((chart) => chart.close());
    },
    grown: refresh,
    redraw: () => each((chart) => chart.draw()),
    facts(found) {
      state.alerts = found.alerts;
      const same = found.metrics.length === state.metrics.length;
      state.metrics = found.metrics;
      if (same) refresh();
      else draw();
    },
    key(event) {
      if (event.key !== "Escape" || !state.range) return false;
      zoom(null);
      return true;
    },
  };
}

// ------------------------------------------------------------------------------- the other tabs

function config(place, name) {
  const search = h("input", { type: "search", "data-search": true, placeholder: "key or value", "aria-label": "Filter the settings", oninput: () => draw() });
  const changed = h("input", { type: "checkbox", onchange: () => draw() });
  const list = h("div", {}, h("p", { class: "muted" }, "reading …"));
  let rows = [];
  const text = (value) => (typeof value === "string" ? value : JSON.stringify(value));
  const draw = () => {
    const word = search.value.trim().toLowerCase();
    const shown = rows.filter((row) => (!changed.checked || row.origin !== "default") && `${row.path} ${text(row.value)}`.toLowerCase().includes(word));
    fill(list, shown.length ? table(["key", "value", "default", "where from"], shown.map((row) => [h("code", {}, row.path), h("b", {}, text(row.value)), text(row.default ?? "–"), h("span", { class: `origin ${row.origin.split(" ")[0]}` }, row.origin)]), "settings") : empty("No setting fits", "Remove a word from the filter."));
  };
  fill(place, h("div", { class: "bar" }, search, h("label", {}, changed, " only what is not the default")), list);
  get(["runs", name, "config"]).then((found) => {
    rows = found.settings;
    draw();
  }).catch((error) => fill(list, failed(error)));
  return {};
}

function checkpoints(place, name, facts) {
  const draw = (found) => fill(place, found.checkpoints.length
    ? table([{ text: "step", right: true }, { text: "score", right: true }, "", ""], found.checkpoints.toReversed().map((each) => [whole(each.step), number(each.score), each.best ? h("span", { class: "tag" }, "best") : "", h("a", { href: address(["run", name, "episodes"], { record: each.step }) }, "record episodes")]))
    : empty("No checkpoint yet", "One is saved at the steps of checkpoint.every_steps, when the run ends, and on Ctrl-C."),
  h("h2", {}, "Use them"), h("pre", {}, [`rl-lab evaluate ${found.row.id}:best --episodes 100`, `rl-lab play ${found.row.id}:best`, `rl-lab record ${found.row.id}:best`].join("\n")), found.command && [h("h2", {}, "Run it again"), h("pre", {}, found.command)]);
  draw(facts);
  return { facts: draw };
}

function media(place, name, facts) {
  const draw = (found) => fill(place, found.media.length ? h("div", { class: "media" }, found.media.map((each) => {
    const source = address(["api", "runs", name, "files", ...each.file.split("/")]);
    return h("figure", {}, each.kind === "video" ? h("video", { src: source, controls: true, preload: "metadata", loop: true }) : h("img", { src: source, alt: each.file, loading: "lazy" }), h("figcaption", {}, each.file));
  })) : empty("No films or pictures yet", "A film of the best checkpoint is made by:", `rl-lab play ${found.row.id}:best --video film.mp4\nrl-lab play ${found.row.id}:best`));
  draw(facts);
  return { facts: draw };
}

function alerts(place, name, facts) {
  const draw = (found) => fill(place, found.alerts.length ? h("ol", { class: "alerts" }, found.alerts.map((each) =>
    h("li", {}, h("div", {}, h("b", {}, String(each.monitor ?? "alert")), h("span", { class: "muted" }, ` step ${whole(Number(each.step))}${each.metric ? ` · ${each.metric}` : ""}`)), h("p", {}, String(each.message ?? "")), each.tip && h("p", { class: "tip" }, String(each.tip)))))
    : empty("No alerts", "Monitors watch a run while it trains; what they find is shown here and on the curves."));
  draw(facts);
  return { facts: draw };
}

function log(place, name) {
  const text = h("pre", { class: "log", tabindex: 0 });
  const load = () => get(["runs", name, "log"]).then((found) => {
    const end = text.scrollHeight - text.scrollTop - text.clientHeight < 40;
    if (found.text) fill(place, text);
    else fill(place, empty("The log is empty", "A run writes warnings and errors into logs/run.log."));
    text.textContent = found.text;
    if (end) text.scrollTop = text.scrollHeight;
  }).catch((error) => fill(place, failed(error)));
  load();
  return { logged: load };
}
