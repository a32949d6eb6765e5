// The dialog that adds videos: a folder below those that the server may read, chosen or typed.
import * as api from "./api.js";
import { $, button, count, el, icon, on, say } from "./dom.js";

export class Adding {
	/** `added`: called with the job. */
	constructor(added) {
		this.added = added;
		on($("add-form"), "submit", (event) => { event.preventDefault(); this.add(); });
		on($("path"), "change", () => this.list($("path").value.trim()));
		on($("up"), "click", () => this.list(this.parent));
	}

	async open() {
		$("path").value = "";
		$("add").showModal();
		$("path").focus();
		await this.list();
		// The one folder that may be read is entered at once.
		if (this.folders?.length === 1) await this.list(this.folders[0].path);
	}

	/** Show the folders in one; without a path all that the server may read. */
	async list(path) {
		try {
			const found = await api.allowed(path);
			Object.assign(this, { parent: found.parent, folders: found.folders });
			$("path").value = found.path;
			say("add-note", found.path ? `${count(found.files, "file")} to index here, without those in its folders.` : "");
		} catch (error) {
			say("add-note", error.message, "bad");
			return;
		}
		const held = $("folders").contains(document.activeElement);
		$("folders").replaceChildren(...this.folders.map((one) => el("li", {}, button(() => this.list(one.path), icon("folder"), el("span", {}, one.name)))));
		$("up").disabled = this.parent == null;
		if (held) ($("folders").querySelector("button") || $("up")).focus();
	}

	async add() {
		try {
			const job = await api.index({ path: $("path").value.trim(), pictures: $("pictures").checked });
			$("add").close();
			this.added(job);
		} catch (error) { say("add-note", error.message, "bad"); }
	}
}
