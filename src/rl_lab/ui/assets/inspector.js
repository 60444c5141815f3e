// The episode inspector: recorded episodes step by step, alone or two side by side.

import { Chart } from "./chart.js";
import { address, empty, failed, fill, get, h, notice, number, post, whole } from "./dom.js";

const SPEEDS = [0.25, 0.5, 1, 2, 4];
const CURVES = [
  ["value and what was still to come", ["value", "return_to_go"]], ["value error", ["value_error"]], ["TD error", ["td_error"]],
  ["reward", ["reward", "predicted_reward"]], ["memory norm", ["memory_norm"]],
];
const WORDS = { value: "value", return_to_go: "still to come", value_error: "value error", td_error: "TD error", reward: "reward", predicted_reward: "predicted reward", memory_norm: "norm of the memory", steps_ahead: "predicted, steps ahead" };

// The lowest and the highest number, and zero.
const span = (values) => values.reduce(([low, high], value) => [Math.min(low, value ?? 0), Math.max(high, value ?? 0)], [0, 0]);

export function inspector(place, name, facts, parameters, go) {
  const state = { recordings: [], sides: [], step: 0, playing: null, speed: 1, charts: [], busy: false, started: false, touched: false };
  const side = (key) => ({ name: parameters.get(key), number: Number(parameters.get(`${key}n`) ?? 0) });
  const form = h("form", { class: "bar record", onsubmit: record, onchange: () => { state.touched = true; } }), message = h("div", {}), stage = h("div", {});
  fill(place, form, message, stage);

  function drawForm() {
    const kept = (key) => (state.touched ? form.elements[key]?.value : undefined); // what was chosen stays
    const field = (label, key, value, least) => h("label", {}, `${label} `, h("input", { type: "number", name: key, value: kept(key) ?? value, min: least, step: 1 }));
    const asked = kept("step") ?? parameters.get("record");
    fill(form,
      h("label", {}, "checkpoint ", h("select", { name: "step", "aria-label": "Checkpoint" }, facts.checkpoints.toReversed().map((each) => h("option", { value: each.step, selected: asked ? Number(asked) === each.step : each.best }, `${whole(each.step)}${each.best ? " (best)" : ""}`)))),
      field("episodes", "episodes", 3, 1), field("seed", "seed", 0, 0), h("label", {}, h("input", { type: "checkbox", name: "sample", checked: state.touched && form.elements.sample?.checked }), " sample actions"),
      h("button", { type: "submit", class: "primary", disabled: state.busy || !facts.checkpoints.length }, state.busy ? "Recording …" : "Record"));
  }

  async function record(event) {
    event.preventDefault();
    const values = Object.fromEntries(["step", "episodes", "seed"].map((key) => [key, Number(form.elements[key].value)]));
    try {
      await post(["runs", name, "recordings"], { ...values, sample: form.elements.sample.checked });
      state.busy = true;
      state.started = true;
      drawForm();
    } catch (error) {
      notice(error.message);
    }
  }

  async function load() {
    const found = await get(["runs", name, "recordings"]);
    state.recordings = found.recordings;
    state.busy = found.recording;
    drawForm();
    if (!state.recordings.length) {
      fill(stage, empty("No recorded episodes yet", facts.checkpoints.length ? "Press Record above, or in a terminal:" : "This run has no checkpoint yet. Once it has one:", `rl-lab record ${facts.row.id}`));
      return;
    }
    const wanted = [side("a"), side("b")].filter((each, index) => index === 0 || each.name);
    if (!state.recordings.some((each) => each.name === wanted[0].name)) wanted[0] = { name: state.recordings[state.recordings.length - 1].name, number: 0 };
    state.sides = [];
    for (const { name: recording, number: index } of wanted) {
      const about = state.recordings.find((each) => each.name === recording);
      if (about?.episodes[index]) state.sides.push({ about, number: index, ...(await get(["runs", name, "recordings", recording, String(index)])) });
    }
    drawStage();
  }

  function choose(key, recording, index) {
    const now = { a: state.sides[0], b: state.sides[1] };
    const query = Object.fromEntries(parameters);
    delete query.record;
    for (const each of ["a", "b"]) if (now[each]) [query[each], query[`${each}n`]] = [now[each].about.name, now[each].number];
    if (recording) [query[key], query[`${key}n`]] = [recording, index];
    else {
      delete query[key];
      delete query[`${key}n`];
    }
    go(address(["run", name, "episodes"], query));
  }

  // ---------------------------------------------------------------------------------- drawing

  const length = () => Math.max(...state.sides.map((each) => each.about.episodes[each.number].length));

  function drawStage() {
    state.charts.forEach((chart) => chart.close());
    state.charts = [];
    if (!state.sides.length) return fill(stage, empty("This episode is not there", "Choose another one."));
    state.step = Math.min(state.step, length());
    const slider = h("input", { type: "range", class: "slider", min: 0, max: length(), value: state.step, "aria-label": "Step", oninput: () => at(Number(slider.value)) });
    const play = h("button", { type: "button", class: "play", "aria-label": "Play", title: "space", onclick: toggle }, "▶");
    const speed = h("select", { "aria-label": "Speed", onchange: () => {
      state.speed = Number(speed.value);
      if (state.playing) { toggle(); toggle(); }
    } }, SPEEDS.map((each) => h("option", { value: each, selected: each === state.speed }, `${each}×`)));
    const jump = (text, title, step) => h("button", { type: "button", title, onclick: () => at(step()) }, text);
    const first = state.sides[0], errors = first.numbers.value_error;
    const controls = h("div", { class: "controls" }, play,
      jump("|←", "to the beginning (Home)", () => 0), jump("←", "one step back", () => state.step - 1), jump("→", "one step on", () => state.step + 1), jump("→|", "to the end (End)", length),
      slider, h("output", { class: "step" }), speed,
      jump("next reward", "to the next step with another reward than usual", nextReward), errors && jump("worst value", "to the largest value error (w)", worst));
    const sides = h("div", { class: state.sides.length > 1 ? "sides two" : "sides" }, state.sides.map(drawSide), state.sides.length === 1 && beside());
    const curves = h("div", { class: "charts" });
    fill(stage, sides, controls, curves);
    for (const [title, keys] of CURVES) {
      const lines = state.sides.flatMap((each, index) => keys.filter((key) => each.numbers[key]).map((key) => ({ name: `${state.sides.length > 1 ? `${"AB"[index]} ` : ""}${WORDS[key]}`, color: keys.indexOf(key) + index * keys.length, steps: each.numbers[key].map((_, step) => step), values: each.numbers[key] })));
      if (!lines.length) continue;
      const chart = new Chart(curves, { title, label: "step of the episode", height: 130 });
      chart.onclick = (step) => at(Math.round(step));
      chart.show(lines);
      state.charts.push(chart);
    }
    at(state.step);
  }

  function drawSide(each, index) {
    const key = "ab"[index], { about, number: episode } = each;
    const choice = h("select", { "aria-label": `Recording ${key.toUpperCase()}`, onchange: () => choose(key, state.recordings[choice.selectedIndex].name, 0) }, state.recordings.map((other) => h("option", { selected: other.name === about.name }, title(other))));
    const episodes = h("select", { "aria-label": `Episode ${key.toUpperCase()}`, onchange: () => choose(key, about.name, episodes.selectedIndex) }, about.episodes.map((other, at) => h("option", { selected: at === episode }, `episode ${at + 1}: return ${number(other.return)}, ${whole(other.length)} steps`)));
    const parts = ["api", "runs", name, "recordings", about.name, String(episode)];
    each.image = each.frames && h("img", { class: "frame", alt: "frame", onload: (event) => event.target.classList.toggle("small", event.target.naturalWidth < 240) });
    each.panel = h("div", { class: "panel" });
    return h("section", { class: "side" },
      h("div", { class: "bar" }, state.sides.length > 1 && h("b", {}, key.toUpperCase()), choice, episodes,
        each.frames > 0 && h("a", { class: "button", href: address([...parts, "film"]), download: true }, "film"), h("a", { class: "button", href: address(parts, { download: 1 }), download: true }, "JSON"),
        index === 1 && h("button", { type: "button", "aria-label": "close B", onclick: () => choose("b", null) }, "×")),
      h("div", { class: "scene" }, each.image || h("p", { class: "muted noframe" }, "this environment draws nothing"), each.panel));
  }

  function beside() {
    const first = state.sides[0].about;
    const others = state.recordings.filter((each) => each.name !== first.name);
    const choice = h("select", { "aria-label": "Side by side", onchange: () => choice.selectedIndex && choose("b", others[choice.selectedIndex - 1].name, Math.min(state.sides[0].number, others[choice.selectedIndex - 1].episodes.length - 1)) },
      h("option", {}, "side by side with …"), others.map((each) => h("option", {}, `${title(each)}${each.seed === first.seed ? " (same seed)" : ""}`)));
    return others.length > 0 && h("div", { class: "beside" }, choice);
  }

  const title = (each) => `step ${whole(each.step)}, seed ${each.seed}${each.deterministic ? "" : ", sampled"}`;

  function at(step) {
    state.step = Math.min(Math.max(step, 0), length());
    const slider = stage.querySelector(".slider");
    if (!slider) return;
    slider.value = state.step;
    stage.querySelector("output.step").textContent = `${state.step} / ${length()}`;
    for (const chart of state.charts) chart.set({ cursor: state.step });
    state.sides.forEach(drawMoment);
  }

  function drawMoment(each) {
    const { numbers, about, number: episode } = each, facts = about.episodes[episode];
    const here = Math.min(state.step, facts.length), over = here === facts.length;
    const base = ["api", "runs", name, "recordings", about.name, String(episode)];
    if (each.image) each.image.src = address([...base, "frame", String(Math.min(here, each.frames - 1))]);
    const got = numbers.reward.slice(0, here).reduce((sum, reward) => sum + (reward ?? 0), 0);
    const rows = [
      ["return so far", number(got, 3)], ["reward", over ? "–" : number(numbers.reward[here], 4)],
      ...["value", "return_to_go", "value_error", "td_error", "memory_norm", "predicted_reward"].filter((key) => numbers[key]).map((key) => [WORDS[key], number(numbers[key][here], 4)]),
    ];
    fill(each.panel,
      h("dl", { class: "numbers" }, rows.map(([word, value]) => [h("dt", {}, word), h("dd", {}, value)])),
      over ? h("p", { class: "tag end" }, facts.terminated ? "the task ended here" : "cut here: only the clock ended it") : actions(numbers, about, here),
      about.scaled_values && h("p", { class: "muted" }, "Rewards are normalized in training, so values are of another scale than returns."),
      observations(each, here, base));
  }

  function actions(numbers, about, here) {
    const action = numbers.action[here], q = numbers.q_values?.[here], shares = numbers.probabilities?.[here];
    const label = (index) => about.labels?.[index] ?? String(index);
    if (Array.isArray(action)) {
      const mean = numbers.mean?.[here], std = numbers.std?.[here];
      return bars("action", action.map((value, index) => [String(index), value, `${number(value, 3)}${mean ? ` (${number(mean[index], 2)}${std ? ` ± ${number(std[index], 2)}` : ""})` : ""}`, true]), action.map((_, index) => span([-1, 1, ...numbers.action.map((row) => row[index])])));
    }
    if (!shares && !q) return h("p", {}, "action ", h("b", {}, label(action)));
    const range = span([0, ...(q ?? [])]);
    return [
      shares && bars("action probabilities", shares.map((value, index) => [label(index), value, `${(value * 100).toFixed(1)} %`, index === action]), shares.map(() => [0, 1])),
      q && bars("action values", q.map((value, index) => [label(index), value, number(value, 3), index === action]), q.map(() => range)),
    ];
  }

  function observations(each, here, base) {
    const found = [], pictures = h("div", { class: "pictures" });
    for (const [key, rows] of Object.entries(each.numbers)) {
      if (key !== "obs" && !key.startsWith("obs/")) continue;
      const values = [rows[here]].flat(), guess = each.numbers[key.replace(/^obs/, "predicted")]?.[here];
      const ahead = each.numbers.steps_ahead?.[here] ?? 0;
      const ranges = values.map((_, index) => span(rows.map((row) => [row].flat()[index])));
      const more = each.cut[key] ? `, ${each.cut[key] - values.length} more` : "";
      const list = values.map((value, index) => [String(index), value, `${number(value, 3)}${guess && ahead ? ` | ${number([guess].flat()[index], 3)}` : ""}`, false, ahead ? [guess].flat()[index] : null]);
      found.push(bars(`${key === "obs" ? "observation" : key.slice(4)}${more}${guess && ahead ? ` | predicted ${ahead} steps ahead` : ""}`, list, ranges));
    }
    for (const key of each.pictures) {
      const ahead = each.numbers.steps_ahead?.[here] ?? 0;
      if (key.startsWith("predicted") && !ahead) continue;
      pictures.append(h("figure", { class: "seen" }, h("img", { src: address([...base, "picture", String(here)], { key }), alt: key }), h("figcaption", {}, key.startsWith("predicted") ? `predicted ${ahead} steps ahead` : key === "obs" ? "observation" : key.slice(4))));
    }
    return [...found, pictures];
  }

  function bars(name, rows, ranges) {
    return h("div", { class: "bars" }, h("h4", {}, name), rows.map(([label, value, text, chosen, other], index) => {
      const [low, high] = ranges[index];
      const place = (each) => ((Math.min(Math.max(each, low), high) - low) / (high - low || 1)) * 100;
      const zero = place(0), end = place(value ?? 0);
      return h("div", { class: chosen ? "chosen" : "" }, h("span", {}, label), h("i", {}, h("b", { style: { left: `${Math.min(zero, end)}%`, width: `${Math.abs(end - zero)}%` } }), typeof other === "number" && h("u", { style: { left: `${place(other)}%` } })), h("span", {}, text));
    }));
  }

  // --------------------------------------------------------------------------------- playing

  function toggle() {
    const button = stage.querySelector(".play");
    if (!button) return;
    clearInterval(state.playing);
    state.playing = state.playing ? null : setInterval(() => (state.step >= length() ? toggle() : at(state.step + 1)), 1000 / Math.min((state.sides[0].about.fps ?? 30) * state.speed, 60));
    if (state.playing && state.step >= length()) at(0);
    button.textContent = state.playing ? "⏸" : "▶";
  }

  function nextReward() {
    const rewards = state.sides[0].numbers.reward, counts = new Map();
    for (const reward of rewards) counts.set(reward, (counts.get(reward) ?? 0) + 1);
    const usual = [...counts].sort((a, b) => b[1] - a[1])[0][0];
    const found = rewards.findIndex((reward, step) => step > state.step && reward !== usual);
    if (found < 0) notice("every later reward is the usual one");
    return found < 0 ? state.step : found;
  }

  function worst() {
    const errors = state.sides[0].numbers.value_error ?? [];
    return errors.reduce((best, error, step) => (Math.abs(error) > Math.abs(errors[best]) ? step : best), 0);
  }

  const begin = () => load().catch((error) => fill(stage, failed(error)));
  drawForm();
  begin();
  return {
    close() {
      clearInterval(state.playing);
      state.charts.forEach((chart) => chart.close());
    },
    redraw: () => state.charts.forEach((chart) => chart.draw()),
    facts(found) {
      facts = found;
      drawForm();
    },
    recorded(stamps) {
      if (stamps.recording === state.busy) return;
      state.busy = stamps.recording;
      drawForm();
      if (state.busy) return;
      fill(message, stamps.error && h("p", { class: "bad" }, stamps.error));
      if (state.started && !stamps.error) notice("recorded");
      begin();
    },
    key(event) {
      if (!state.sides.length) return false;
      if (event.key === " ") toggle();
      else if (event.key === "ArrowRight") at(state.step + 1);
      else if (event.key === "ArrowLeft") at(state.step - 1);
      else if (event.key === "Home") at(0);
      else if (event.key === "End") at(length());
      else if (event.key === "w" && state.sides[0].numbers.value_error) at(worst());
      else return false;
      return true;
    },
  };
}
