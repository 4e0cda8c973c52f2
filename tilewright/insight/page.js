"use strict";
const report = JSON.parse(document.getElementById("report").textContent);
const root = document.getElementById("page");
const KINDS = {
  memory: "bytes moved bound it", tensor: "tensor cores bound it", arithmetic: "arithmetic bounds it",
  launch: "it is as short as starting a kernel",
};
const SOURCES = {
  profiled: "measured on this machine", timed: "timed when the engine was built", estimated: "estimated", unknown: "",
};

function element(name, attributes, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes || {})) {
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (value !== null && value !== undefined) made.setAttribute(key, value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

function drawing(name, attributes, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes || {})) {
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else made.setAttribute(key, value);
  }
  made.append(...children);
  return made;
}

function scaled(value, units) {
  let found = units[0];
  for (const unit of units) if (value >= unit[0]) found = unit;
  const number = value / found[0];
  const digits = number >= 100 ? 0 : number >= 10 ? 1 : 2;
  return `${number.toFixed(digits)} ${found[1]}`;
}
const time = (s) => scaled(s * 1e6, [[1e-3, "ns"], [1, "µs"], [1e3, "ms"], [1e6, "s"]]);
const bytes = (n) => scaled(n, [[1, "B"], [1e3, "kB"], [1e6, "MB"], [1e9, "GB"]]);
const rate = (n, unit) => scaled(n, [[1, unit], [1e3, `k${unit}`], [1e6, `M${unit}`], [1e9, `G${unit}`], [1e12, `T${unit}`]]);
const percent = (x) => `${(100 * x).toFixed(x < 0.0995 ? 1 : 0)} %`;

// -- Selecting a step: in the strip, the table and the graph at once -------------------------------------------------

let selected = null;
function select(number, scrollTo) {
  selected = selected === number && !scrollTo ? null : number;
  for (const marked of document.querySelectorAll(".selected")) marked.classList.remove("selected");
  for (const shown of document.querySelectorAll("tr.detail")) shown.remove();
  if (selected === null) return;
  for (const found of document.querySelectorAll(`[data-step="${selected}"]`)) found.classList.add("selected");
  const row = document.querySelector(`tr.step[data-step="${selected}"]`);
  row.after(detail(report.steps[selected]));
  if (scrollTo) row.scrollIntoView({ block: "center", behavior: "smooth" });
}

// -- Head -----------------------------------------------------------------------------------------------------------

function head() {
  const sources = new Set(report.steps.map((step) => step.time_source));
  const known = [...sources].map((source) => SOURCES[source]).filter(Boolean).join(", partly ");
  const flops = report.steps.reduce((sum, step) => sum + step.flops, 0);
  const moved = report.steps.reduce((sum, step) => sum + step.bytes, 0);
  const sizes = Object.entries(report.sizes).map(([name, value]) => `${name} = ${value}`).join(", ");
  const figure = (value, text) => element("div", {}, element("b", {}, value), element("span", {}, text));
  const toggle = () => {
    const dark = matchMedia("(prefers-color-scheme: dark)").matches;
    const now = document.documentElement.dataset.theme || (dark ? "dark" : "light");
    document.documentElement.dataset.theme = now === "dark" ? "light" : "dark";
  };
  root.append(
    element("header", {},
      element("h1", {}, report.name || "engine"),
      element("span", { class: "soft" }, `${report.target} · ${report.producer}${sizes ? ` · shown for ${sizes}` : ""}`),
      element("button", { onclick: toggle }, "light / dark")),
    element("div", { class: "soft" }, `${report.inputs.join(", ")} → ${report.outputs.join(", ")}`),
    element("div", { class: "figures" },
      figure(time(report.seconds), `all steps: ${known}`),
      figure(report.bound_seconds > report.seconds ? "–" : percent(report.seconds ? report.bound_seconds / report.seconds : 0), `of the roofline (${report.machine.name})`),
      figure(`${report.graph.rows.filter((row) => row.op !== "input").length} → ${report.steps.length}`, "operations → kernels"),
      figure(rate(flops, "FLOP"), `${rate(report.seconds ? flops / report.seconds : 0, "FLOP/s")}`),
      figure(bytes(moved), `moved, ${rate(report.seconds ? moved / report.seconds : 0, "B/s")}`),
      figure(String(report.transposes.steps), `steps only transpose: ${bytes(report.transposes.bytes)}`),
      figure(bytes(report.weight_bytes), "weights"),
      figure(bytes(report.arena_bytes), "memory of one call")));
}

function legend() {
  const present = new Set(report.steps.map((step) => step.bound));
  return element("div", { class: "legend" }, ...Object.entries(KINDS).filter(([kind]) => present.has(kind)).map(
    ([kind, text]) => element("span", {}, element("i", { class: kind }), `${kind}: ${text}`)));
}

function strip() {
  root.append(
    element("h2", {}, "Time ", element("small", {}, "every step as wide as its share; click one")),
    element("div", { class: "strip" }, ...report.steps.map((step) => element("i", {
      class: step.bound, "data-step": step.number, style: `flex: ${Math.max(step.share, 1e-4)}`,
      title: `${step.name}\n${step.kernel}, ${time(step.seconds)}, ${percent(step.share)}`,
      onclick: () => select(step.number, true),
    }))), legend());
}

// -- Steps ----------------------------------------------------------------------------------------------------------

const COLUMNS = [
  ["#", (s) => s.number, (s) => String(s.number), "number"],
  ["step", (s) => s.name, (s) => element("span", {}, s.short, element("div", { class: "soft mono" }, s.name)), ""],
  ["kernel", (s) => s.kernel, (s) => element("code", {}, s.kernel), ""],
  ["in your model", (s) => s.module, (s) => element("span", { class: "soft" }, s.module), ""],
  ["time", (s) => s.seconds, (s) => (s.time_source === "estimated" ? "≈ " : "") + time(s.seconds), "number"],
  ["share", (s) => s.share, (s) => element("span", {}, `${percent(s.share)} `, bar(s.share / maximum, s.bound)), "number"],
  ["bound", (s) => s.bound, (s) => element("span", { class: `chip ${s.bound}`, title: KINDS[s.bound] }, s.bound), ""],
  ["of roofline", (s) => s.reached, (s) => s.reached === null ? "" : element("span", {}, `${percent(s.reached)} `, bar(s.reached, "none")), "number"],
  ["B/s", (s) => s.bytes / s.seconds, (s) => (s.seconds ? rate(s.bytes / s.seconds, "B/s") : ""), "number"],
  ["FLOP/s", (s) => s.flops / s.seconds, (s) => (s.seconds ? rate(s.flops / s.seconds, "") : ""), "number"],
  ["chosen", (s) => choice(s).source, (s) => element("span", { class: "soft" }, chosenText(s)), ""],
];
const maximum = Math.max(1e-9, ...report.steps.map((step) => step.share));
const bar = (part, kind) => element("span", { class: `bar ${kind}`, style: `width: ${Math.round(54 * part)}px` });
const choice = (step) => step.evidence.choice || { number: 0, source: "", why: "" };
const tried = (step) => step.evidence.candidates || [];

function chosenText(step) {
  const count = tried(step).length;
  const measured = tried(step).filter((candidate) => candidate.microseconds !== undefined).length;
  if (count < 2) return "";
  return measured ? `fastest of ${measured} timed, of ${count}` : `estimate, of ${count}`;
}

function steps() {
  const body = element("tbody");
  let order = 0, rising = true;
  const fill = () => {
    const key = COLUMNS[order][1];
    const sorted = [...report.steps].sort((a, b) => (key(a) < key(b) ? -1 : key(a) > key(b) ? 1 : a.number - b.number));
    if (!rising) sorted.reverse();
    body.replaceChildren(...sorted.map((step) => element("tr",
      { class: "step", "data-step": step.number, onclick: () => select(step.number, false) },
      ...COLUMNS.map(([, , cell, kind]) => element("td", { class: kind }, cell(step))))));
  };
  const heads = COLUMNS.map(([title, , , kind], number) => element("th", {
    class: kind, onclick: () => { rising = number === order ? !rising : kind !== "number"; order = number; selected = null; fill(); },
  }, title));
  fill();
  root.append(
    element("h2", {}, "Steps ", element("small", {}, "click a row for its operations and the kernels considered, a title to sort")),
    element("div", { class: "scroll", style: "max-height: 760px" },
      element("table", {}, element("thead", {}, element("tr", {}, ...heads)), body)));
}

function detail(step) {
  const operations = step.operations.map((entry) => element("li", {},
    element("code", {}, `${entry.op} %${entry.value} `), element("span", { class: "soft" }, entry.source)));
  const facts = [["grid", step.grid.join(" × ")], ["bytes", bytes(step.bytes)], ["operations", rate(step.flops, "FLOP")],
    ["roofline", `${time(step.bound_seconds)} (${step.bound})`], ["time", `${time(step.seconds)}, ${SOURCES[step.time_source]}`]];
  if (step.launch) facts.push(["CTA", `${step.launch.threads} threads, ${bytes(step.launch.shared_bytes)} shared`]);
  if (step.resources) facts.push(["registers", `${step.resources.registers}, ${step.resources.spill_stores} bytes spilled`]);
  const constants = Object.entries(step.constants).map(([name, value]) => `${name} = ${value}`).join(", ");
  if (constants) facts.push(["constants", constants]);
  if (step.lane || step.after.length) {
    facts.push(["stream", `${step.lane}${step.after.length ? `, behind ${step.after.join(", ")}` : ""}`]);
  }
  if (step.choices > 1) facts.push(["variants", `${step.choices}, by size`]);
  const number = choice(step).number;
  const rows = tried(step).map((candidate, index) => [candidate, index]).sort(([a], [b]) =>
    (a.microseconds ?? 1e12) - (b.microseconds ?? 1e12) || a.seconds - b.seconds);
  const table = element("table", {},
    element("tr", {}, ...["candidate", "expected", "measured", ""].map((t, n) => element("th", { class: n && n < 3 ? "number" : "" }, t))),
    ...rows.map(([candidate, index]) => element("tr", { class: index === number ? "chosen" : "" },
      element("td", {}, candidate.label || candidate.name),
      element("td", { class: "number" }, time(candidate.seconds)),
      element("td", { class: "number" }, candidate.microseconds === undefined ? "" : time(candidate.microseconds * 1e-6)),
      element("td", {}, index === number ? "chosen" : candidate.failure || ""))));
  const reasons = Object.entries(step.evidence.reasons || {}).map(([key, value]) => `${key}: ${[value].flat().join(", ")}`);
  return element("tr", { class: "detail" }, element("td", { colspan: COLUMNS.length }, element("div", { class: "columns" },
    element("div", {}, element("h3", {}, "Operations"), element("ul", { class: "plain" }, ...operations),
      element("h3", {}, "Launch"),
      element("table", {}, ...facts.map(([key, value]) => element("tr", {}, element("td", { class: "soft" }, key), element("td", {}, value))))),
    element("div", {}, element("h3", {}, "Kernels considered"), table,
      element("p", { class: "soft" }, [choice(step).why, ...reasons].filter(Boolean).join(" · "))))));
}

// -- Memory ---------------------------------------------------------------------------------------------------------

function memory() {
  if (!report.arena.length || !report.steps.length) return;
  const width = Math.max(root.clientWidth - 52, 9 * report.steps.length), height = 260, left = 74, bottom = 24;
  const total = Math.max(report.arena_bytes, 1), count = report.steps.length;
  const x = (step) => left + (width - left - 8) * step / count, y = (offset) => 8 + (height - 8) * (1 - offset / total);
  const live = report.steps.map((step) => report.arena.reduce(
    (sum, stay) => sum + (stay.first <= step.number && step.number <= stay.last ? stay.bytes : 0), 0));
  const boxes = report.arena.map((stay) => drawing("rect", {
    x: x(stay.first), width: Math.max(1, x(stay.last + 1) - x(stay.first) - 0.6), y: y(stay.offset + stay.bytes),
    height: Math.max(0.6, y(stay.offset) - y(stay.offset + stay.bytes) - 0.4), fill: "var(--memory)", opacity: 0.55, rx: 1.5,
  }, drawing("title", {}, `${stay.name}: ${bytes(stay.bytes)}, steps ${stay.first} to ${stay.last}`)));
  const line = live.map((value, step) => `${step ? "L" : "M"}${x(step)},${y(value)}L${x(step + 1)},${y(value)}`).join("");
  const marks = [0, 0.25, 0.5, 0.75, 1].flatMap((part) => [
    drawing("line", { class: "axis", x1: left, x2: width - 8, y1: y(part * total), y2: y(part * total) }),
    drawing("text", { class: "soft", x: left - 8, y: y(part * total) + 4, "text-anchor": "end" }, bytes(part * total))]);
  const peak = report.arena_least_bytes;
  root.append(
    element("h2", {}, "Memory over time ", element("small", {},
      `places of tensors in the arena, step by step; the line is what is alive: at most ${bytes(peak)}, the arena is ${(total / Math.max(peak, 1)).toFixed(2)} times that`)),
    element("div", { class: "scroll" }, drawing("svg", { width, height: height + bottom, viewBox: `0 0 ${width} ${height + bottom}` },
      ...marks, ...boxes, drawing("path", { d: line, fill: "none", stroke: "var(--launch)", "stroke-width": 1.8 }),
      drawing("text", { class: "soft", x: left, y: height + 18 }, "step 0"),
      drawing("text", { class: "soft", x: width - 8, y: height + 18, "text-anchor": "end" }, `step ${count - 1}`))));
}

// -- Graph ----------------------------------------------------------------------------------------------------------

function graph() {
  const rows = report.graph.rows, pitch = 20, lane = 13;
  const deepest = Math.max(0, ...rows.map((row) => row.lane));
  const dots = 14 + lane * (deepest + 1), text = dots + 14, boxes = text + 560, width = boxes + 560;
  const X = (row) => 12 + lane * row.lane, Y = (number) => 14 + pitch * number;
  const parts = [];
  rows.forEach((row, number) => row.inputs.forEach((source) => {
    const from = rows[source], turn = Y(number) - pitch * 0.9;
    parts.push(drawing("path", { class: "edge", d: from.lane === row.lane
      ? `M${X(from)},${Y(source)}V${Y(number)}`
      : `M${X(from)},${Y(source)}V${Math.max(turn, Y(source))}C${X(from)},${Y(number)} ${X(row)},${turn} ${X(row)},${Y(number)}` }));
  }));
  rows.forEach((row, number) => {
    const step = row.step === null ? null : report.steps[row.step];
    parts.push(drawing("circle", { cx: X(row), cy: Y(number), r: 4.2, fill: step ? `var(--${step.bound})` : "var(--none)" },
      drawing("title", {}, `%${row.name} ${row.type}`)));
    const label = drawing("text", { x: text, y: Y(number) + 4 }, row.op === "input" ? `input ${row.name}` : row.op);
    label.append(drawing("tspan", { class: "soft", dx: 8 }, row.type));
    if (row.source) label.append(drawing("tspan", { class: "soft", dx: 8 }, row.source.length > 48 ? `…${row.source.slice(-47)}` : row.source));
    parts.push(label);
  });
  for (let first = 0; first < rows.length;) {
    let last = first;
    while (last + 1 < rows.length && rows[last + 1].step === rows[first].step) last += 1;
    const step = rows[first].step === null ? null : report.steps[rows[first].step];
    if (step) {
      const top = Y(first) - pitch / 2 + 2, height = pitch * (last - first + 1) - 4;
      const launches = report.steps.filter((other) => other.group === step.group);
      const sum = (key) => launches.reduce((total, launch) => total + launch[key], 0);
      const kernels = launches.map((launch) => `${launch.number} ${launch.kernel}`).join(", ");
      const name = drawing("text", { x: boxes + 16, y: top + height / 2 + 4 }, kernels);
      name.append(drawing("tspan", { class: "soft", dx: 10 }, `${time(sum("seconds"))}  ${percent(sum("share"))}  ${step.bound}`));
      parts.push(drawing("g", { class: "kernel", "data-step": step.number, onclick: () => select(step.number, true) },
        drawing("rect", { class: "group", x: boxes, y: top, width: 540, height, rx: 5 }),
        drawing("rect", { x: boxes, y: top, width: 5, height, rx: 2, fill: `var(--${step.bound})` }), name));
    }
    first = last + 1;
  }
  const height = Y(rows.length) + 4;
  root.append(
    element("h2", {}, "Graph before and after fusion ", element("small", {},
      "left: operations of your model, constants and norms folded; right: the kernels that compute them; grey dots are views, which cost nothing")),
    element("div", { class: "scroll", style: "max-height: 760px" },
      drawing("svg", { width, height, viewBox: `0 0 ${width} ${height}` }, ...parts)));
}

// -- Precisions -----------------------------------------------------------------------------------------------------

function search() {
  const found = report.search;
  if (!found) return;
  const width = 560, height = 260, left = 74, bottom = 40, points = found.points;
  const slowest = Math.max(...points.map((point) => point.seconds), 1e-12);
  const most = Math.max(found.max_drop, ...points.map((point) => point.drop), 1e-12) * 1.1;
  const x = (seconds) => left + (width - left - 12) * seconds / slowest / 1.05;
  const y = (drop) => 8 + (height - 8) * (1 - Math.max(drop, 0) / most);
  const text = (drop) => `${(100 * drop).toPrecision(3)} %`;
  const bound = drawing("line", { x1: left, x2: width, y1: y(found.max_drop), y2: y(found.max_drop), stroke: "var(--launch)", "stroke-dasharray": "4 3" });
  const dots = points.map((point) => drawing("circle", {
    cx: x(point.seconds), cy: y(point.drop), r: 5, fill: point.drop <= found.max_drop ? "var(--tensor)" : "var(--launch)",
  }, drawing("title", {}, `${point.layers} layers in narrow numbers: ${time(point.seconds)}, drop ${text(point.drop)}`)));
  const cell = (row, name) => element("td", {}, name in row.candidates
    ? `${time(row.candidates[name][0])}, ${percent(row.candidates[name][1])}` : "");
  const names = [...new Set(found.layers.flatMap((row) => Object.keys(row.candidates)))];
  root.append(
    element("h2", {}, "Accuracy against speed ", element("small", {},
      `each dot is an assignment of formats to layers that was tried; the line is the bound. On ${found.held_back ? `${found.held_back} ` : ""}samples that decided nothing the engine loses ${text(found.drop)} (${found.metric}), a run takes ${time(found.seconds)}, in floats ${time(found.float_seconds)}`)),
    element("div", { class: "scroll" }, drawing("svg", { width, height: height + bottom, viewBox: `0 0 ${width} ${height + bottom}` },
      bound, ...dots,
      drawing("text", { class: "soft", x: left - 8, y: y(found.max_drop) + 4, "text-anchor": "end" }, text(found.max_drop)),
      drawing("text", { class: "soft", x: left, y: height + 18 }, "0"),
      drawing("text", { class: "soft", x: width - 12, y: height + 18, "text-anchor": "end" }, `${time(slowest)} of all layers`))),
    element("div", { class: "scroll", style: "max-height: 400px" }, element("table", {},
      element("tr", {}, ...["layer", "operation", ...names, "chosen", "why"].map((name) => element("th", {}, name))),
      ...found.layers.map((row) => element("tr", {}, element("td", {}, row.name), element("td", {}, row.op),
        ...names.map((name) => cell(row, name)), element("td", {}, row.chosen), element("td", {}, row.why))))));
}

function advice() {
  if (!report.advice.length) return;
  root.append(element("h2", {}, "What you can change"),
    element("div", { class: "scroll", style: "max-height: 300px; padding: 8px 14px" },
      element("ul", { class: "plain" }, ...report.advice.map((text) => element("li", {}, text)))));
}

function remarks() {
  if (!report.remarks.length) return;
  root.append(element("h2", {}, "What the compiler decided"),
    element("div", { class: "scroll", style: "max-height: 300px; padding: 8px 14px" },
      element("ul", { class: "plain" }, ...report.remarks.map((text) => element("li", {}, text)))));
}

head();
strip();
steps();
memory();
graph();
search();
advice();
remarks();
const wanted = /^#step=(\d+)$/.exec(location.hash); // a link to a step
if (wanted && report.steps[wanted[1]]) select(Number(wanted[1]), false);
