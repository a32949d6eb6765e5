// All requests to the server.

/** An error response as problem details (RFC 9457); status 0: no response. */
export class Problem extends Error {
	constructor(status, { title, detail } = {}, wait = 2) {
		super(detail || title || (status ? `The server responded with ${status}.` : "The server does not respond."));
		Object.assign(this, { status, title: title || "Request failed", wait });
	}
}

const address = (path) => new URL(`api/v1${path}`, document.baseURI).href;

async function api(path, { method = "GET", json, body, signal, read = (response) => response.json() } = {}) {
	const headers = json ? { "Content-Type": "application/json" } : {};
	let response;
	try {
		response = await fetch(address(path), { method, headers, signal, body: json ? JSON.stringify(json) : body });
	} catch (error) {
		throw error.name === "AbortError" ? error : new Problem(0);
	}
	if (response.ok) return read(response);
	if (response.status === 502 || response.status === 504) throw new Problem(0); // a proxy's
	if (response.status === 401) document.dispatchEvent(new Event("prota:token"));
	throw new Problem(response.status, await response.json().catch(() => ({})), Number(response.headers.get("Retry-After")) || 2);
}

function query(values) {
	return new URLSearchParams(Object.entries(values).filter(([, value]) => value != null && value !== ""));
}

const of = (video) => `/videos/${encodeURIComponent(video)}`;
export const search = (q, wanted, signal) => api(`/search?${query({ q, ...wanted })}`, { signal }); // filters, k
export const like = ({ video, start, end }, wanted, signal) =>
	api(`/search/like?${query(wanted)}`, { method: "POST", json: { video, start, end }, signal });
export function upload(file, wanted, signal) {
	const body = new FormData();
	body.append("file", file, file.name);
	return api(`/search/like?${query(wanted)}`, { method: "POST", body, signal });
}
export const explain = (q, { segment, version }, signal) => api(`/explain?${query({ q, segment, version })}`, { signal });
export const video = (id, signal) => api(of(id), { signal });
export const segments = (id, q, signal) => api(`${of(id)}/segments?${query({ q })}`, { signal });
export const stream = (id) => address(`${of(id)}/stream`);
export const frame = (id, t, width) => address(`${of(id)}/frame?${query({ t: t.toFixed(3), width: Math.ceil(width) })}`);
export const part = (id, start, signal) => api(`${of(id)}/play?${query({ start })}`, {
	signal, read: async (response) => ({ type: response.headers.get("Content-Type"), data: await response.arrayBuffer() }),
});
export const clip = ({ video, start, end }, signal) => api(`${of(video)}/clip?${query({ start, end })}`, { signal, read: (response) => response.blob() });
export const moments = (order, k, seed) => api(`/moments?${query({ order, k, seed })}`);
export const folders = (k) => api(`/folders?${query({ k })}`);
export const examples = () => api("/examples");
export const files = (wanted, signal) => api(`/files?${query(wanted)}`, { signal });
export const remove = (files) => api("/files/remove", { method: "POST", json: { files } });
export const library = () => api("/library");
export const jobs = () => api("/jobs");
export const index = (wanted) => api("/jobs", { method: "POST", json: wanted }); // path or files, pictures, retry
export const allowed = (path) => api(`/jobs/folders?${query({ path })}`);
export const cancel = (id) => api(`/jobs/${id}`, { method: "DELETE" });
export const events = (id) => new EventSource(address(`/jobs/${id}/events`));
