// The keyboard. Keys go to a field or button first where those use them.

/** Call `actions[key]` for keys pressed outside fields and dialogs; "Shift+ArrowUp" names a key with Shift. */
export function listenForKeys(actions) {
  window.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
    if (event.target.closest("input:not([type=checkbox]), select, textarea")) return;
    if (event.key === " " && event.target.closest("button, input, a")) return;
    const key = event.key.length === 1 ? event.key.toLowerCase() : event.key;
    const action = actions[event.shiftKey && key.startsWith("Arrow") ? `Shift+${key}` : key];
    if (!action) return;
    event.preventDefault();
    action();
  });
}
