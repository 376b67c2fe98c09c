"""The pages' stylesheet, their two scripts, all inline, and the colours of figures."""

# Paul Tol's bright scheme, for colour-blind readers; shapes and dashes tell the same apart in grey
PALETTE = ("#4477AA", "#EE6677", "#228833", "#AA3377", "#66CCEE", "#CCBB44", "#BBBBBB")
SHAPES = "osD^vP*Xhd"
DASHES = ("-", "--", "-.", ":")
INK, LINE, PAPER = "#1d2127", "#dfe3e8", "#ffffff"  # of figures; on a page they follow the reader's theme

_LIGHT = f"""--ink: {INK}; --faint: #5c6470; --paper: {PAPER}; --card: #f6f7f9; --line: {LINE};
  --mark: #1f63b5; --alarm: #a34700;"""
STYLE = f"""
:root {{ color-scheme: light dark; {_LIGHT} }}
@media (prefers-color-scheme: dark) {{ :root {{ --ink: #e6e8eb; --faint: #9aa3af; --paper: #14171b; --card: #1c2026;
  --line: #343b45; --mark: #7db4f5; --alarm: #ffb169; }} }}
@media print {{ :root {{ color-scheme: light; {_LIGHT} }} }}
"""
STYLE += """
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1.25rem; max-width: 76rem; background: var(--paper); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", "Noto Sans", sans-serif; }
h1 { font-size: 1.5rem; margin: 0 0 .25rem; overflow-wrap: anywhere; }
h2, h3 { overflow-wrap: anywhere; }
h2 { font-size: 1.15rem; margin: 2.25rem 0 .5rem; }
h3 { font-size: 1rem; margin: 1.25rem 0 .4rem; }
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
h3 small { display: inline; margin-left: .5rem; font-size: .85rem; }
th a { white-space: nowrap; }
small.agrees, td.agrees { color: var(--mark); }
small.differs, td.differs { color: var(--alarm); }
th button { all: unset; cursor: pointer; }
th button:focus-visible, .wide:focus-visible { outline: 2px solid var(--mark); outline-offset: 1px; }
th button::after { content: " \\2195"; opacity: .4; }
th[aria-sort="ascending"] button::after { content: " \\2191"; opacity: 1; }
th[aria-sort="descending"] button::after { content: " \\2193"; opacity: 1; }
a { color: var(--mark); }
pre { background: var(--card); border: 1px solid var(--line); border-radius: 6px; padding: .5rem .75rem;
  white-space: pre-wrap; overflow-wrap: anywhere; }
figure { margin: 1rem 0; }
figure svg { display: block; height: auto; }
figure svg * { stroke-linejoin: round; stroke-linecap: butt; }
figcaption { overflow-wrap: anywhere; color: var(--faint); max-width: 52rem; margin-top: .25rem; }
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
@page { size: A4 landscape; margin: 11mm; }
@media print { body { max-width: none; padding: 0; font-size: 9.5pt; }
  .wide { overflow: visible; } .screen, th button::after { display: none; } a { color: inherit; text-decoration: none; }
  table { font-size: 7.5pt; } th, td, td.words { padding: .12rem .3rem; min-width: 0; white-space: normal; }
  tbody th { position: static; min-width: 0; } figure svg { max-width: 100%; }
  table, thead, tr, h3, figure, .plot, pre { break-inside: avoid; } h2, h3 { break-after: avoid; } }
"""

TABLES = """
"use strict";
for (const table of document.querySelectorAll("table")) {
  const body = table.tBodies[0], original = [...body.rows], heads = [...[...table.tHead.rows].at(-1).cells];
  if (original.length < 2) continue;
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    if (!button.textContent) button.textContent = "name";
    head.append(button);
    head.setAttribute("aria-sort", "none");
    button.addEventListener("click", () => sort(body, original, heads, column));
  });
}

function sort(body, original, heads, column) {  // ascending, descending, as it was
  const next = {none: "ascending", ascending: "descending", descending: "none"};
  const order = next[heads[column].getAttribute("aria-sort")];
  heads.forEach(head => head.setAttribute("aria-sort", "none"));
  heads[column].setAttribute("aria-sort", order);
  if (order === "none") return body.append(...original);
  const text = row => row.cells[column].dataset.value ?? row.cells[column].textContent.trim();
  const filled = original.filter(text), sign = order === "ascending" ? 1 : -1;
  const numbers = filled.every(row => !Number.isNaN(parseFloat(text(row))));
  filled.sort((one, other) => sign * (numbers ? parseFloat(text(one)) - parseFloat(text(other))
    : text(one).localeCompare(text(other), undefined, {numeric: true})));
  body.append(...filled, ...original.filter(row => !text(row)));
}
"""

PLOTS = """
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
  box.className = "";
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
for (const query of [dark, window.matchMedia("print")]) query.addEventListener("change", () => draw(false));
"""
