// The requests to the server that sent this page. What fails is an Error whose message is a sentence for the user.

const LEAST_SCORE = 0.01; // the server sends all boxes from here; the page selects from them
const RETRIES = 5;
const LONGEST_WAIT_S = 10;
const TOKEN = "boxwright-token";

/** A request that failed; `message` says what to do. */
export class RequestError extends Error {
  constructor(message, status = 0) {
    super(message);
    this.status = status;
  }
}

/** Return the server's models, each with its `name`. */
export async function listModels(askToken) {
  const response = await send("models", { method: "GET" }, askToken);
  const answer = await response.json();
  return Array.isArray(answer) ? answer : answer.models;
}

/**
 * Return what a model finds in an encoded picture, with the milliseconds until the answer was here.
 *
 * A busy server is asked again after the time it names; `onWait` hears of it.
 */
export async function predict(blob, model, { signal, askToken, onWait }) {
  const query = new URLSearchParams({ conf: LEAST_SCORE, nms: 1, model });
  const options = {
    method: "POST",
    body: blob,
    headers: { "Content-Type": blob.type || "application/octet-stream", Accept: "application/json" },
    signal,
  };
  const start = performance.now();
  const response = await send(`predict?${query}`, options, askToken, onWait);
  const answer = await response.json();
  return { ...answer, round_trip_ms: performance.now() - start };
}

async function send(address, options, askToken, onWait = () => {}) {
  for (let attempt = 0; ; attempt += 1) {
    const token = storedToken();
    const headers = { ...options.headers, ...(token ? { Authorization: `Bearer ${token}` } : {}) };
    let response;
    try {
      response = await fetch(address, { ...options, headers, cache: "no-store", credentials: "same-origin" });
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new RequestError("The server does not answer. Check that it is still running, then try again.");
    }
    if (response.ok) return response;
    if (response.status === 401 && attempt < RETRIES && (await askToken(Boolean(token)))) continue;
    if ((response.status === 429 || response.status === 503) && attempt < RETRIES) {
      const seconds = Math.min(Math.max(Number(response.headers.get("Retry-After")) || 1, 0.2), LONGEST_WAIT_S);
      onWait(`The server is busy. Trying again in ${seconds} s.`);
      await pause(seconds, options.signal);
      continue;
    }
    throw new RequestError(await sentence(response), response.status);
  }
}

/** Return the server's own sentence for a failure, or one of ours. */
async function sentence(response) {
  const known = {
    401: "The server asks for a token. Choose “Token” and enter it.",
    403: "The server refuses requests from this page. Open the page under the address that the server printed.",
    404: "The server does not have this model any more. Reload the page.",
    408: "The server did not answer in time. Try a smaller picture, or try again.",
    413: "The picture is larger than this server takes. Make it smaller, or start the server with a higher --max-body.",
    415: "The server can't read this kind of file. Use JPEG, PNG, WebP, BMP or TIFF.",
    429: "The server is busy. Try again in a moment.",
    503: "The server can't answer now. Try again in a moment.",
    504: "The server did not answer in time. Try a smaller picture, or try again.",
  };
  try {
    const answer = await response.json();
    const text = answer.error ?? answer.detail;
    if (typeof text === "string" && text) return text;
  } catch {
    // Not JSON: a proxy answered.
  }
  return known[response.status] ?? `The server answered with the error ${response.status}. Its log says more.`;
}

function pause(seconds, signal) {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(resolve, seconds * 1000);
    signal?.addEventListener("abort", () => {
      clearTimeout(timer);
      reject(new DOMException("The picture is no longer shown.", "AbortError"));
    });
  });
}

/** Return the token that was entered in this tab, or "". */
export function storedToken() {
  try {
    return sessionStorage.getItem(TOKEN) ?? "";
  } catch {
    return ""; // storage is switched off
  }
}

/** Keep a token as long as this tab is open. */
export function storeToken(token) {
  try {
    sessionStorage.setItem(TOKEN, token);
  } catch {
    throw new RequestError("The browser does not let this page keep the token. Allow it to store data for this site.");
  }
}
