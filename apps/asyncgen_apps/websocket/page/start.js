/* ---- What the user does. ---- */

/** As high as its text. */
function fit(area) {
  area.style.height = "auto";
  area.style.height = `${area.scrollHeight}px`;
}

/** Whether a key sends: Enter, where there is another key for a new line. */
const sends = (event) => event.key === "Enter" && !event.shiftKey && !event.isComposing && !matchMedia("(pointer: coarse)").matches;

function grow() {
  fit(question);
  $("send").disabled = !question.value.trim();
}

function submit() {
  const text = question.value.trim();
  if (!text || chat.live) return;
  question.value = "";
  grow();
  ask(text);
}

$("box").onsubmit = (event) => { event.preventDefault(); submit(); };
question.oninput = grow;
question.onkeydown = (event) => {
  if (!sends(event)) return;
  event.preventDefault();
  submit();
};
document.onkeydown = (event) => { if (event.key === "Escape" && !event.isComposing && !document.querySelector("dialog[open]")) stop(); };
$("stop").onclick = stop;
$("latest").onclick = () => { follow = true; stick(); question.focus(); };
main.onscroll = () => {
  follow = main.scrollHeight - main.scrollTop - main.clientHeight < 60;
  $("latest").hidden = follow;
};
for (const example of $("examples").children) example.onclick = () => { ask(example.textContent); question.focus(); };

$("new").onclick = () => {
  startNew();
  speech.say("New chat.");
  question.focus();
};

const form = $("settings-form");

function openSettings() {
  for (const field of form.elements) if (field.name) field.value = field.name === "token" ? store.get("token", "") : settings[field.name] ?? "";
  $("locked").hidden = connection.state !== "locked";
  $("settings").showModal();
}

$("open-settings").onclick = openSettings;
$("cancel-settings").onclick = () => $("settings").close();
form.onsubmit = (event) => {
  event.preventDefault();
  const { token, ...others } = Object.fromEntries(new FormData(form));
  const changed = token !== store.get("token", "");
  store.set("token", token);
  store.set("settings", Object.assign(settings, others));
  $("settings").close();
  if (changed || connection.state === "locked") connection.open();
};
$("settings").onclose = () => question.focus();

addEventListener("pagehide", () => { save(); if (chat.live) keep(); });
addEventListener("online", () => { connection.retry(); showLabel(); });
addEventListener("offline", () => {
  connection.doubt();
  if (showLabel() === "offline" && connection.state !== "ready") showState(connection.state, {});
});
document.addEventListener("visibilitychange", () => { if (!document.hidden && connection.state === "waiting") connection.retry(); });

drawAll();
if (chat.before) offerUndo();
if (matchMedia("(pointer: fine)").matches) question.focus();
if (!/^wss?:$/.test(address.protocol)) {
  showState("off", {});
  showBanner(`No address of a server: ${address.href}. Add ?url=ws://… to this page's address.`);
} else if (address.host === location.host) {
  connection.open();
} else {
  // A link may name any server: whoever follows it decides.
  showState("off", {});
  showBanner(`This page is asked to talk to another server: ${address.href}`, "Connect", () => connection.open());
}
