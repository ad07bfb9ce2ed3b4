/* ---- What the user does. ---- */

function grow() {
  question.style.height = "auto";
  question.style.height = `${question.scrollHeight}px`;
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
  if (event.key !== "Enter" || event.shiftKey || event.isComposing || matchMedia("(pointer: coarse)").matches) return;
  event.preventDefault();
  submit();
};
document.onkeydown = (event) => { if (event.key === "Escape" && !event.isComposing && !$("settings").open) stop(); };
$("stop").onclick = stop;
$("latest").onclick = () => { follow = true; stick(); question.focus(); };
main.onscroll = () => {
  follow = main.scrollHeight - main.scrollTop - main.clientHeight < 60;
  $("latest").hidden = follow;
};
for (const example of $("examples").children) example.onclick = () => { ask(example.textContent); question.focus(); };

$("new").onclick = () => {
  if (chat.live) abandon();
  Object.assign(chat, { turns: [], live: null });
  follow = true;
  save();
  drawAll();
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

addEventListener("pagehide", save);
addEventListener("online", () => connection.retry());
document.addEventListener("visibilitychange", () => { if (!document.hidden && connection.state === "waiting") connection.retry(); });

drawAll();
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
