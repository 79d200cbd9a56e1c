// A panel for one series: controls, chart, pointer and keyboard cursor, legend and table.
const panels = new Map();
const RANGES = [50, 200, 1000];
const TABLE_ROWS = 200;
const FIRST_VIEW = 200;
const LEAD = 40;
const FACTS = 8;
const LEGEND = [
  ["pass", "●", "pass: median of the launches"], ["regression", "■", "regression"], ["improvement", "★", "improvement"],
  ["inconclusive", "◇", "inconclusive"], ["invalid", "✕", "invalid"], ["no-baseline", "○", "no baseline yet"],
];

function describe(runs, entry, i) {
  const { series, points } = entry;
  const run = points.run[i];
  const environment = runs.environments[runs.environment[run]];
  const change = points.change[i] === null ? "–"
    : `${signed(points.change[i])}${points.low[i] === null ? "" : ` (${interval(points.low[i], points.high[i])})`}`;
  const facts = (set) => Object.entries(set)
    .filter(([name, value]) => value !== null && value !== false && name === name.toLowerCase()).slice(0, FACTS)
    .map(([name, value]) => (value === true ? factName(name) : `${factName(name)} ${value}`)).join(", ");
  const launches = points.launches[i];
  return [
    ["commit", `${commitName(runs, run)} ${runs.subject[run] ?? ""}`],
    ["author", `${runs.author[run] ?? "not known"}, ${minutes(runs.time[run])}`],
    ["branch", runs.branch[run] ?? "not known"],
    ["run", `${minutes(runs.started_at[run])} UTC`],
    ["value", `${format(points.value[i], series.unit)}, median of ${launches.length}`],
    ["launches", launches.slice(0, 8).map((value) => format(value, series.unit)).join(", ")
      + (launches.length > 8 ? ` and ${launches.length - 8} more` : "")],
    ["baseline", format(points.baseline[i], series.unit)],
    ["change", change],
    ["verdict", points.verdict[i]],
    ["machine", facts(environment.must_match)],
    ["software", facts(environment.reported)],
  ].filter(([, value]) => value !== "").map(([name, value]) => [name, visible(value)]);
}

function pointFacts(runs, entry, i) {
  return element("dl", { class: "facts-of-point" }, ...describe(runs, entry, i).flatMap(([name, value]) =>
    [element("dt", {}, name), element("dd", {}, value)]));
}

function openCommit(runs, run) {
  const url = commitUrl(runs, run);
  if (url) window.open(url, "_blank", "noopener,noreferrer");
}

// The nearest point to a place in the chart, by pixels; dense charts stay easy to point at.
function nearest(panel, x, y) {
  const { chart, entries } = panel;
  const xScale = 900 / (chart.xRange.end - chart.xRange.start);
  const yScale = 300 / (chart.yRange.end - chart.yRange.start);
  let best = null;
  entries.forEach(({ points }, e) => points.value.forEach((value, i) => {
    const dx = (chart.xs[e][i] - x) * xScale;
    if (best && Math.abs(dx) > best.distance) return;
    const distance = Math.hypot(dx, ((value - y) * yScale) / 4);
    if (!best || distance < best.distance) best = { e, i, distance };
  }));
  return best;
}

function point(panel, event) {
  const { chart, floating, host } = panel;
  const found = nearest(panel, event.x, event.y);
  if (!found || found.distance > 60) { floating.hidden = true; return; }
  panel.at = found;
  chart.select(found.e, found.i);
  const facts = pointFacts(panel.runs, panel.entries[found.e], found.i);
  if (host.clientWidth < 600) { panel.readout.replaceChildren(facts); return; }
  floating.replaceChildren(facts);
  floating.hidden = false;
  const left = event.sx > host.clientWidth / 2;
  const aside = 16 + (left ? host.clientWidth - event.sx : event.sx);
  floating.style.left = left ? "auto" : `${aside}px`;
  floating.style.right = left ? `${aside}px` : "auto";
  floating.style.top = `${Math.max(0, event.sy - 40)}px`;
}

function listen(panel) {
  const { chart, floating } = panel;
  const finger = window.matchMedia("(pointer: coarse)").matches;
  if (!finger) {
    chart.figure.on_event("mousemove", (event) => point(panel, event));
    chart.figure.on_event("mouseleave", () => { floating.hidden = true; });
  }
  chart.figure.on_event("tap", (event) => {
    const found = nearest(panel, event.x, event.y);
    // A finger cannot hover: its first tap tells, the second on the same run opens.
    const known = panel.at && found && panel.at.e === found.e && panel.at.i === found.i;
    if (finger && !known) point(panel, event);
    else if (found && found.distance < 30) openCommit(panel.runs, panel.entries[found.e].points.run[found.i]);
  });
}

function onKey(panel, event) {
  if (event.target !== panel.figure || !panel.chart) return;
  const count = panel.entries[0].points.run.length;
  const at = panel.at && panel.at.e === 0 ? panel.at.i : count;
  const step = event.shiftKey ? 10 : 1;
  const next = { ArrowLeft: at - step, ArrowRight: at + step, Home: 0, End: count - 1 }[event.key];
  if (event.key === "Enter" && at < count) openCommit(panel.runs, panel.entries[0].points.run[at]);
  else if (event.key === "Escape") closePanel(panel);
  else if (next !== undefined) {
    const i = Math.min(count - 1, Math.max(0, next));
    panel.at = { e: 0, i };
    panel.chart.select(0, i);
    panel.readout.replaceChildren(pointFacts(panel.runs, panel.entries[0], i));
  } else return;
  event.preventDefault();
}

function setRange(panel, from, to) {
  const { chart } = panel;
  const room = panel.time ? 3.6e6 : 0.7;
  chart.xRange.setv({ start: from - room, end: to + room });
  chart.fit();
}

function lastRuns(panel, count) {
  const xs = panel.chart.xs[0];
  setRange(panel, count ? xs[Math.max(0, xs.length - count)] : Math.min(...panel.chart.xs.map((x) => x[0])),
    Math.max(...panel.chart.xs.map((x) => x.at(-1))));
}

// A long history opens on its end, far enough back to show the step that the latest verdict is about.
function firstView(panel) {
  const { points } = panel.entries[0];
  const count = points.run.length;
  if (count <= 2 * FIRST_VIEW) return;
  let step = count;
  while (step > 0 && points.verdict[step - 1] === points.verdict[count - 1]) step -= 1;
  const known = ["regression", "improvement"].includes(points.verdict[count - 1]) ? count - step + LEAD : 0;
  lastRuns(panel, Math.min(count, Math.max(FIRST_VIEW, known)));
}

function commitRange(panel) {
  const xs = panel.chart.xs[0];
  const runs = panel.entries[0].points.run;
  const find = (input, otherwise) => {
    const wanted = input.value.trim().toLowerCase();
    const i = wanted ? runs.findIndex((run) => (panel.runs.sha[run] ?? "").startsWith(wanted)) : otherwise;
    input.setAttribute("aria-invalid", String(i < 0));
    return i < 0 ? otherwise : i;
  };
  const ends = [find(panel.from, 0), find(panel.to, xs.length - 1)].map((i) => xs[i]);
  setRange(panel, Math.min(...ends), Math.max(...ends));
}

// One drawing after another: two at once would both land in the host.
function redraw(panel) {
  panel.drawing = (panel.drawing ?? Promise.resolve()).then(() => draw(panel));
  return panel.drawing;
}

async function draw(panel) {
  const { series } = panel;
  const other = report.series.find(({ id }) => id === panel.other);
  const chosen = other ? [series, other] : [series];
  const loaded = await Promise.all(chosen.map(loadPoints));
  panel.entries = chosen.map((one, e) => ({ series: one, points: loaded[e] }));
  panel.at = null;
  panel.floating.hidden = true;
  panel.chart = await drawChart(panel.host, panel.runs, panel.entries,
    { time: panel.time, log: panel.log, height: window.innerWidth < 600 ? 280 : 380 });
  firstView(panel);
  panel.section.dataset.points = String(panel.entries[0].points.run.length);
  const off = panel.chart.off.length ? `Off the chart: ${panel.chart.off.join(", ")}. ` : "";
  const restless = Object.entries(report.restless_facts).map(([fact, count]) => `${factName(fact)} (${count} times)`);
  panel.note.textContent = off + (restless.length ? `Changes too often to mark: ${visible(restless.join(", "))}.` : "");
  listen(panel);
}

function choice(panel, name, key, words) {
  const make = (value, text) => {
    const button = element("button", { type: "button", "aria-pressed": String(panel[key] === value) }, text);
    button.addEventListener("click", () => {
      panel[key] = value;
      for (const sibling of button.parentElement.querySelectorAll("button")) sibling.setAttribute("aria-pressed", String(sibling === button));
      redraw(panel);
    });
    return button;
  };
  return element("fieldset", {}, element("legend", {}, name), ...words.map(([value, text]) => make(value, text)));
}

function compareChoice(panel) {
  const { series } = panel;
  const machine = (one) => (one.fingerprint === series.fingerprint ? "" : ` on environment ${one.fingerprint.slice(0, 6)}`);
  const options = report.series.filter((one) => one.id !== series.id && one.unit === series.unit && one.count)
    .map((one) => element("option", { value: one.id }, visible(`${one.case} ${one.metric}${machine(one)}`)));
  const select = element("select", {}, element("option", { value: "" }, "nothing"), ...options);
  select.addEventListener("change", () => { panel.other = select.value; redraw(panel); });
  return element("label", {}, "Compare with ", select);
}

function controls(panel) {
  const button = (text, act) => {
    const made = element("button", { type: "button" }, text);
    made.addEventListener("click", () => panel.drawing.then(act));
    return made;
  };
  const count = panel.series.count;
  const sha = (text) => element("input", { class: "sha", placeholder: "commit", "aria-label": `${text} commit`, spellcheck: "false" });
  [panel.from, panel.to] = [sha("From"), sha("To")];
  for (const input of [panel.from, panel.to]) input.addEventListener("change", () => panel.drawing.then(() => commitRange(panel)));
  return element("div", { class: "tools" },
    choice(panel, "x:", "time", [[false, "commits"], [true, "time"]]),
    choice(panel, "y:", "log", [[false, "linear"], [true, "log"]]),
    element("fieldset", {}, element("legend", {}, "Show:"),
      ...RANGES.filter((range) => range < count).map((range) => button(`last ${range}`, () => lastRuns(panel, range))),
      button("all", () => lastRuns(panel, 0))),
    element("fieldset", {}, element("legend", {}, "From"), panel.from, "to", panel.to),
    compareChoice(panel));
}

function pointsTable(panel) {
  const { runs, entries: [entry] } = panel;
  const { points, series } = entry;
  const order = points.run.map((_, i) => i).reverse().slice(0, TABLE_ROWS);
  const rows = order.map((i) => {
    const run = points.run[i];
    const url = commitUrl(runs, run);
    const name = commitName(runs, run);
    const spread = points.launches[i];
    return [
      url ? element("a", { href: url, target: "_blank", rel: "noopener noreferrer" }, name) : name,
      visible(runs.subject[run] ?? ""), minutes(runs.started_at[run]), format(points.value[i], series.unit),
      `${format(Math.min(...spread), series.unit)} to ${format(Math.max(...spread), series.unit)} (${spread.length})`,
      format(points.baseline[i], series.unit), `${signed(points.change[i])} ${points.low[i] === null ? "" : interval(points.low[i], points.high[i])}`,
      points.verdict[i],
    ];
  });
  const caption = points.run.length > TABLE_ROWS ? `The last ${TABLE_ROWS} of ${points.run.length} runs, newest first` : `All ${points.run.length} runs, newest first`;
  return simpleTable(caption, ["Commit", "Subject", "Run (UTC)", "Median", "Launches", "Baseline", "Change", "Verdict"], rows);
}

function frame(panel) {
  const { series } = panel;
  const direction = series.better === "higher" ? "higher is better" : series.unit === "seconds" ? "lower is faster" : "lower is better";
  const close = element("button", { type: "button" }, "Close");
  close.addEventListener("click", () => closePanel(panel));
  panel.host = element("div", { class: "plot" });
  panel.floating = element("div", { class: "floating", hidden: true });
  panel.figure = element("div", { class: "figure", tabindex: "0", role: "group",
    "aria-label": visible(`Chart of ${series.case} ${series.metric}, ${series.count} runs. Arrow keys move along the runs, Enter opens the commit, Escape closes.`) },
    panel.host, panel.floating);
  panel.figure.addEventListener("keydown", (event) => onKey(panel, event));
  panel.readout = element("div", { class: "readout", "aria-live": "polite" });
  panel.note = element("p", { class: "quiet" });
  const table = element("details", {}, element("summary", {}, "Table of the runs"));
  table.addEventListener("toggle", () => {
    if (table.open && !table.querySelector("table")) table.append(element("div", { class: "points-table", tabindex: "0", role: "region", "aria-label": "Table of the runs" }, pointsTable(panel)));
  });
  const statistic = series.statistic === "value" ? "" : `, ${series.statistic} of each launch`;
  return element("section", { class: "panel", id: `series-${series.id}`, "aria-label": visible(`${series.case} ${series.metric}`) },
    element("header", {}, element("h3", {}, visible(series.case), " ", series.metric, " ",
      element("small", {}, `${direction}${statistic}`)), close),
    controls(panel), panel.figure, panel.readout, panel.note,
    element("ul", { class: "legend" },
      ...LEGEND.map(([verdict, mark, words]) => element("li", { class: `v-${verdict}` }, element("b", { "aria-hidden": "true" }, mark), ` ${words}`)),
      ...(panel.runs.trunk.includes(false) ? [element("li", {}, "hollow and off the line: other branches")] : []),
      element("li", {}, "faint dots: launches"), element("li", {}, "shaded: middle 90 % of the 20 sound runs before"),
      element("li", {}, "dashed grey: the gate's baseline"), element("li", {}, "verticals: environment changes and anchors")),
    table);
}

function rowsOf(panel) {
  return document.querySelectorAll(`.open[data-series="${panel.series.id}"]`);
}

function mark(panel, opened) {
  for (const button of rowsOf(panel)) {
    button.setAttribute("aria-expanded", String(opened));
    if (opened) button.setAttribute("aria-controls", panel.section.id);
    else button.removeAttribute("aria-controls");
    button.closest("tr").setAttribute("aria-current", String(opened));
  }
}

async function openPanel(series, { focus }) {
  let panel = panels.get(series.id);
  if (!panel) {
    panel = { series, runs: await loadRuns(), time: false, log: false, other: "", at: null };
    if (panels.has(series.id)) return panels.get(series.id);
    panels.set(series.id, panel);
    panel.section = frame(panel);
    document.getElementById("charts").prepend(panel.section);
    mark(panel, true);
    await redraw(panel);
  }
  if (focus) {
    panel.section.scrollIntoView({ block: "start" });
    panel.figure.focus({ preventScroll: true });
  }
  return panel;
}

function closePanel(panel) {
  panels.delete(panel.series.id);
  mark(panel, false);
  panel.section.remove();
  rowsOf(panel)[0]?.focus();
}
