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
thead th button { all: unset; cursor: pointer; }
thead th button::after { content: " \\2195"; opacity: .4; }
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
.tools { display: flex; flex-wrap: wrap; gap: .5rem 1rem; align-items: center; margin: .25rem 0; }
.tools > * { max-width: 100%; }
button, select, input { font: inherit; color: inherit; background: var(--card); border: 1px solid var(--line);
  border-radius: 6px; padding: .15rem .6rem; max-width: 100%; }
button[aria-pressed="true"] { border-color: var(--mark); color: var(--mark); }
tbody th button { all: unset; cursor: pointer; color: var(--mark); overflow-wrap: anywhere; }
:focus-visible, th button:focus-visible { outline: 2px solid var(--mark); outline-offset: 1px; }
.long { max-height: 34rem; overflow-y: auto; } .long thead th { position: sticky; top: 0; background: var(--paper);
  z-index: 2; }
.charts { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(19rem, 100%), 1fr)); gap: .5rem; }
.charts > * { min-width: 0; }
nav { display: flex; flex-wrap: wrap; gap: 0 .9rem; margin: .5rem 0; }
summary { cursor: pointer; color: var(--faint); }
dialog { background: var(--paper); color: var(--ink); border: 1px solid var(--line); border-radius: 6px;
  width: min(60rem, 94vw); max-height: 85vh; } dialog::backdrop { background: #0006; }
dialog h3 { margin: 0 0 .4rem; }
dialog dl { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(17rem, 100%), 1fr)); gap: 0 1.5rem; }
dialog div { display: flex; justify-content: space-between; gap: 1rem; border-bottom: 1px dotted var(--line); }
dialog dt { color: var(--faint); } dialog dd { margin: 0; overflow-wrap: anywhere; text-align: right; }
@media (max-width: 40rem) { body { padding: .75rem; font-size: 14px; } th, td { padding: .25rem .45rem; }
  td.words { min-width: 11rem; } tbody th { min-width: 7.2rem; } }
@page { size: A4 landscape; margin: 11mm; }
@media print { body { max-width: none; padding: 0; font-size: 9.5pt; }
  .wide, .long { overflow: visible; max-height: none; } .screen, dialog,
  thead th button::after { display: none; } a { color: inherit; text-decoration: none; }
  table { font-size: 7.5pt; } th, td, td.words { padding: .12rem .3rem; min-width: 0; white-space: normal; }
  tbody th { position: static; min-width: 0; } figure svg { max-width: 100%; }
  table, thead, tr, h3, figure, .plot, pre { break-inside: avoid; } h2, h3 { break-after: avoid; } }
"""

TABLES = """
"use strict";
for (const table of document.querySelectorAll("table")) {
  const body = table.tBodies[0], original = [...body.rows], heads = [...[...table.tHead.rows].at(-1).cells];
  if (original.length < 2) continue;
  const names = heads.map(head => head.textContent.trim().toLowerCase());
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    if (!button.textContent) button.textContent = "name";
    head.append(button);
    head.setAttribute("aria-sort", "none");
    button.addEventListener("click", () => sort(body, original, heads, column));
  });
  const input = table.id && document.querySelector(`input[data-filter="${table.id}"]`);
  if (!input) continue;
  const apply = () => filter(original, names, input.value, document.querySelector(`output[for="${table.id}"]`));
  input.addEventListener("input", apply);
  addEventListener("load", apply);  // what was typed before the page was loaded again
}

function sort(body, original, heads, column) {  // ascending, descending, as it was
  const next = {none: "ascending", ascending: "descending", descending: "none"};
  const order = next[heads[column].getAttribute("aria-sort")];
  heads.forEach(head => head.setAttribute("aria-sort", "none"));
  heads[column].setAttribute("aria-sort", order);
  if (order === "none") return body.append(...original);
  const filled = original.filter(row => text(row, column)), sign = order === "ascending" ? 1 : -1;
  const numbers = filled.every(row => !Number.isNaN(parseFloat(text(row, column))));
  filled.sort((one, other) => sign * (numbers ? parseFloat(text(one, column)) - parseFloat(text(other, column))
    : text(one, column).localeCompare(text(other, column), undefined, {numeric: true})));
  body.append(...filled, ...original.filter(row => !text(row, column)));
}

function text(row, column) { return row.cells[column].dataset.value ?? row.cells[column].textContent.trim(); }

function filter(rows, names, asked, count) {  // words that a row must have, and comparisons such as ece<5
  const compare = {"<": (a, b) => a < b, ">": (a, b) => a > b, "<=": (a, b) => a <= b, ">=": (a, b) => a >= b};
  const tests = asked.trim().toLowerCase().split(/\\s+/).map(word => {
    const [, name, sign, value] = word.match(/^(.+?)([<>]=?|=)(.+)$/) ?? [], column = names.indexOf(name);
    if (column < 0) return row => row.textContent.toLowerCase().includes(word);
    if (sign === "=") return row => text(row, column).toLowerCase() === value;
    return row => compare[sign](parseFloat(text(row, column)), parseFloat(value));
  });
  for (const row of rows) row.hidden = !tests.every(test => test(row));
  count.textContent = `${rows.filter(row => !row.hidden).length} of ${rows.length}`;
}

const every = 1000 * document.body.dataset.every;
if (every && /^(file|https?):/.test(location.protocol)) {  // not in another page's frame
  const asked = [...document.querySelectorAll("[data-filter], [data-group]")];
  const name = field => `${location.pathname} ${field.dataset.filter ?? field.dataset.group}`;
  for (const field of asked) field.value = sessionStorage[name(field)] ?? field.value;
  let used = 0;
  for (const kind of ["pointerdown", "keydown", "wheel", "touchmove"])
    addEventListener(kind, () => { used = Date.now(); }, {passive: true});
  setInterval(() => {
    if (Date.now() - used < every) return;
    for (const field of asked) sessionStorage[name(field)] = field.value;
    location.reload();
  }, every);
}
"""

PLOTS = """
"use strict";
const sheet = JSON.parse(document.getElementById("sheet").textContent);
const dark = window.matchMedia("(prefers-color-scheme: dark)"), box = document.getElementById("details");

function themed(layout) {
  const css = getComputedStyle(document.documentElement), colour = name => css.getPropertyValue(name).trim();
  const [ink, line, card] = ["--ink", "--line", "--card"].map(colour);
  const axis = {gridcolor: line, zerolinecolor: line, linecolor: line, tickcolor: line, automargin: true};
  const made = {...layout, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    font: {color: ink, size: 12, family: getComputedStyle(document.body).fontFamily},
    hoverlabel: {bgcolor: card, bordercolor: line, font: {color: ink}, align: "left"}};
  for (const name of new Set(["xaxis", "yaxis", ...Object.keys(layout).filter(key => /^[xy]axis/.test(key))]))
    made[name] = {...axis, ...layout[name]};
  return made;
}

function merged(old, changes) {  // into what is inside, too
  const made = {...old};
  for (const [key, value] of Object.entries(changes ?? {}))
    made[key] = value?.constructor === Object ? merged(old?.[key], value) : value;
  return made;
}

function draw(name) {
  const plot = sheet.plots[name], place = document.getElementById(name), first = !place.data;
  const asked = attribute => document.querySelector(`[data-${attribute}="${plot.group}"]`);
  const choice = plot.choices[asked("group")?.value ?? Object.keys(plot.choices)[0]] ?? {};
  const ranges = asked("all")?.ariaPressed === "true" ? {} : choice.near ?? plot.near;
  const layout = merged(plot.layout, choice.layout);
  for (const [axis, range] of Object.entries(ranges)) layout[axis] = {...layout[axis], range};
  const traces = plot.traces.map((trace, index) => merged(trace, choice.traces?.[index]));
  Plotly.react(place, traces, themed(layout), {responsive: true, displayModeBar: false});
  if (first) place.on("plotly_click", event => details(event.points[0].customdata));
}

function details(name) {
  if (!sheet.details[name]) return;
  const [title, list, close] = ["h3", "dl", "button"].map(tag => document.createElement(tag));
  title.textContent = name;
  close.textContent = "Close";
  close.addEventListener("click", () => box.close());
  for (const [key, value] of Object.entries(sheet.details[name])) {
    const [row, term, text] = ["div", "dt", "dd"].map(tag => document.createElement(tag));
    term.textContent = key;
    text.textContent = value;
    row.append(term, text);
    list.append(row);
  }
  box.replaceChildren(title, list, close);
  box.showModal();
}

async function start() {
  const packed = Uint8Array.from(atob(document.getElementById("plotly").textContent), letter => letter.charCodeAt(0));
  const plain = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  const script = document.createElement("script");
  script.textContent = await new Response(plain).text();
  document.head.append(script);
  const show = name => { drawn.add(name); draw(name); };
  const watch = new IntersectionObserver(seen => {  // a plot is drawn when the reader comes near it
    for (const {target, isIntersecting} of seen)
      if (isIntersecting && !drawn.has(target.id)) show(target.id);
  }, {rootMargin: "400px"});
  for (const name of names) watch.observe(document.getElementById(name));
  dark.addEventListener("change", () => drawn.forEach(draw));
  for (const kind of ["beforeprint", "afterprint"]) addEventListener(kind, () => names.forEach(show));
  window.matchMedia("print").addEventListener("change", () => names.forEach(show));
}

const names = Object.keys(sheet.plots), drawn = new Set();
const again = group => [...drawn].filter(name => sheet.plots[name].group === group).forEach(draw);
addEventListener("change", event => again(event.target.dataset.group));
addEventListener("click", event => {
  const {all, trial} = event.target.dataset;
  if (trial) details(trial);
  if (!all) return;
  event.target.ariaPressed = event.target.ariaPressed !== "true";
  again(all);
});
start();
"""
