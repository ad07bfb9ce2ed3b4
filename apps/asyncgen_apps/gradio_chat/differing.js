// Marks the settings that differ from the model's defaults, and says which they are.
(drawn, ...values) => {
  const fields = FIELDS;
  const defaults = drawn ? JSON.parse(drawn) : values;
  const changed = fields.filter((_, place) => (values[place] ?? "") !== (defaults[place] ?? ""));
  for (const [name] of fields) {
    const isChanged = changed.some(([other]) => other === name);
    document.querySelector(`#setting-${name}`)?.classList.toggle("differs", isChanged);
  }
  for (const box of document.querySelectorAll("#settings .group[id]")) {
    box.classList.toggle("differs", changed.some(([, group]) => `group-${group}` === box.id));
  }
  const names = changed.map(([, , title]) => title).join(", ");
  const line = document.querySelector("#differing");
  if (line) line.textContent = changed.length ? `differs from the model's defaults: ${names}` : "";
  document.querySelector("#settings").classList.toggle("differs", changed.length > 0);
}
