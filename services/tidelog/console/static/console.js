// Theme, keyboard and live updates. Every page works without this file, too.
"use strict";

const RETRY_MS = 5000;
const THEMES = ["system", "light", "dark"];

function applyTheme(theme) {
  if (theme === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
}

function storedTheme() {
  const theme = localStorage.getItem("theme");
  return THEMES.includes(theme) ? theme : "system";
}

applyTheme(storedTheme()); // before the first paint

function setUpTheme() {
  const button = document.getElementById("theme");
  button.hidden = false;
  button.textContent = `Theme: ${storedTheme()}`;
  button.addEventListener("click", () => {
    const theme = THEMES[(THEMES.indexOf(storedTheme()) + 1) % THEMES.length];
    localStorage.setItem("theme", theme);
    applyTheme(theme);
    button.textContent = `Theme: ${theme}`;
  });
}

function setUpSearchKey() {
  document.addEventListener("keydown", (event) => {
    const isTyping = event.target.matches("input, select, textarea");
    const field = document.querySelector("[data-search]");
    if (event.key !== "/" || isTyping || event.ctrlKey || event.altKey || event.metaKey || !field) return;
    event.preventDefault();
    field.focus();
  });
}

// Replaces the content, and keeps the focus and the positions of scrolled tables.
function replaceContent(live, html) {
  const focusable = () => [...live.querySelectorAll("a, button, input, select")];
  const active = document.activeElement;
  const place = live.contains(active) ? focusable().indexOf(active) : -1;
  const address = place < 0 ? null : active.getAttribute("href");
  const scrolled = [...live.querySelectorAll(".scroll")].map((each) => [each.scrollLeft, each.scrollTop]);
  live.innerHTML = html;
  [...live.querySelectorAll(".scroll")].forEach((each, index) => {
    if (scrolled[index]) [each.scrollLeft, each.scrollTop] = scrolled[index];
  });
  if (place < 0) return;
  const found = focusable();
  const same = address && found.find((each) => each.getAttribute("href") === address);
  (same || found[place] || live).focus();
}

function setUpLiveUpdates() {
  const live = document.getElementById("live");
  if (!live) return;
  const button = document.getElementById("pause");
  const state = document.getElementById("updates");
  let source = null;
  let isPaused = false;

  let pending = null;

  // A reader who is in a form or selects text must not lose it. A range in the page does not count what is selected
  // in a field, which stays selected when the focus has left the field.
  function isBusy() {
    if (live.contains(document.activeElement) && document.activeElement.closest("form")) return true;
    const selection = document.getSelection();
    const range = selection.rangeCount ? selection.getRangeAt(0) : null;
    return range !== null && !range.collapsed && live.contains(range.commonAncestorContainer);
  }

  function update() {
    const wanted = !isPaused && !document.hidden; // nobody looks at a hidden page
    if (wanted && !source) {
      source = new EventSource(live.dataset.events);
      source.addEventListener("fragment", (event) => {
        pending = event.data;
      });
      // The session has ended. The page, loaded again, is the login.
      source.addEventListener("ended", () => location.reload());
      source.addEventListener("error", () => {
        state.textContent = "No updates arrive. This page shows what was read then.";
        // The browser repeats only connections that were lost, and not those that were refused.
        if (source === null || source.readyState !== EventSource.CLOSED) return;
        source = null;
        setTimeout(update, RETRY_MS);
      });
      source.addEventListener("read", (event) => {
        state.textContent = "";
        if (isBusy()) return; // the content is older than this time
        if (pending !== null) replaceContent(live, pending);
        pending = null;
        document.getElementById("read-at").textContent = event.data;
      });
    } else if (!wanted && source) {
      source.close();
      source = null;
      state.textContent = "";
    }
  }

  button.hidden = false;
  button.addEventListener("click", () => {
    isPaused = !isPaused;
    button.setAttribute("aria-pressed", String(isPaused));
    update();
  });
  document.addEventListener("visibilitychange", update);
  // A logout ends the session, which would load this page again before the browser has left it.
  document.querySelector(".user")?.addEventListener("submit", () => {
    isPaused = true;
    update();
  });
  update();
}

document.addEventListener("DOMContentLoaded", () => {
  setUpTheme();
  setUpSearchKey();
  setUpLiveUpdates();
});
