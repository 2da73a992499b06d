"""How the page looks: light and dark, narrow and wide, on paper."""

from __future__ import annotations

STYLE = """
:root { --ink: #1c2330; --soft: #5b6474; --line: #d9dee7; --paper: #ffffff; --panel: #f5f7fa; --accent: #2b6cb0;
  --good: #1f7a4d; --bad: #b3261e; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ef; --soft: #a2abba; --line: #343b48; --paper: #14171d;
  --panel: #1d222b; --accent: #7db4ea; --good: #5cc48f; --bad: #f2857c; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
main { max-width: 60rem; margin: 0 auto; padding: 2rem 1.25rem 4rem; }
h1 { font-size: 1.75rem; line-height: 1.2; margin: 0 0 .25rem; }
h2 { font-size: 1.15rem; margin: 2.2rem 0 .5rem; padding-top: 1rem; border-top: 1px solid var(--line); }
h3 { font-size: 1rem; margin: 1.2rem 0 .3rem; }
p, li { max-width: 46rem; } p { margin: .5rem 0; }
ul { margin: .5rem 0; padding-left: 1.2rem; } li { margin: .25rem 0; }
.lead { color: var(--soft); margin: 0 0 1rem; overflow-wrap: anywhere; }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(9.5rem, 1fr)); gap: .75rem; margin: 1rem 0; }
.card { background: var(--panel); border: 1px solid var(--line); border-radius: .6rem; padding: .7rem .9rem; }
.caption, .note { color: var(--soft); font-size: .82rem; } .number { font-size: 1.25rem; font-weight: 650;
  font-variant-numeric: tabular-nums; overflow-wrap: anywhere; }
.badge { display: inline-block; border: 1px solid currentColor; border-radius: 1rem; padding: .1rem .7rem;
  font-size: .85rem; font-weight: 600; }
.good { color: var(--good); } .bad { color: var(--bad); }
.warning { border-left: 4px solid var(--bad); background: var(--panel); padding: .5rem .9rem; }
.wide { overflow-x: auto; margin: .6rem 0; }
table { border-collapse: collapse; width: 100%; font-size: .9rem; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: .35rem .75rem .35rem 0; border-bottom: 1px solid var(--line); vertical-align: top; }
thead th { color: var(--soft); font-weight: 600; white-space: nowrap; }
.facts th { color: var(--soft); font-weight: 500; width: 14rem; } .facts td { overflow-wrap: anywhere; }
figure { margin: 1rem 0; overflow-x: auto; }
figure svg { width: 100%; max-width: 40rem; height: auto; display: block; color: var(--ink); }
figcaption { color: var(--soft); font-size: .85rem; }
details { margin: .6rem 0; } summary { cursor: pointer; color: var(--accent); }
pre { background: var(--panel); border: 1px solid var(--line); border-radius: .5rem; padding: .8rem; overflow-x: auto;
  font: .82rem/1.45 ui-monospace, "DejaVu Sans Mono", monospace; }
article + article { margin-top: 4rem; }
@media (max-width: 34rem) { main { padding: 1.25rem .9rem 3rem; } .facts th { width: 8.5rem; }
  h1 { font-size: 1.4rem; } pre { white-space: pre-wrap; overflow-wrap: anywhere; }
  .rows thead { display: block; position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); }
  .rows tr { display: block; padding: .5rem 0;
    border-bottom: 1px solid var(--line); }
  .rows td { display: flex; gap: .75rem; justify-content: space-between; border: 0; padding: .1rem 0;
    overflow-wrap: anywhere; text-align: right; }
  .rows td::before { content: attr(data-title); color: var(--soft); flex: none; max-width: 50%; text-align: left; } }
@media print {
  main { max-width: none; }
  figure, .card, tr, li, .start { break-inside: avoid; }
  h1, h2, h3, summary, thead { break-after: avoid; }
  p { orphans: 3; widows: 3; }
  details::details-content { content-visibility: visible; block-size: auto; }
}
"""
