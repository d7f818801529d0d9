// Before anything is shown: the colours that were chosen here last, or those of the system.

(() => {
    try {
        const chosen = localStorage.getItem("atoll-colours");
        if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
    } catch {
        // Without storage the system's colours count.
    }
})();
