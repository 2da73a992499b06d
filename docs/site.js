// The theme puts a nav around the copy button of each code block. A page has dozens, so screen readers would list
// dozens of landmarks without a name.
const quiet = () => document.querySelectorAll("nav.md-code__nav").forEach((nav) => (nav.role = "presentation"));
new MutationObserver(quiet).observe(document.documentElement, { childList: true, subtree: true });
