// Puts a field above each long table that hides the rows without the words in it, and lets keys scroll what is wide.
const LONG = 25;

function addFilter(table) {
  const rows = [...table.tBodies[0].rows];
  if (rows.length < LONG || table.dataset.filter) return;
  table.dataset.filter = "on";
  const field = document.createElement("input");
  field.type = "search";
  field.placeholder = `Search these ${rows.length} rows`;
  field.setAttribute("aria-label", field.placeholder);
  field.className = "md-input md-input--stretch";
  const said = document.createElement("p");
  said.setAttribute("role", "status");
  field.addEventListener("input", () => {
    const words = field.value.toLowerCase().split(/\s+/);
    const shown = rows.filter((row) => {
      const text = row.textContent.toLowerCase();
      row.hidden = !words.every((word) => text.includes(word));
      return !row.hidden;
    });
    said.textContent = field.value ? `${shown.length} of ${rows.length} rows` : "";
  });
  table.before(field, said);
}

function reachByKey(box) {
  if (box.scrollWidth > box.clientWidth) box.tabIndex = 0;
}

function all() {
  document.querySelectorAll("article table").forEach(addFilter);
  document.querySelectorAll("pre > code, .md-typeset__scrollwrap").forEach(reachByKey);
}

if (typeof document$ === "undefined") document.addEventListener("DOMContentLoaded", all);
else document$.subscribe(all);
