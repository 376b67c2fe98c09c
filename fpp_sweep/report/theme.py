"""The page's stylesheet and the script that draws its plots, both inline."""

STYLE = """
:root { color-scheme: light dark; --ink: #1d2127; --faint: #5c6470; --paper: #ffffff; --card: #f6f7f9; --line: #dfe3e8;
  --mark: #1f63b5; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e8eb; --faint: #9aa3af; --paper: #14171b; --card: #1c2026; --line: #343b45; --mark: #7db4f5; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1.25rem; max-width: 76rem; background: var(--paper); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", "Noto Sans", sans-serif; }
h1 { font-size: 1.5rem; margin: 0 0 .25rem; overflow-wrap: anywhere; }
h2 { font-size: 1.15rem; margin: 2.25rem 0 .5rem; }
p { max-width: 52rem; margin: .4rem 0; overflow-wrap: anywhere; }
.faint { color: var(--faint); }
.warn { border-left: 4px solid #d98a1f; padding-left: .75rem; }
.wide { overflow-x: auto; }
.plot { min-height: 6rem; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .7rem; text-align: right; border-bottom: 1px solid var(--line); white-space: nowrap; }
thead th { color: var(--faint); font-weight: 600; vertical-align: bottom; }
th.group { text-align: center; border-left: 1px solid var(--line); }
td.first { border-left: 1px solid var(--line); }
tbody th, td.words, th.words { text-align: left; font-weight: 600; }
td.words { font-weight: 400; white-space: normal; overflow-wrap: anywhere; min-width: 9rem; max-width: 36rem; }
tbody th { position: sticky; left: 0; background: var(--paper); white-space: normal; overflow-wrap: anywhere;
  min-width: 8.5rem; max-width: 16rem; }
small { display: block; font-weight: 400; color: var(--faint); }
tr.baseline th { font-weight: 400; }
tr.best td, tr.best th { color: var(--mark); }
#details { background: var(--card); border: 1px solid var(--line); border-radius: 6px; padding: .75rem 1rem;
  margin: .75rem 0; overflow-x: auto; }
#details h3 { margin: 0 0 .4rem; font-size: 1rem; }
#details dl { display: grid; grid-template-columns: repeat(auto-fill, minmax(17rem, 1fr)); gap: 0 1.5rem; margin: 0; }
#details div { display: flex; justify-content: space-between; gap: 1rem; border-bottom: 1px dotted var(--line); }
#details dt { color: var(--faint); } #details dd { margin: 0; overflow-wrap: anywhere; text-align: right; }
@media (max-width: 40rem) { body { padding: .75rem; font-size: 14px; } th, td { padding: .25rem .45rem; }
  td.words { min-width: 11rem; } tbody th { min-width: 7.2rem; } }
"""

SCRIPT = """
"use strict";
const sheet = JSON.parse(document.getElementById("sheet").textContent);
const dark = window.matchMedia("(prefers-color-scheme: dark)");

function themed(layout) {
  const css = getComputedStyle(document.documentElement);
  const ink = css.getPropertyValue("--ink").trim(), line = css.getPropertyValue("--line").trim();
  const card = css.getPropertyValue("--card").trim();
  const axis = {gridcolor: line, zerolinecolor: line, linecolor: line, tickcolor: line, automargin: true};
  return {...layout, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    font: {color: ink, size: 12, family: getComputedStyle(document.body).fontFamily},
    hoverlabel: {bgcolor: card, bordercolor: line, font: {color: ink}, align: "left"},
    xaxis: {...axis, ...layout.xaxis}, yaxis: {...axis, ...layout.yaxis}};
}

function details(name) {
  const box = document.getElementById("details"), config = sheet.configs[name];
  if (!config) return;
  box.replaceChildren();
  const title = document.createElement("h3"), list = document.createElement("dl");
  title.textContent = name;
  for (const [key, value] of Object.entries(config)) {
    const row = document.createElement("div"), term = document.createElement("dt"), text = document.createElement("dd");
    term.textContent = key;
    text.textContent = value;
    row.append(term, text);
    list.append(row);
  }
  box.append(title, list);
}

function draw(first) {
  for (const plot of sheet.plots) {
    const box = document.getElementById(plot.name);
    const layout = themed(plot.layout);
    Plotly.react(box, plot.traces, layout, {responsive: true, displaylogo: false}).then(() => {
      if (first) box.on("plotly_click", event => details(event.points[0].customdata));
    });
  }
}

draw(true);
dark.addEventListener("change", () => draw(false));
"""
