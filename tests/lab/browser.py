"""Pages in a real browser: Chromium, where there is one, with axe-core inside."""

from __future__ import annotations

import html
import json
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

SCHEMES = {"dark": 0, "light": 1}

PROBE = """
const frame = document.querySelector('iframe');
frame.onload = async () => {
  const page = frame.contentDocument, view = frame.contentWindow;
  const script = page.createElement('script');
  script.textContent = document.getElementById('axe').value;
  page.head.append(script);
  const found = await view.axe.run(page, {runOnly: ['wcag2a', 'wcag2aa', 'best-practice']});
  const width = page.documentElement.clientWidth;
  const cut = [...page.querySelectorAll('body *:not(svg *)')].filter(e => {
    if (getComputedStyle(e).position === 'absolute' || e.closest('thead')) return false;
    const box = e.getBoundingClientRect();
    const hides = view.getComputedStyle(e).overflowX !== 'visible' && e.scrollWidth > e.clientWidth + 1;
    return box.right > width + 1 || hides;
  }).map(e => e.outerHTML.slice(0, 120));
  const out = document.createElement('pre');
  out.id = 'out';
  out.textContent = JSON.stringify({
    violations: found.violations.map(v => [v.id, v.nodes.map(n => n.target.join(' ')).slice(0, 3)]),
    cut, sideways: page.documentElement.scrollWidth - width, paper: view.getComputedStyle(page.body).backgroundColor,
  });
  document.body.append(out);
};
frame.srcdoc = document.getElementById('page').value;
"""


def look(page: Path, folder: Path, *, width: int, scheme: str) -> dict[str, Any]:
    """What axe finds wrong, and what is cut off at this width; skipped where there is no browser."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    found = find_spec("axe_core_python")
    if chromium is None or found is None or not found.submodule_search_locations:
        pytest.skip("needs Chromium and axe-core-python")
    axe = Path(found.submodule_search_locations[0], "axe.min.js").read_text(encoding="utf-8")
    text = page.read_text(encoding="utf-8").replace("Content-Security-Policy", "x-no-policy")
    around = folder / "around.html"
    around.write_text(
        f'<!doctype html><meta charset="utf-8"><iframe style="width:{width}px;height:3000px;border:0"></iframe>'
        f'<textarea id="axe" hidden>{html.escape(axe)}</textarea>'
        f'<textarea id="page" hidden>{html.escape(text)}</textarea><script>{PROBE}</script>',
        encoding="utf-8",
    )
    shown = subprocess.run(
        [chromium, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder / 'profile'}",
         "--window-size=1400,3200", f"--blink-settings=preferredColorScheme={SCHEMES[scheme]}",
         "--virtual-time-budget=20000", "--timeout=60000", "--dump-dom", f"file://{around}"],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    out = shown.stdout.partition('<pre id="out">')[2].partition("</pre>")[0]
    assert out, shown.stderr[-2000:]
    seen: dict[str, Any] = json.loads(html.unescape(out))
    return seen
