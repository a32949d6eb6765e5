// Runs before the first paint, to avoid a flash.
try {
	const theme = localStorage.getItem("prota.theme");
	if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
} catch { /* no storage: the system's choice is used */ }
