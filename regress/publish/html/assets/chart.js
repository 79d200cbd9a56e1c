// One series over commits: launches faint, medians strong, and everything that explains a step.
const SHAPES = {
  pass: ["circle", "pass", true], regression: ["square", "regression", true],
  improvement: ["star", "improvement", true], inconclusive: ["diamond", "inconclusive", false],
  "no-baseline": ["circle", "quiet", false], invalid: ["x", "invalid", false], [UNJUDGED]: ["circle", "pass", true],
};
const QUIET_VERDICTS = new Set(["pass", UNJUDGED]);
const OUTSIDE_BAND = new Set(["invalid", "regression", "inconclusive"]);
const DENSE = 400;
const BAND_RUNS = 20;
const BAND_FEWEST = 5;
const OTHER_COLOURS = ["second"];

function xOf(runs, points, time) {
  return points.run.map((run) => (time ? Date.parse(runs.started_at[run]) : runs.x[run]));
}

// The 5 to 95 % range of the medians of the sound runs of the trunk before each run: what passed for normal then.
function trailingBand(runs, points) {
  const window = [];
  return points.value.map((value, i) => {
    const sorted = [...window].sort((a, b) => a - b);
    const at = (q) => sorted[Math.round(q * (sorted.length - 1))];
    if (runs.trunk[points.run[i]] && !OUTSIDE_BAND.has(points.verdict[i])) window.push(value);
    if (window.length > BAND_RUNS) window.shift();
    return sorted.length < BAND_FEWEST ? [NaN, NaN] : [at(0.05), at(0.95)];
  });
}

// The line of the trunk breaks where its environment ran without this metric, and at invalid runs.
function brokenLine(runs, entry, xs) {
  const fingerprint = entry.series.fingerprint;
  const has = new Map(entry.points.run.map((run, i) => [run, i]));
  const line = { x: [], y: [] };
  for (let run = entry.points.run[0]; run <= entry.points.run.at(-1); run++) {
    if (runs.environments[runs.environment[run]].fingerprint !== fingerprint || !runs.trunk[run]) continue;
    const i = has.get(run);
    const broken = i === undefined || entry.points.verdict[i] === "invalid";
    line.x.push(i === undefined ? NaN : xs[i]);
    line.y.push(broken ? NaN : entry.points.value[i]);
  }
  return line;
}

function drawEntry(figure, runs, entry, time, primary) {
  const { points } = entry;
  const xs = xOf(runs, points, time);
  const main = colour(primary ? "pass" : OTHER_COLOURS[0]);
  const dense = points.run.length > DENSE;
  if (primary) {
    const band = trailingBand(runs, points);
    figure.varea({ x: xs, y1: band.map(([low]) => low), y2: band.map(([, high]) => high),
      fill_color: main, fill_alpha: 0.13, name: "band" });
    figure.line({ x: xs, y: points.baseline.map((value) => value ?? NaN), line_color: colour("quiet"),
      line_dash: [5, 4], line_width: 1.3, name: "baseline" });
  }
  const launches = { x: [], y: [] };
  points.launches.forEach((values, i) => values.forEach((value) => {
    launches.x.push(xs[i]);
    launches.y.push(value);
  }));
  figure.scatter({ x: launches.x, y: launches.y, size: 4, fill_color: main, line_color: null, name: "launches" });
  const line = brokenLine(runs, entry, xs);
  figure.line({ x: line.x, y: line.y, line_color: main, line_width: dense ? 1.2 : 2, name: "median" });
  const shapes = points.verdict.map((verdict, i) => {
    const [marker, name, filled] = SHAPES[verdict];
    return [marker, name, filled && (runs.trunk[points.run[i]] || !QUIET_VERDICTS.has(verdict))];
  });
  const own = (name) => (primary || name !== "pass" ? colour(name) : main);
  figure.scatter({
    x: xs, y: points.value, marker: shapes.map(([marker]) => marker),
    size: points.verdict.map((verdict) => (QUIET_VERDICTS.has(verdict) ? (dense ? 3 : 6) : dense ? 8 : 11)),
    fill_color: shapes.map(([, name, filled]) => (filled ? own(name) : colour("panel"))),
    line_color: shapes.map(([, name]) => own(name)), line_width: 1.6, name: "points",
  });
  return xs;
}

function verticals(runs, entry, time) {
  const mine = (run) => runs.environments[runs.environment[run]].fingerprint === entry.series.fingerprint;
  const at = (run) => (time ? Date.parse(runs.started_at[run]) : runs.x[run]);
  const changes = new Map();
  for (const change of report.environment_changes.filter(({ run }) => mine(run))) {
    const words = `${factName(change.fact)} ${visible(change.before)} → ${visible(change.after)}`;
    changes.set(change.run, [...(changes.get(change.run) ?? []), words]);
  }
  const marks = [...changes].map(([run, words]) => ({ x: at(run), text: words.join(", "), kind: "environment" }));
  runs.accepted.forEach((accepted, run) => {
    if (!accepted || !mine(run) || (accepted.cases && !accepted.cases.includes(entry.series.case))) return;
    marks.push({ x: at(run), text: `anchor: ${visible(accepted.reason)}`, kind: "anchor" });
  });
  return marks.sort((a, b) => a.x - b.x);
}

// Words stand where the points to their right leave room: at the foot of the chart, or hanging from its top.
function drawVerticals(figure, marks, yRange, xs, values) {
  const middle = (yRange.start + yRange.end) / 2;
  const reach = (xs.at(-1) - xs[0]) / 25;
  return marks.map(({ x, text, kind }) => {
    const tint = colour(kind === "anchor" ? "anchor" : "environment");
    const near = values.filter((_, i) => xs[i] >= x && xs[i] <= x + reach);
    const hang = near.filter((value) => value < middle).length > near.length / 2;
    const edge = () => (hang ? yRange.end : yRange.start);
    const short = text.length > 42 ? `${text.slice(0, 41)}…` : text;
    const words = label({ x, y: edge(), y_offset: hang ? -5 : 5, angle: Math.PI / 2, text: short, text_baseline: "top",
      text_align: hang ? "right" : "left", x_offset: 3, text_color: tint });
    yRange.change.connect(() => { words.y = edge(); });
    figure.add_layout(new Bokeh.Span({ location: x, dimension: "height", line_color: tint,
      line_dash: kind === "anchor" ? "solid" : "dashed", line_width: 1.5 }));
    figure.add_layout(words);
    return { x, words };
  });
}

// Labels that would lie on each other are hidden until there is room.
function thinLabels(labels, range, width) {
  let last = -Infinity;
  for (const { x, words } of labels) {
    const place = ((x - range.start) / (range.end - range.start)) * width;
    words.visible = place >= 0 && place <= width && place - last > 16;
    if (words.visible) last = place;
  }
}

function drawSteps(figure, entry, xs) {
  for (const step of entry.series.change_points) {
    const i = entry.points.run.indexOf(step.run);
    if (i < 0) continue;
    figure.add_layout(label({ x: xs[i], y: entry.points.value[i], y_offset: step.change > 0 ? 12 : -26, x_offset: -4,
      text_align: "right", text: `${signed(step.change)} step`, text_font_style: "bold", border_line_color: colour("text"),
      padding: 3 }));
    figure.scatter({ x: [xs[i]], y: [entry.points.value[i]], marker: "circle", size: 17, fill_color: null,
      line_color: colour("text"), line_width: 1.5 });
  }
}

function drawLimits(figure, series, yRange) {
  const off = [];
  ["floor", "ceiling"].forEach((name, i) => {
    const limit = series.limits[i];
    if (limit === null) return;
    const words = `${name} ${format(limit, series.unit)}`;
    if (limit < yRange.start || limit > yRange.end) off.push(words);
    figure.add_layout(new Bokeh.Span({ location: limit, dimension: "width", line_color: colour("regression"),
      line_width: 1.5, line_dash: [2, 3] }));
    figure.add_layout(label({ x: 6, x_units: "screen", y: limit, y_offset: 2, text: words,
      text_color: colour("regression") }));
  });
  return off;
}

// From and to of what is drawn between two places, with room; a limit is taken in where it does not flatten the rest.
function yBounds(entries, xs, from, to, log) {
  let low = Infinity;
  let high = -Infinity;
  entries.forEach(({ points }, e) => points.launches.forEach((launches, i) => {
    if (xs[e][i] < from || xs[e][i] > to) return;
    for (const value of [...launches, points.value[i]]) {
      if (log && value <= 0) continue;
      low = Math.min(low, value);
      high = Math.max(high, value);
    }
  }));
  if (low > high) return [log ? 0.1 : 0, 1];
  const span = high - low || Math.abs(high) * 0.02 || 1;
  for (const limit of entries[0].series.limits) {
    if (limit === null || (log && limit <= 0)) continue;
    if (limit < low && low - limit < span) low = limit;
    if (limit > high && limit - high < span) high = limit;
  }
  if (log) return [low / 1.15, high * 1.15];
  const room = (high - low || span) * 0.12;
  return [low - room, high + room];
}

function xFormatter(runs, time) {
  if (time) return undefined;
  const shaAt = new Map(runs.x.map((x, i) => [Math.round(x), commitName(runs, i).slice(0, 7)]));
  return axisFormatter((ticks) => ticks.map((tick) => (Number.isInteger(tick) && shaAt.get(tick)) || ""));
}

// Draws the entries into host. Gives back xs (for each entry), ranges, limits that lie outside, and `select`.
async function drawChart(host, runs, entries, { time, log, height }) {
  const { series } = entries[0];
  const all = entries.flatMap(({ points }) => xOf(runs, points, time));
  const [least, most] = all.reduce(([a, b], x) => [Math.min(a, x), Math.max(b, x)], [Infinity, -Infinity]);
  const room = Math.max((most - least) * 0.02, time ? 3.6e6 : 0.7);
  const xRange = new Bokeh.Range1d({ start: least - room, end: most + room });
  const yRange = new Bokeh.Range1d({ start: 0, end: 1 });
  const figure = makeFigure({
    xType: time ? "datetime" : "linear", yType: log ? "log" : "linear", xRange, yRange, height,
    xLabel: time ? "time of the run (UTC)" : "commits in git order", yLabel: series.metric.replaceAll("_", " "),
    unit: series.unit, xFormatter: xFormatter(runs, time),
  });
  if (!time) figure.xaxis.ticker = new Bokeh.BasicTicker({ min_interval: 1, desired_num_ticks: window.innerWidth < 600 ? 4 : 9 });
  const xs = entries.map((entry, e) => drawEntry(figure, runs, entry, time, e === 0));
  const fit = () => {
    const [low, high] = yBounds(entries, xs, xRange.start, xRange.end, log);
    yRange.setv({ start: low, end: high });
  };
  fit();
  const labels = drawVerticals(figure, verticals(runs, entries[0], time), yRange, xs[0], entries[0].points.value);
  drawSteps(figure, entries[0], xs[0]);
  const off = drawLimits(figure, series, yRange);
  const cursor = figure.scatter({ x: [], y: [], size: 15, fill_color: null, line_color: colour("text"), line_width: 2 });
  const hair = new Bokeh.Span({ location: null, dimension: "height", line_color: colour("quiet"), line_width: 1 });
  figure.add_layout(hair);
  const launches = figure.renderers.filter(({ name }) => name === "launches");
  const thin = () => {
    const seen = xs[0].filter((x) => x >= xRange.start && x <= xRange.end).length;
    for (const { glyph } of launches) glyph.setv({ size: seen > DENSE ? 2 : 4, fill_alpha: seen > DENSE ? 0.15 : 0.28 });
    thinLabels(labels, xRange, Math.max(200, host.clientWidth - 110));
  };
  thin();
  xRange.change.connect(thin);
  yRange.setv({ reset_start: yRange.start, reset_end: yRange.end });
  xRange.setv({ reset_start: xRange.start, reset_end: xRange.end });
  await show(figure, host);
  const select = (e, i) => {
    cursor.data_source.data = { x: [xs[e][i]], y: [entries[e].points.value[i]] };
    hair.location = xs[e][i];
  };
  return { figure, xs, xRange, yRange, fit, off, select };
}
