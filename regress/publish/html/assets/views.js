// The two views beside the history: a sweep over message sizes, and the strips of one traced step.
const SWEEP_LINES = [["now", "pass", "solid", "circle"], ["baseline", "quiet", "dashed", "square"], ["anchor", "anchor", "dotted", "triangle"]];

function drawSweep(host, sweep) {
  const known = SWEEP_LINES.flatMap(([name]) => sweep[name]).concat(sweep.ceiling ?? []).filter((value) => value !== null && value > 0);
  const time = sweep.unit === "seconds";
  const top = Math.max(...known);
  const sizes = sweep.sizes;
  const figure = makeFigure({
    xType: "log", yType: time ? "log" : "linear", height: 300, unit: sweep.unit,
    xRange: new Bokeh.Range1d({ start: sizes[0] / 1.3, end: sizes.at(-1) * 1.3 }),
    yRange: new Bokeh.Range1d(time ? { start: Math.min(...known) / 1.3, end: top * 1.3 } : { start: 0, end: top * 1.1 }),
    xLabel: "message size", yLabel: sweep.metric.replaceAll("_", " "),
    xFormatter: unitFormatter("bytes"),
  });
  const most = window.innerWidth < 600 ? 4 : 8;
  const every = Math.ceil(sizes.length / most);
  figure.xaxis.ticker = new Bokeh.FixedTicker({ ticks: sizes.filter((_, i) => i % every === 0) });
  for (const [name, tint, dash, marker] of SWEEP_LINES.toReversed()) {
    const y = sweep[name].map((value) => value ?? NaN);
    if (y.every(Number.isNaN)) continue;
    figure.line({ x: sizes, y, line_color: colour(tint), line_dash: dash, line_width: 2 });
    figure.scatter({ x: sizes, y, marker, size: 7, fill_color: colour(tint), line_color: null, name });
  }
  if (sweep.ceiling) {
    figure.add_layout(new Bokeh.Span({ location: sweep.ceiling, dimension: "width", line_color: colour("text"), line_width: 1.5 }));
    figure.add_layout(label({ x: 6, x_units: "screen", y: sweep.ceiling, y_offset: -18, text: `nominal link rate ${format(sweep.ceiling, sweep.unit)}` }));
  }
  return show(figure, host);
}

function sweepTable(sweep) {
  const heads = ["Size", "Now", "Baseline", "Change", "Anchor", ...(sweep.ceiling ? ["Share of the link"] : [])];
  return simpleTable(`${visible(sweep.title)} ${sweep.metric}`, heads, sweep.sizes.map((size, i) => {
    const [now, baseline] = [sweep.now[i], sweep.baseline[i]];
    const change = now === null || !baseline ? null : now / baseline - 1;
    return [format(size, "bytes"), format(now, sweep.unit), format(baseline, sweep.unit), signed(change),
      format(sweep.anchor[i], sweep.unit), ...(sweep.ceiling ? [format(sweep.share[i], "ratio")] : [])];
  }));
}

function metricFigure(sweeps) {
  const host = element("div", { class: "plot", role: "img" });
  const select = element("select", {}, ...sweeps.map((sweep, i) => element("option", { value: String(i) }, sweep.metric)));
  const table = element("details", {}, element("summary", {}, "Table"));
  const draw = () => {
    const sweep = sweeps[Number(select.value)];
    host.setAttribute("aria-label", visible(`${sweep.metric} of ${sweep.title} over message sizes; the table below has the figures`));
    table.querySelector("table")?.remove();
    table.append(sweepTable(sweep));
    return drawSweep(host, sweep);
  };
  select.addEventListener("change", draw);
  return { draw, block: element("div", {}, element("label", {}, "Metric ", select), host, table) };
}

function setUpSweeps() {
  const section = document.getElementById("sweeps");
  if (!report.sweeps.length) return;
  const titles = [...new Set(report.sweeps.map(({ title }) => title))];
  const select = element("select", {}, ...titles.map((title) => element("option", { value: title }, visible(title))));
  const pair = element("div", { class: "sweep-pair" });
  const draw = () => {
    const mine = report.sweeps.filter(({ title }) => title === select.value)
      .sort((a, b) => /_p\d\d_/.test(a.metric) - /_p\d\d_/.test(b.metric));
    const figures = ["bytes_per_second", "seconds"].map((unit) => mine.filter((sweep) => sweep.unit === unit))
      .filter((group) => group.length).map(metricFigure);
    pair.replaceChildren(...figures.map(({ block }) => block));
    return Promise.all(figures.map((figure) => figure.draw()));
  };
  select.addEventListener("change", draw);
  section.append(element("div", { class: "tools" }, element("label", {}, "Workload ", select),
    element("span", { class: "quiet" }, "now: solid, circles; baseline: dashed, squares; anchor: dotted, triangles; reduction inside the switch can exceed the link")), pair);
  section.hidden = false;
  whenSeen(section, draw);
}

function drawStrips(host, trace) {
  const ranks = trace.strips.map(({ rank }) => rank);
  const ends = trace.strips.flatMap(({ compute, communication }) => [...compute, ...communication].map(([, end]) => end));
  const figure = makeFigure({
    height: Math.min(640, 80 + 56 * ranks.length), xLabel: "since the step began", yLabel: null,
    xRange: new Bokeh.Range1d({ start: 0, end: Math.max(...ends, 1e-9) }),
    yRange: new Bokeh.Range1d({ start: ranks.length - 0.5, end: -0.5 }), xFormatter: unitFormatter("seconds"),
  });
  figure.yaxis.ticker = new Bokeh.FixedTicker({ ticks: ranks.map((_, i) => i) });
  figure.yaxis.formatter = axisFormatter((ticks) => ticks.map((tick) => `rank ${ranks[tick] ?? ""}`));
  figure.ygrid.grid_line_color = null;
  for (const [kind, top, bottom] of [["compute", -0.4, -0.02], ["communication", 0.02, 0.4]]) {
    const boxes = { left: [], right: [], top: [], bottom: [] };
    trace.strips.forEach((strip, i) => strip[kind].forEach(([start, end]) => {
      boxes.left.push(start);
      boxes.right.push(end);
      boxes.top.push(i + top);
      boxes.bottom.push(i + bottom);
    }));
    figure.quad({ ...boxes, fill_color: colour(kind), line_color: null, name: kind });
  }
  return show(figure, host);
}

function drawSkew(host, trace) {
  const k = trace.collectives.map((_, i) => i + 1);
  const most = Math.max(...trace.collectives.map((one) => one.skew_seconds), 1e-9);
  const figure = makeFigure({
    height: 220, unit: "seconds", xLabel: "k-th collective of the step", yLabel: "skew and transfer",
    xRange: new Bokeh.Range1d({ start: 0, end: k.length + 1 }),
    yRange: new Bokeh.Range1d({ start: 0, end: 1.1 * Math.max(most, ...trace.collectives.map((one) => one.transfer_seconds)) }),
  });
  figure.quad({ left: k.map((i) => i - 0.4), right: k, bottom: k.map(() => 0), top: trace.collectives.map((one) => one.skew_seconds),
    fill_color: colour("regression"), line_color: null, name: "skew" });
  figure.quad({ left: k, right: k.map((i) => i + 0.4), bottom: k.map(() => 0), top: trace.collectives.map((one) => one.transfer_seconds),
    fill_color: colour("communication"), line_color: null, name: "transfer" });
  return show(figure, host);
}

function whoWaits(collectives) {
  const last = new Map();
  for (const { last_rank: rank } of collectives) last.set(rank, (last.get(rank) ?? 0) + 1);
  const [rank, times] = [...last].sort((a, b) => b[1] - a[1])[0];
  const waited = collectives.reduce((total, one) => total + one.skew_seconds, 0);
  return `Rank ${rank} arrives last in ${times} of ${collectives.length} collectives; all waits of this step add up to ${format(waited, "seconds")}.`;
}

function setUpTrace() {
  const { trace } = report;
  const section = document.getElementById("trace");
  if (!trace) return;
  const strips = element("div", { class: "plot", role: "img", "aria-label": visible(`Compute and communication of each rank, ${trace.title}`) });
  const skew = element("div", { class: "plot", role: "img", "aria-label": "Skew and transfer of each collective; the table below has the figures" });
  section.append(element("p", {}, visible(trace.title)), element("ul", { class: "legend" },
    element("li", { style: "--tone: var(--compute)" }, element("b", {}, "■"), " compute (upper half of a rank)"),
    element("li", { style: "--tone: var(--communication)" }, element("b", {}, "■"), " communication (lower half)")), strips);
  if (trace.collectives.length) {
    section.append(element("h3", {}, "Who waits for whom"), element("p", {}, whoWaits(trace.collectives)),
      element("ul", { class: "legend" },
        element("li", { style: "--tone: var(--regression)" }, element("b", {}, "■"), " skew: last start less first start (left bar)"),
        element("li", { style: "--tone: var(--communication)" }, element("b", {}, "■"), " transfer: the shortest rank (right bar)")),
      skew, element("details", {}, element("summary", {}, "Table of the collectives"), simpleTable("Collectives in order",
        ["Collective", "Skew", "Transfer", "Last rank"], trace.collectives.map((one) => [visible(one.name),
          format(one.skew_seconds, "seconds"), format(one.transfer_seconds, "seconds"), String(one.last_rank)]))));
  }
  if (trace.findings.length) {
    section.append(element("h3", {}, "What to try"), element("ul", {}, ...trace.findings.slice(0, 5).map((finding) =>
      element("li", {}, element("strong", {}, visible(finding.cause)), element("br"), `Try: ${visible(finding.suggestion)}`))));
  }
  section.hidden = false;
  whenSeen(section, () => Promise.all([drawStrips(strips, trace), trace.collectives.length ? drawSkew(skew, trace) : null]));
}
