// Wires the page: rows open panels, the filter filters, the address names a chart, colours follow the reader.
const byId = (id) => report.series.find((series) => series.id === id);

for (const button of document.querySelectorAll(".open")) {
  const series = byId(button.dataset.series);
  button.addEventListener("click", () => {
    const panel = panels.get(series.id);
    if (panel) closePanel(panel);
    else {
      openPanel(series, { focus: true });
      history.replaceState(null, "", `#series-${series.id}`);
    }
  });
}

const allRows = document.getElementById("all-rows");
allRows?.addEventListener("click", () => {
  const all = document.getElementById("overview").classList.toggle("all");
  allRows.setAttribute("aria-expanded", String(all));
  allRows.textContent = all ? "Show the worst only" : `Show all ${document.querySelectorAll("#overview tbody tr").length} series`;
});

const filter = document.getElementById("filter");
filter?.addEventListener("input", () => {
  const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
  document.getElementById("overview").classList.toggle("all", words.length > 0 || allRows?.getAttribute("aria-expanded") === "true");
  for (const row of document.querySelectorAll("#overview tbody tr")) {
    const text = row.textContent.toLowerCase();
    row.classList.toggle("unmatched", !words.every((word) => text.includes(word)));
  }
});

const THEMES = ["system", "light", "dark"];
const themeButton = document.getElementById("theme");
function redrawAll() {
  for (const panel of panels.values()) redraw(panel);
  for (const draw of seen) draw();
}
themeButton.addEventListener("click", () => {
  const root = document.documentElement;
  const next = THEMES[(THEMES.indexOf(root.dataset.theme ?? "system") + 1) % THEMES.length];
  if (next === "system") delete root.dataset.theme;
  else root.dataset.theme = next;
  themeButton.textContent = `Colours: ${next}`;
  themeButton.setAttribute("aria-label", `Colours: ${next}`);
  redrawAll();
});
window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redrawAll);

setUpSweeps();
setUpTrace();
const wanted = byId(location.hash.replace("#series-", ""));
const worst = document.querySelector(".open");
if (wanted || worst) {
  openPanel(wanted ?? byId(worst.dataset.series), { focus: Boolean(wanted) }).then(() => {
    document.documentElement.dataset.firstChart = String(Math.round(performance.now()));
  });
}
