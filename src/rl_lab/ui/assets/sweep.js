// Sweeps: parallel coordinates of all trials, what mattered, a table.

import { address, empty, failed, fill, get, h, number, svg, table } from "./dom.js";

const WIDTH = 960, HEIGHT = 300, TOP = 34, BOTTOM = 30, SIDE = 70;

export function sweepPage(place, name, go) {
  document.title = `${name || "Sweeps"} · RL Lab`;
  const body = h("div", {}, h("p", { class: "muted" }, "reading …"));
  fill(place, h("h1", { class: "page-title" }, name || "Sweeps"), body);
  if (!name) {
    get(["sweeps"]).then(({ sweeps }) => fill(body, sweeps.length
      ? table(["sweep"], sweeps.map((each) => [h("a", { href: address(["sweep", each]) }, each)]))
      : empty("No sweeps yet", "A sweep tries many settings, with several seeds each:", "rl-lab sweep cartpole_ppo"))).catch((error) => fill(body, failed(error)));
    return {};
  }
  let last = "";
  const load = () => get(["sweeps", name]).then((data) => {
    const text = JSON.stringify(data);
    if (text !== last) draw(data);
    last = text;
  }).catch((error) => fill(body, failed(error)));

  function draw(data) {
    const done = data.trials.filter((each) => each.value !== null);
    if (!data.trials.length) return fill(body, empty("No trial yet", "The first one is shown as soon as it begins."));
    const highlight = (number) => {
      for (const each of body.querySelectorAll("[data-trial]")) each.classList.toggle("lit", each.dataset.trial === String(number));
    };
    fill(body,
      h("p", { class: "muted" }, `${data.base}, ${data.method}, seeds ${data.seeds.join(", ")}; ${done.length} of ${data.trials.length} trials have a value. ${data.direction === "max" ? "Largest" : "Smallest"} ${data.objective} is best.`),
      done.length > 1 && h("div", { class: "scroll" }, parallel(data, done, highlight)),
      Object.keys(data.importance).length > 0 && [h("h2", {}, "What sets the better half apart"), bars(data)],
      h("h2", {}, "Trials"), trials(data, highlight));
  }

  load();
  const timer = setInterval(() => document.hidden || load(), 5000);
  return { close: () => clearInterval(timer) };
}

function parallel(data, done, highlight) {
  const axes = [...data.axes, valueAxis(data, done)];
  const gap = (WIDTH - 2 * SIDE) / Math.max(axes.length - 1, 1);
  const x = (index) => SIDE + gap * index, y = (share) => HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM);
  const picture = svg("svg", { class: "parallel", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": `parallel coordinates of ${done.length} trials` });
  const values = done.map((each) => each.value), low = Math.min(...values), high = Math.max(...values);
  const ordered = [...data.trials].sort((a, b) => (a.value === null) - (b.value === null) || 0).reverse();
  for (const trial of ordered.filter((each) => each.value !== null)) {
    const height = (trial.value - low) / (high - low || 1), good = low === high ? 0.5 : data.direction === "max" ? height : 1 - height;
    const points = axes.map((axis, index) => `${x(index)},${y(axis.value ? height : where(axis, trial))}`).join(" ");
    const line = svg("polyline", { points, "data-trial": trial.trial, class: "trial" });
    line.style.setProperty("stroke-opacity", String(0.25 + 0.75 * good));
    line.style.setProperty("stroke-width", String(1 + 1.6 * good));
    line.addEventListener("pointerenter", () => highlight(trial.trial));
    line.addEventListener("pointerleave", () => highlight(null));
    line.append(svg("title", {}, `trial ${trial.trial}: ${number(trial.value, 4)}`));
    picture.append(line);
  }
  axes.forEach((axis, index) => {
    picture.append(svg("line", { x1: x(index), x2: x(index), y1: TOP, y2: HEIGHT - BOTTOM, class: "axis" }), svg("text", { x: x(index), y: HEIGHT - 8, "text-anchor": "middle", class: "name" }, axis.name));
    const ends = axis.low === axis.high && !axis.choices ? [[0, cell(axis.low)]] : axis.choices ? axis.choices.map((each, at) => [at / Math.max(axis.choices.length - 1, 1), cell(each)]) : [[0, cell(axis.low)], [1, cell(axis.high)]];
    for (const [share, text] of ends) picture.append(svg("text", { x: x(index) + 6, y: y(share) + (share === 1 ? -6 : 4), class: "end" }, text));
  });
  return picture;
}

function valueAxis(data, done) {
  const values = done.map((each) => each.value);
  return { name: data.objective, value: true, low: Math.min(...values), high: Math.max(...values) };
}

function where(axis, trial) {
  const value = trial.settings[axis.key];
  // Side by side where many share a choice: by its number, so always at the same place.
  const aside = 0.03 * (((trial.trial * 0.618) % 1) - 0.5);
  if (axis.choices) {
    const at = axis.choices.findIndex((each) => JSON.stringify(each) === JSON.stringify(value));
    return at / Math.max(axis.choices.length - 1, 1) + aside;
  }
  const [low, high, here] = [axis.low, axis.high, value].map(axis.log ? Math.log : Number);
  return (here - low) / (high - low || 1);
}

function bars(data) {
  const names = Object.fromEntries(data.keys.map((each) => [each.key, each.name]));
  const largest = Math.max(...Object.values(data.importance)) || 1;
  return h("div", { class: "importance" }, Object.entries(data.importance).map(([key, share]) => [h("span", { title: key }, names[key] ?? key), h("i", {}, h("b", { style: { width: `${(share / largest) * 100}%` } })), h("span", {}, `${Math.round(share * 100)} %`)]));
}

function trials(data, highlight) {
  const found = table([{ text: "trial", right: true }, { text: "value", right: true }, "95 % interval", ...data.keys.map((each) => each.name), "state", "runs"], data.trials.map((each) => [
    each.trial, number(each.value, 4), each.interval ? each.interval.map((end) => number(end)).join(" to ") : "–", ...data.keys.map(({ key }) => cell(each.settings[key])), each.state,
    h("a", { href: address([], { filter: `name=${each.runs[0].replace(/-s\d+$/, "")}*` }) }, "runs"),
  ]));
  [...found.querySelectorAll("tbody tr")].forEach((row, index) => {
    row.dataset.trial = data.trials[index].trial;
    row.addEventListener("pointerenter", () => highlight(data.trials[index].trial));
    row.addEventListener("pointerleave", () => highlight(null));
  });
  return found;
}

const cell = (value) => (typeof value === "number" ? (Number.isInteger(value) ? String(value) : Number(value.toPrecision(4)).toString()) : typeof value === "string" ? value : JSON.stringify(value ?? null));
