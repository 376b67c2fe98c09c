// Every page: tables that can be sorted and filtered, sections of trials, and loading the page of a running sweep again.
"use strict";

// Returns the text of an element that html.py has packed.
async function unpack(id) {
  const packed = Uint8Array.from(atob(document.getElementById(id).textContent), letter => letter.charCodeAt(0));
  const unpacked = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(unpacked).text();
}

// {plots, trials}: charts by name, and sections of trials as HTML by name
const pageData = document.getElementById("page-data") ? unpack("page-data").then(JSON.parse) : Promise.resolve({trials: {}});

// --- tables -------------------------------------------------------------------------------------------

for (const table of document.querySelectorAll("table:not([data-fixed-order])")) {
  const rows = [...table.tBodies[0].rows];
  const heads = [...[...table.tHead.rows].at(-1).cells];
  if (rows.length > 1) heads.forEach((head, column) => makeSortable(head, () => sort(table.tBodies[0], rows, heads, column)));
  const input = table.id && document.querySelector(`input[data-filter="${table.id}"]`);
  if (input) input.addEventListener("input", () => filter(rows, input.value, document.querySelector(`output[for="${table.id}"]`)));
}

function makeSortable(head, onClick) {
  const button = document.createElement("button");
  button.type = "button";
  button.append(...head.childNodes);
  if (!button.textContent) button.textContent = "name";
  head.append(button);
  head.setAttribute("aria-sort", "none");
  button.addEventListener("click", onClick);
}

// Each click goes on to the next order: ascending, descending, the order in which the page was written.
function sort(body, rows, heads, column) {
  const nextOrder = {none: "ascending", ascending: "descending", descending: "none"};
  const order = nextOrder[heads[column].getAttribute("aria-sort")];
  heads.forEach(head => head.setAttribute("aria-sort", "none"));
  heads[column].setAttribute("aria-sort", order);
  if (order === "none") {
    body.append(...rows);
    return;
  }
  const filled = rows.filter(row => valueOf(row, column));
  const empty = rows.filter(row => !valueOf(row, column));
  const sign = order === "ascending" ? 1 : -1;
  const isNumeric = filled.every(row => !Number.isNaN(parseFloat(valueOf(row, column))));
  filled.sort((left, right) => {
    const [a, b] = [valueOf(left, column), valueOf(right, column)];
    return sign * (isNumeric ? parseFloat(a) - parseFloat(b) : a.localeCompare(b, undefined, {numeric: true}));
  });
  body.append(...filled, ...empty);
}

function valueOf(row, column) {
  const cell = row.cells[column];
  return cell.dataset.value ?? cell.textContent.trim();
}

// Shows the rows that have every word, in the charts too.
function filter(rows, query, output) {
  const words = query.toLowerCase().split(/\s+/);
  for (const row of rows) row.hidden = !words.every(word => row.textContent.toLowerCase().includes(word));
  const shown = rows.filter(row => !row.hidden);
  output.textContent = `${shown.length} of ${rows.length}`;
  const names = shown.length < rows.length ? new Set(shown.map(row => row.cells[0].dataset.trial)) : null;
  dispatchEvent(new CustomEvent("trials-shown", {detail: names}));
}

// --- sections of trials -------------------------------------------------------------------------------

async function openTrial(name) {
  const section = document.getElementById("trial");
  const {trials} = await pageData;
  if (!section || !Object.hasOwn(trials, name)) return false;
  section.innerHTML = trials[name];  // the template has escaped all texts
  section.hidden = false;
  section.scrollIntoView({block: "start"});
  section.focus({preventScroll: true});
  return true;
}

const openAddress = () => openTrial(decodeURIComponent(location.hash.slice(1)));
addEventListener("hashchange", openAddress);
if (location.hash) openAddress();

// In a frame whose text another page has set, links to #sections would leave the frame.
document.addEventListener("click", async event => {
  const link = event.target.closest?.('a[href^="#"]');
  if (!link || location.protocol !== "about:") return;
  event.preventDefault();
  const name = link.getAttribute("href").slice(1);
  if (!await openTrial(name)) document.getElementById(name)?.scrollIntoView();
});

// --- a running sweep ----------------------------------------------------------------------------------

// The page is loaded again, unless the reader uses it or it is inside another page's frame.
const reloadAfter = 1000 * document.body.dataset.reloadSeconds;  // milliseconds
if (reloadAfter && /^(file|https?):/.test(location.protocol)) {
  let lastUse = 0;
  for (const kind of ["pointerdown", "keydown", "wheel", "touchmove"])
    addEventListener(kind, () => { lastUse = Date.now(); }, {passive: true});
  const isFiltered = () => [...document.querySelectorAll("[data-filter]")].some(input => input.value);
  setInterval(() => {
    if (Date.now() - lastUse >= reloadAfter && !isFiltered()) location.reload();
  }, reloadAfter);
}
