"""The script of the HTML page: it fills, filters and sorts the table of attachments. It only sets texts."""

SCRIPT = """
"use strict";
const pods = JSON.parse(document.getElementById("data").textContent).pods;
const columns = [["network", "network"], ["pod", "pod"], ["container", "container"], ["interface", "interface"],
  ["host", "host"], ["addresses", "addresses"], ["ports", "host ports"], ["limits", "limits"], ["state", "state"]];
const byId = (id) => document.getElementById(id);
const create = (name, text) => { const made = document.createElement(name); made.textContent = text; return made; };
let order = "", descending = false;

function fillOptions(id, values) {
  for (const value of [...new Set(values)].sort()) {
    const option = create("option", value);
    option.value = value;
    byId(id).append(option);
  }
}

function matches(pod) {
  const words = byId("search").value.toLowerCase().split(/\\s+/).filter(Boolean);
  const text = [...columns.map(([key]) => pod[key]), ...pod.problems].join(" ").toLowerCase();
  return words.every((word) => text.includes(word))
    && (!byId("network").value || pod.network === byId("network").value)
    && (!byId("state").value || pod.state === byId("state").value)
    && (!byId("wrong").checked || pod.wrong);
}

function row(pod) {
  const line = document.createElement("tr");
  line.className = pod.wrong ? "faulty" : "";
  for (const [key] of columns) {
    const cell = create("td", key === "container" ? pod[key].slice(0, 12) : pod[key]);
    if (key === "container") cell.title = pod[key];
    if (key === "state") pod.problems.forEach((problem) => cell.append(create("small", problem)));
    line.append(cell);
  }
  return line;
}

function show() {
  const shown = pods.filter(matches);
  if (order) shown.sort((one, other) =>
    one[order].localeCompare(other[order], "en", {numeric: true}) * (descending ? -1 : 1));
  byId("table").tBodies[0].replaceChildren(...shown.map(row));
  byId("count").textContent = shown.length === pods.length ? pods.length : `${shown.length} of ${pods.length}`;
  byId("none").hidden = shown.length > 0;
}

const head = document.createElement("tr");
for (const [key, label] of columns) {
  const cell = create("th", label);
  cell.addEventListener("click", () => {
    descending = order === key && !descending;
    order = key;
    for (const other of head.children) other.removeAttribute("aria-sort");
    cell.setAttribute("aria-sort", descending ? "descending" : "ascending");
    show();
  });
  head.append(cell);
}
byId("table").tHead.append(head);
fillOptions("network", pods.map((pod) => pod.network));
fillOptions("state", pods.map((pod) => pod.state));
byId("filters").addEventListener("input", show);
byId("filters").addEventListener("submit", (event) => event.preventDefault());
const query = new URLSearchParams(location.hash.slice(1));
for (const id of ["search", "network", "state"]) if (query.has(id)) byId(id).value = query.get(id);
byId("wrong").checked = query.has("wrong");
show();
"""
