// What Gradio's widgets lack: names, keys, and answers that name nothing to be loaded.
() => {
  const all = (selector, within = document) => [...within.querySelectorAll(selector)];
  const find = (selector) => document.querySelector(selector);
  const set = (one, name, value) => {
    if (one && one.getAttribute(name) !== value) one.setAttribute(name, value);
  };

  const kept = localStorage.getItem("asyncgen.theme");
  if (kept) document.body.classList.toggle("dark", kept === "dark");
  const chats = find("#conversations.open .toggle-button");
  if (chats && window.innerWidth < 768) chats.click();

  const toBox = () => find("#box textarea").focus();

  // A closed panel is passed over by the tab key; its button says whether it is open.
  function name() {
    for (const [id, called] of [["settings", "Settings"], ["conversations", "Chats"]]) {
      const panel = find(`#${id}`);
      const button = panel.querySelector(".toggle-button");
      const isOpen = panel.classList.contains("open");
      const differing = id === "settings" ? (find("#differing")?.textContent ?? "") : "";
      set(button, "aria-label", differing ? `${called}: ${differing}` : called);
      set(button, "title", called);
      set(button, "aria-expanded", `${isOpen}`);
      panel.querySelector(".sidebar-content").inert = !isOpen;
    }
    set(find("#theme"), "aria-label", "Light or dark");
    set(find("#theme"), "title", "Light or dark");
    set(find("#picker"), "aria-label", "Chats");
    set(find("#box textarea"), "aria-label", "Message");
    set(find("#box .submit-button"), "aria-label", "Send");
    set(find("#box .stop-button"), "aria-label", "Stop");
    set(find("#chat .edit-textarea"), "aria-label", "Edited message");
    set(find("#chat .bubble-wrap"), "tabindex", "0");
    set(find("#chat .examples"), "role", "group"); // Gradio's list of buttons has no items
    set(find("#chat .examples"), "aria-label", "Examples");
    for (const code of all("#chat pre")) set(code, "tabindex", "0");
    for (const button of all("#chat .copy_code_button")) set(button, "aria-label", "Copy code");
    for (const title of all("#chat .thought-group > .title")) {
      set(title, "aria-expanded", `${title.nextElementSibling !== null}`);
      const arrow = title.querySelector(".arrow");
      if (arrow) arrow.inert = true; // a button in a button: the outer one does the same
    }
    for (const button of all("#settings .label-wrap")) {
      set(button, "aria-expanded", `${button.classList.contains("open")}`);
    }
    for (const button of all("#settings .reset-button")) {
      const setting = button.closest("[id^=setting-]")?.querySelector("[data-testid=block-info]");
      set(button, "aria-label", `Default of ${setting?.textContent.trim()}`);
    }
  }

  // The policy of the page keeps all of this from being loaded; here it is taken out of the
  // answer, and its address told. Gradio owns the elements, so they change and stay.
  const LOADING = ["src", "srcset", "poster", "data", "background", "href", "xlink:href", "style"];
  function unload(prose) {
    const left = [];
    for (const one of all("[src], [srcset], [poster], [data], [background], [style], svg *", prose)) {
      for (const attribute of LOADING) {
        const value = one.getAttribute(attribute);
        if (value === null || (attribute === "href" && one.matches("a"))) continue;
        if (/^\s*(data:image\/|#)/i.test(value)) continue;
        if (attribute === "style" && !/url\(|image\(|image-set\(|src\(/i.test(value)) continue;
        one.removeAttribute(attribute);
        if (attribute === "src" && one.matches("img")) one.alt = `[image, not loaded: ${one.alt} ${value}]`;
        else left.push(value);
      }
    }
    if (left.length) prose.dataset.left = `Not loaded: ${left.join(", ")}`;
  }

  // Gradio takes a button away that was pressed, or turns it off, and nobody would hear the keys.
  let focused = null;
  document.addEventListener("focusin", ({ target }) => {
    focused = target.matches(":focus-visible") ? target : null;
  });
  document.addEventListener("pointerdown", () => { focused = null; }, true);
  function keepFocus() {
    if (!focused || document.activeElement !== document.body) return;
    if (focused.isConnected && !focused.disabled && focused.checkVisibility()) return;
    focused = null;
    toBox();
  }

  let isDue = false;
  const refresh = () => {
    isDue = false;
    name();
    keepFocus();
    all("#chat .prose").forEach(unload);
  };
  new MutationObserver(() => {
    if (!isDue) requestAnimationFrame(refresh);
    isDue = true;
  }).observe(document.body, { attributeFilter: ["class"], childList: true, subtree: true });
  refresh();

  document.addEventListener("click", COPY_ANSWER, true);
  document.addEventListener("click", (event) => {
    if (event.target.closest?.("#box .stop-button")) toBox();
  });
  document.addEventListener("keydown", (event) => {
    if (event.isComposing) return;
    const isEditing = event.target.matches("#chat .edit-textarea, #chat textarea");
    if (event.key === "Escape" && isEditing) {
      find('#chat button[aria-label="Cancel"]')?.click();
      toBox();
    } else if (event.key === "Escape") {
      find("#box .stop-button")?.click();
    } else if (event.key === "Enter" && isEditing && !event.shiftKey) {
      event.preventDefault();
      find('#chat button[aria-label="Submit"]')?.click();
      toBox();
    }
  });
  window.addEventListener("storage", (event) => {
    if (event.key === "asyncgen.chats") find("#changed").click();
  });
}
