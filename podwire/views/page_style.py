"""The style of the HTML page, for light and dark mode."""

STYLE = """
:root { color-scheme: light dark; --line: #8888; --bad: #c62828; --warning: #b06000; --good: #2e7d32 }
@media (prefers-color-scheme: dark) { :root { --bad: #ff8a80; --warning: #ffb74d; --good: #81c784 } }
body { font: 14px/1.4 system-ui, sans-serif; margin: 0 }
header, main { padding: 0 1.5rem } header { border-bottom: 1px solid var(--line) }
h1 { font-size: 1.3rem; margin: .8rem 0 0 } h2 { font-size: 1.1rem } p { margin: .3rem 0 }
nav { padding-bottom: .6rem } nav a { margin-right: 1rem }
table { border-collapse: collapse; width: 100% }
th, td { text-align: left; padding: .2rem .6rem .2rem 0; border-bottom: 1px solid var(--line); vertical-align: top }
thead th { position: sticky; top: 0; background: Canvas }
#table th { cursor: pointer; user-select: none } th[aria-sort=ascending]::after { content: " \\25B2" }
th[aria-sort=descending]::after { content: " \\25BC" }
form { display: flex; flex-wrap: wrap; gap: .8rem; margin-bottom: .6rem } #search { flex: 1 1 16rem; padding: .2rem }
code { font-family: ui-monospace, monospace; user-select: all }
.problem, tr.faulty td:last-child { color: var(--bad) } .warning { color: var(--warning) } .good { color: var(--good) }
td small { display: block; color: var(--bad) }
#map svg { width: 100%; height: auto; background: #fff } li { margin: .3rem 0 }
@media print { @page { size: landscape } nav, form { display: none } #map { break-before: page } }
"""
