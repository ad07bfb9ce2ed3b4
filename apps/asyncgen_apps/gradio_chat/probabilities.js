// The card of the token under the pointer, or that the keys have come to: its probability, and what else could have stood there.
const percent = (p) => (p >= 0.9995 ? "100%" : p >= 0.1 ? `${(p * 100).toFixed(1)}%` : p >= 0.0001 ? `${(p * 100).toFixed(2)}%` : "< 0.01%");
const visible = (text) => text.replace(/\n/g, "↵").replace(/\t/g, "⇥").replace(/ /g, "·") || "∅";

function row(text, probability, chosen) {
  const line = document.createElement("div");
  line.className = chosen ? "row chosen" : "row";
  const [name, bar, value] = ["code", "i", "b"].map((tag) => line.appendChild(document.createElement(tag)));
  name.textContent = visible(text);
  bar.style.setProperty("--p", probability);
  value.textContent = percent(probability);
  return line;
}

function card() {
  let found = element.querySelector(".card");
  if (!found) {
    found = document.createElement("div");
    found.className = "card";
    found.setAttribute("role", "status"); // said aloud as it changes
    element.appendChild(found);
  }
  return found;
}

let shownAt = 0;

function show(token) {
  const [text, probability, alternatives] = JSON.parse(token.dataset.token);
  const box = card();
  const listed = alternatives.some(([other]) => other === text);
  const rows = alternatives.map(([other, p]) => row(other, p, other === text));
  if (!listed) rows.push(row(text, probability, true));
  box.replaceChildren(...rows);
  box.classList.add("shown");
  element.querySelectorAll(".token.pointed").forEach((each) => each.classList.remove("pointed"));
  token.classList.add("pointed");
  const at = token.getClientRects()[0];
  shownAt = at.top;
  const left = Math.max(8, Math.min(at.left, window.innerWidth - box.offsetWidth - 8));
  const below = at.bottom + 8;
  const above = at.top - box.offsetHeight - 8;
  box.style.left = `${left}px`;
  box.style.top = `${below + box.offsetHeight > window.innerHeight && above > 0 ? above : below}px`;
}

function hide() {
  element.querySelector(".card")?.classList.remove("shown");
  element.querySelectorAll(".token.pointed").forEach((each) => each.classList.remove("pointed"));
}

const pointed = (event) => {
  const token = event.target.closest?.(".token");
  if (token) show(token);
  else hide();
};
element.addEventListener("mouseover", pointed);
element.addEventListener("click", pointed);
element.addEventListener("mouseleave", hide);
// One stop of the tab key for all tokens; keys move within.
const STEPS = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1, Home: -Infinity, End: Infinity };
element.addEventListener("keydown", (event) => {
  if (event.key === "Escape") hide();
  if (!event.target.matches(".tokens") || !(event.key in STEPS)) return;
  event.preventDefault();
  const tokens = [...element.querySelectorAll(".token")];
  const now = tokens.findIndex((each) => each.matches(".pointed"));
  const next = Math.max(0, Math.min(tokens.length - 1, now + STEPS[event.key]));
  tokens[next].scrollIntoView({ block: "nearest" });
  show(tokens[next]);
});
element.addEventListener("focusin", (event) => {
  if (event.target.matches(".tokens:focus-visible") && !element.querySelector(".pointed")) show(element.querySelector(".token"));
});
element.addEventListener("focusout", hide);
// A tap may come with the end of a scroll: only a token that has moved loses its card.
const moved = () => {
  const token = element.querySelector(".token.pointed");
  if (token && Math.abs(token.getClientRects()[0].top - shownAt) > 2) hide();
};
document.addEventListener("scroll", moved, true);
