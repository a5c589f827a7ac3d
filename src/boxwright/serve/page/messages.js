// What the page says: errors, short news, the question for the token, light or dark.

import { storeToken } from "./server.js";

const byId = (id) => document.getElementById(id);
const SHOWN_MS = 4000;
let timer = 0;

/** Show a sentence until the user closes it, or none. */
export function showError(text) {
  byId("error").hidden = !text;
  byId("error").firstElementChild.textContent = text;
}

byId("error").querySelector("button").addEventListener("click", () => showError(""));

/** Let screen readers read something that others see. */
export function announce(text) {
  byId("news").textContent = text;
}

/** Show a short message for some seconds; screen readers read it. */
export function showStatus(text) {
  const status = byId("status");
  status.textContent = text;
  status.classList.add("on");
  clearTimeout(timer);
  timer = setTimeout(() => status.classList.remove("on"), SHOWN_MS);
}

let asking = null;

/** Ask for the server's token; return whether one was entered. Requests that fail together ask once. */
export function askToken(wasWrong) {
  asking ??= ask(wasWrong).finally(() => (asking = null));
  return asking;
}

async function ask(wasWrong) {
  const dialog = byId("token-dialog");
  byId("token").hidden = false;
  byId("token-text").textContent = wasWrong
    ? "The server does not accept this token. Enter the one that it was started with."
    : "This server asks for its token. It was set with --token or BOXWRIGHT_TOKEN.";
  byId("token-input").value = "";
  dialog.returnValue = "";
  dialog.showModal();
  await new Promise((resolve) => dialog.addEventListener("close", resolve, { once: true }));
  const token = byId("token-input").value.trim();
  if (dialog.returnValue !== "ok" || !token) return false;
  storeToken(token);
  return true;
}

const THEME = "boxwright-theme";

/** Follow the system's theme until the user chooses one; return what switches it. */
export function setUpTheme(button) {
  const system = matchMedia("(prefers-color-scheme: dark)");
  let theme = null;
  try {
    theme = localStorage.getItem(THEME);
  } catch {
    // Storage is switched off: the choice lasts as long as the page.
  }
  const apply = () => {
    const dark = theme ? theme === "dark" : system.matches;
    document.documentElement.dataset.theme = dark ? "dark" : "light";
  };
  const toggle = () => {
    theme = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
    apply();
    try {
      localStorage.setItem(THEME, theme);
    } catch {
      // As above.
    }
  };
  system.addEventListener("change", apply);
  button.addEventListener("click", toggle);
  apply();
  return toggle;
}
