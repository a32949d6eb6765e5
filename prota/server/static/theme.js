// Before the first paint: no flash.
try {
	const theme = localStorage.getItem("prota.theme");
	if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
} catch { /* storage is switched off: the system's choice stays */ }
