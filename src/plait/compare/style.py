"""The style sheet of the page: colours of the drawing themes, one column on a phone, white paper in print."""

from __future__ import annotations

from typing import Final

from plait.draw.text import FAMILY
from plait.draw.theme import DARK, LIGHT, Theme

__all__ = ["style_sheet"]


def _variables(theme: Theme) -> str:
    named = {
        "paper": theme.paper,
        "panel": theme.panel,
        "ink": theme.ink,
        "muted": theme.muted,
        "line": theme.line,
        "frame": theme.frame,
        "differs": theme.hues["attention"].fill,
        **{f"s{i}": colour for i, colour in enumerate(theme.series)},
    }
    return "".join(f"--{name}:{colour};" for name, colour in named.items())


_RULES: Final = """
*{box-sizing:border-box}
html{-webkit-text-size-adjust:100%}
body{margin:0;background:var(--paper);color:var(--ink);font:15px/1.5 FAMILY}
main{max-width:1200px;margin:0 auto;padding:28px 24px 64px}
h1{font-size:26px;line-height:1.25;margin:0 0 4px;overflow-wrap:anywhere}
h2{font-size:19px;line-height:1.3;margin:48px 0 12px}
h3{font-size:15px;margin:20px 0 6px}
p{margin:6px 0 10px;max-width:80ch}
.sub,.note,.ev{color:var(--muted)}
.note{font-size:13px}
nav{margin:14px 0 0;font-size:14px;display:flex;flex-wrap:wrap;gap:4px 16px}
a{color:inherit;text-underline-offset:3px}
a:focus-visible,summary:focus-visible,.scroll:focus-visible{outline:2px solid var(--s0);outline-offset:2px}
.cards{display:grid;grid-template-columns:repeat(auto-fit,minmax(230px,1fr));gap:14px;margin-top:22px}
.card{background:var(--panel);border-top:4px solid var(--c);border-radius:6px;padding:12px 16px 14px;min-width:0}
.card h3{margin:0;font-size:17px;overflow-wrap:anywhere}
.card p{margin:0 0 8px;font-size:13px;overflow-wrap:anywhere}
.card dl{display:grid;grid-template-columns:auto 1fr;gap:2px 14px;margin:0;font-size:14px}
dt{color:var(--muted)}
dd{margin:0;text-align:right;font-variant-numeric:tabular-nums}
.scroll{overflow-x:auto}
table{border-collapse:collapse;width:100%;font-size:14px}
table.stack{table-layout:fixed;min-width:var(--least)}
thead th:first-child,tbody th[scope=row]{width:190px}
th,td{text-align:left;vertical-align:top;padding:7px 14px 7px 0;border-bottom:1px solid var(--panel)}
th,td{overflow-wrap:anywhere}
thead th{border-bottom:2px solid var(--line);vertical-align:bottom}
thead th.m{box-shadow:inset 0 3px 0 var(--c);padding-top:9px}
tbody th{font-weight:400;color:var(--muted)}
tbody.g th[colspan]{font-weight:700;color:var(--ink);padding-top:16px;border-bottom-color:var(--frame)}
.num td{font-variant-numeric:tabular-nums}
.ev{display:block;font-size:12px;line-height:1.4}
.none{color:var(--muted)}
details{margin:12px 0;border:1px solid var(--panel);border-radius:6px;padding:0 14px}
details[open]{padding-bottom:12px}
summary{cursor:pointer;padding:9px 0;font-weight:700;font-size:14px}
figure{margin:10px 0 16px}
figure svg{display:block;max-width:100%;height:auto}
.narrow,.only-dark{display:none}
.ways{display:grid;grid-template-columns:repeat(auto-fit,minmax(340px,1fr));gap:8px 32px}
.ways section{min-width:0}
.way th,.way td+td{white-space:nowrap;overflow-wrap:normal}
.way td:first-child{width:100%}
.way tr>:last-child{padding-right:0}
.bar{display:flex;height:12px;border-radius:3px;overflow:hidden;background:var(--panel);margin:2px 0 6px}
.bar i{background:var(--c);min-width:2px}
.diagrams{display:flex;gap:24px;align-items:flex-start;overflow-x:auto;padding-bottom:12px}
.diagrams{width:calc(100vw - 64px);margin-left:calc(50% - 50vw + 32px)}
.diagrams figure{flex:none;margin:0;width:clamp(660px,calc(50vw - 48px),1016px)}
.diagrams svg{width:100%}
.diagrams figcaption{font-weight:700;margin-bottom:6px}
ul{padding-left:20px;margin:6px 0}
li{margin:3px 0}
@media (max-width:700px){
main{padding:18px 14px 48px}
h2{margin-top:36px}
.wide{display:none}
.narrow{display:block}
.only-dark.narrow{display:none}
.ways{grid-template-columns:1fr}
table.stack{min-width:0}
table.stack,.stack tbody,.stack tr,.stack th,.stack td{display:block;width:auto}
.stack tbody th[scope=row]{width:auto}
.stack thead{display:none}
.stack tr{padding:8px 0;border-bottom:1px solid var(--panel)}
.stack th,.stack td{border:0;padding:1px 0}
.stack tbody th{font-weight:700;color:var(--ink)}
.stack td::before{content:attr(data-label);display:block;color:var(--muted);font-size:12px}
.stack td{padding-left:10px;border-left:4px solid var(--c);margin:5px 0}
.diagrams{width:auto;margin-left:0}
}
@media screen and (prefers-color-scheme:dark){
.only-light{display:none}
.only-dark{display:block}
}
@media screen and (prefers-color-scheme:dark) and (max-width:700px){
.only-light.narrow,.only-dark.wide{display:none}
.only-dark.narrow{display:block}
}
@media screen and (prefers-color-scheme:dark) and (min-width:701px){
.only-dark.narrow{display:none}
}
@media print{
main{max-width:none;padding:0}
nav{display:none}
body{font-size:11pt}
tr,figure,.card,.ways section{break-inside:avoid}
h2,h3{break-after:avoid}
.diagrams{flex-wrap:wrap;overflow:visible;width:auto;margin:0}
.diagrams figure{width:100%}
.scroll{overflow:visible}
}
"""


def style_sheet() -> str:
    """The whole sheet; dark colours where the reader's system asks for them, except in print."""
    rules = _RULES.replace("FAMILY", FAMILY).strip()
    light, dark = _variables(LIGHT), _variables(DARK)
    return (
        f":root{{color-scheme:light dark;{light}}}\n"
        f"@media screen and (prefers-color-scheme:dark){{:root{{{dark}}}}}\n"
        f"@media print{{:root{{color-scheme:light}}}}\n{rules}\n"
    )
