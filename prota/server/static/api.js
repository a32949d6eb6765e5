// The one place that talks to the server.

/** The server said no, as problem details (RFC 9457). */
export class Problem extends Error {
  constructor(status, body, retryAfter) {
    super(body.detail || body.title || `The server answered ${status}.`);
    this.status = status;
    this.title = body.title || "That did not work";
    this.retryAfter = retryAfter;
  }
}

/** Nobody answered. */
export class Offline extends Error {}

export const address = (path) => new URL(`api/v1${path}`, document.baseURI).href;

export async function api(path, { method = "GET", json, body, signal } = {}) {
  const headers = json ? { "Content-Type": "application/json" } : {};
  let response;
  try {
    response = await fetch(address(path), { method, headers, signal, body: json ? JSON.stringify(json) : body });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Offline("The server does not answer.");
  }
  if (response.ok) return response.status === 204 ? null : response.json();
  if (response.status === 502 || response.status === 504) throw new Offline("The server does not answer.");
  const problem = await response.json().catch(() => ({}));
  if (response.status === 401) document.dispatchEvent(new Event("prota:token"));
  throw new Problem(response.status, problem, Number(response.headers.get("Retry-After")) || 2);
}

const parameters = (values) => {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(values)) if (value != null && value !== "") query.set(name, value);
  return query.toString();
};

export const K = 24;
export const search = (q, filters, all, signal) =>
  api(`/search?${parameters({ q, k: K, ...filters, all: all ? "true" : "" })}`, { signal });
export const like = ({ video, start, end }, signal) =>
  api("/search/like", { method: "POST", json: { video, start, end }, signal });
export function upload(file, signal) {
  const body = new FormData();
  body.append("file", file, file.name || "picture.png");
  return api("/search/like", { method: "POST", body, signal });
}
export const explain = (q, segment, signal) => api(`/explain?${parameters({ q, segment })}`, { signal });
const of = (video) => `/videos/${encodeURIComponent(video)}`;
export const video = (id, signal) => api(of(id), { signal });
export const segments = (id, q, signal) => api(`${of(id)}/segments?${parameters({ q })}`, { signal });
export const stream = (id) => address(`${of(id)}/stream`);
export const library = () => api("/library");
export const jobs = () => api("/jobs");
export const addFolder = (path) => api("/jobs", { method: "POST", json: { path } });
export const cancel = (id) => api(`/jobs/${encodeURIComponent(id)}`, { method: "DELETE" });
export const events = (id) => new EventSource(address(`/jobs/${encodeURIComponent(id)}/events`));
