// Runs side by side: curves with bands, results with intervals, who is better, what is different.

import { Chart } from "./chart.js";
import { address, color, duration, empty, failed, fill, get, h, number, table } from "./dom.js";

export function comparePage(place, parameters, go) {
  const runs = parameters.get("runs") ?? "";
  const state = { chart: null, data: null };
  const metric = h("input", { type: "text", value: parameters.get("metric") ?? "reward", "aria-label": "Metric", "data-search": true, list: "metrics", onchange: change });
  const group = h("input", { type: "text", value: parameters.get("group") ?? "", "aria-label": "Group by", placeholder: "all but the seed", onchange: change });
  const single = h("input", { type: "checkbox", onchange: draw });
  const smooth = h("input", { type: "range", min: 0, max: 0.99, step: 0.01, value: 0, "aria-label": "Smoothing", oninput: () => state.chart?.set({ smooth: Number(smooth.value) }) });
  const log = h("input", { type: "checkbox", onchange: () => state.chart?.set({ log: log.checked }) });
  const known = h("datalist", { id: "metrics" }, ["reward", "loss", "collect/return_mean", "eval/return_mean"].map((each) => h("option", { value: each })));
  const curves = h("div", { class: "charts one" }), rest = h("div", {});
  document.title = "Compare · RL Lab";
  fill(place, h("h1", { class: "page-title" }, "Compare"), known,
    h("div", { class: "bar" }, h("label", {}, "metric ", metric), h("label", {}, "group by ", group), h("label", {}, single, " single runs"), h("label", {}, "smoothing ", smooth), h("label", {}, log, " log scale")), curves, rest);

  function change() {
    go(address(["compare"], { runs, metric: metric.value.trim(), group: group.value.trim() }));
  }

  function draw() {
    const { data } = state;
    if (!data) return;
    const names = data.groups.map((each) => `${each.task} ${each.method}`);
    const lines = single.checked
      ? data.curves.map((each) => ({ ...each, name: `${each.group}, seed ${each.seed}`, color: names.indexOf(each.group), thin: true }))
      : data.groups.map((each, index) => ({ name: `${names[index]} (${each.runs.length})`, color: index, ...each.curve }));
    state.chart ??= new Chart(curves, { title: data.metric.name, unit: data.metric.unit, label: "environment steps", height: 340, log: log.checked, smooth: Number(smooth.value) });
    state.chart.show(lines);
  }

  function write(data) {
    const interval = (value, ends) => (value === null ? "–" : `${number(value)}${ends ? ` [${number(ends[0])}, ${number(ends[1])}]` : ""}`);
    const labels = (each, index) => h("span", { class: "key" }, h("i", { style: { background: color(index) } }), `${each.task} ${each.method}`);
    fill(rest,
      h("h2", {}, "Results"),
      table(["group", { text: "runs", right: true }, { text: "final mean", right: true }, { text: "final IQM", right: true }, { text: "best", right: true }, ...(data.groups[0]?.at ?? []).map((each) => ({ text: `at ${each.label}`, right: true })), { text: "time", right: true }, ""], data.groups.map((each, index) => [
        labels(each, index), String(each.runs.length), interval(each.final, each.final_interval), interval(each.iqm, each.iqm_interval), number(each.best), ...each.at.map((at) => number(at.value)), duration(each.wall_time),
        h("span", {}, each.runs.map((run) => [h("a", { href: address(["run", run.path]) }, run.id), " "])),
      ])),
      h("p", { class: "muted" }, "In brackets: 95 % bootstrap intervals over runs. The band of a curve is that of the IQM."),
      data.pairs.length > 0 && [h("h2", {}, "Probability of improvement"), h("div", { class: "pairs" }, data.pairs.map(pair)),
        h("p", { class: "muted" }, "How probable it is that a run of the first is better than one of the second, with its 95 % interval; p-values by paired tests over seeds, corrected by Holm.")],
      data.warnings.length > 0 && [h("h2", {}, "Before you trust this"), h("ul", { class: "warnings" }, data.warnings.map((each) => h("li", {}, each)))],
      h("h2", {}, "Settings that differ"),
      data.differences.length ? table(["key", ...data.runs.map((run) => h("a", { href: address(["run", run.path]) }, run.id))], data.differences.map((each) => [h("code", {}, each.path), ...data.runs.map((run) => JSON.stringify(each.values[run.id]))])) : h("p", { class: "muted" }, "None but the seed."));
  }

  function pair(each) {
    const at = (share) => `${(share * 100).toFixed(1)}%`;
    const bar = h("div", { class: "probability" }, each.interval && h("i", { class: "span", style: { left: at(each.interval[0]), width: at(each.interval[1] - each.interval[0]) } }), h("i", { class: "point", style: { left: at(each.probability) } }));
    return h("div", { class: "pair" }, h("b", {}, each.first), h("span", { class: "muted" }, " better than "), h("b", {}, each.second), bar,
      h("span", {}, `${at(each.probability)}${each.interval ? ` [${at(each.interval[0])}, ${at(each.interval[1])}]` : ""}${each.corrected === null ? "" : `, p = ${each.corrected.toPrecision(2)}`}`));
  }

  if (!runs) fill(curves, empty("Nothing to compare yet", "Choose runs in the table with x or the boxes, then press c. In a terminal:", "rl-lab compare @last @best"));
  else {
    fill(rest, h("p", { class: "muted" }, "reading …"));
    get(["compare"], { runs, metric: metric.value, group: group.value }).then((data) => {
      state.data = data;
      draw();
      write(data);
    }).catch((error) => fill(rest, failed(error)));
  }
  return { close: () => state.chart?.close(), redraw: () => state.chart?.draw() };
}
