/* Copies an answer as the model wrote it; the chat would add the reasoning and the figures. */
(event) => {
  const name = 'button[aria-label="Copy message"]';
  const button = event.target.closest?.(`#chat .message-buttons-left ${name}`);
  const row = button?.closest(".message-buttons").previousElementSibling;
  const written = "[data-testid=bot]:has(> .message-content)";
  const labels = [...(row?.querySelectorAll(written) ?? [])].map((part) => part.ariaLabel ?? "");
  const texts = labels.map((label) => label.replace(/^.*?'s message: /, ""));
  const isKnown = labels.every((label, number) => label !== texts[number]);
  if (!navigator.clipboard || !texts.length || !isKnown) return;
  event.stopImmediatePropagation();
  navigator.clipboard.writeText(texts.join("\n\n"));
}
