"""The frame of a page that is one file: no script, nothing from elsewhere, light or dark as its reader likes. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from .markup import safe

LARGEST_BYTES = 1_900_000

# what a browser may do with the page: nothing but draw it
POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
_LIGHT = """--page:#f5f6f5;--paper:#fff;--ink:#1c2220;--muted:#59635f;--line:#dde2df;--soft:#eef1ef;
--c0:#1f9e89;--c1:#d1603d;--c2:#5778c8;--c3:#8a63b8;--c4:#b07d10;--c5:#5b8c3a;--bad:#c4472b;--good:#14806e;
--warn:#95690a"""
_DARK = """--page:#131615;--paper:#1b1f1e;--ink:#e7ebe9;--muted:#9aa6a1;--line:#343b38;--soft:#232927;
--c0:#3cc4ab;--c1:#ec8763;--c2:#8aa6ec;--c3:#bb9be3;--c4:#dcb04a;--c5:#92cb78;--bad:#f08a6a;--good:#4bd0b7;
--warn:#e0b955"""
STYLE = f"""
:root{{color-scheme:light dark;{_LIGHT}}}
@media (prefers-color-scheme:dark){{:root{{{_DARK}}}}}
*{{box-sizing:border-box}}
body{{margin:0;background:var(--page);color:var(--ink);
font:15px/1.55 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif;
font-variant-numeric:tabular-nums}}
main{{max-width:960px;margin:0 auto;padding:36px 20px 64px}}
h1{{font-size:26px;line-height:1.25;margin:0;overflow-wrap:anywhere;letter-spacing:-.01em}}
h2{{font-size:17px;margin:0 0 12px}}
h3{{font-size:14px;margin:18px 0 6px}}
p{{margin:8px 0}}
a{{color:inherit;text-underline-offset:2px}}
.lead{{font-size:18px;line-height:1.5;max-width:46em;margin:12px 0 0;overflow-wrap:anywhere}}
.state{{display:inline-block;font-size:13px;font-weight:600;padding:2px 10px;border-radius:99px;margin-bottom:10px;
border:1px solid currentColor}}
.good{{color:var(--good)}}.warn{{color:var(--warn)}}.bad{{color:var(--bad)}}.quiet,.faint{{color:var(--muted)}}
.info{{color:var(--ink)}}
section{{background:var(--paper);border:1px solid var(--line);border-radius:10px;padding:20px 22px;margin-top:18px}}
.facts{{display:grid;grid-template-columns:repeat(auto-fit,minmax(138px,1fr));gap:1px;background:var(--line);
border:1px solid var(--line);border-radius:10px;overflow:hidden;margin-top:24px}}
.facts div{{background:var(--paper);padding:12px 16px}}
.facts dt{{color:var(--muted);font-size:13px}}
.facts dd{{margin:2px 0 0;font-size:20px;font-weight:600;line-height:1.25;overflow-wrap:anywhere}}
.facts small{{display:block;color:var(--muted);font-size:12px;font-weight:400;margin-top:2px}}
dl:not(.facts){{display:grid;grid-template-columns:minmax(9em,max-content) minmax(0,1fr);gap:4px 18px;margin:0}}
dl:not(.facts) div{{display:contents}}
dl:not(.facts) dt{{color:var(--muted)}}dl:not(.facts) dd{{margin:0;overflow-wrap:anywhere}}
figure{{margin:0 0 18px}}figure:last-child{{margin-bottom:0}}
figcaption{{font-weight:600;font-size:14px;margin-bottom:6px}}figcaption span{{font-weight:400;color:var(--muted)}}
.grid2{{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,380px),1fr));gap:18px 24px}}
.grid2 figure{{margin:0;min-width:0}}
svg{{display:block;width:100%;height:auto;overflow:visible;font:11px system-ui,sans-serif}}
svg text{{fill:var(--ink)}}svg .faint{{fill:var(--muted)}}
.grid{{stroke:var(--line)}}.axis{{stroke:var(--muted);stroke-opacity:.6}}
.line{{fill:none;stroke-width:1.8;stroke-linejoin:round;stroke-linecap:round}}.band{{fill-opacity:.2}}
.wide{{stroke-width:3.6;stroke-opacity:.5}}.wide~.line{{stroke-width:1.3}}
.column{{fill:transparent}}.column:hover{{fill:var(--ink);fill-opacity:.07}}
{"".join(f".stroke{n}{{stroke:var(--c{n})}}.fill{n}{{fill:var(--c{n})}}" for n in range(6))}
.trial{{fill:none;stroke:var(--c0);stroke-width:1.7}}.trial.open{{stroke:var(--muted);stroke-dasharray:3 4;
stroke-opacity:.6}}.trial.best{{stroke:var(--c1);stroke-width:3.4}}a:hover .trial{{stroke:var(--ink);stroke-opacity:1}}
svg .name{{font-weight:600;font-size:13px}}svg .tick{{paint-order:stroke;stroke:var(--paper);stroke-width:3px}}
:target{{outline:2px solid var(--c1);outline-offset:4px}}
.mark line{{stroke:var(--bad);stroke-dasharray:3 3;stroke-opacity:.75}}.mark path{{fill:var(--bad)}}
.mark.info line{{stroke:var(--c2)}}.mark.info path{{fill:var(--c2)}}
.member{{fill:var(--c0)}}.spare{{fill:var(--c2);fill-opacity:.28;stroke:var(--c2);stroke-opacity:.7}}
.lost{{fill:url(#hatch);stroke:var(--bad)}}.hatch{{stroke:var(--bad);stroke-width:2.4}}
.recovery{{fill:var(--bad);fill-opacity:.22}}.empty{{fill:var(--soft)}}.took{{fill:var(--c1)}}
.legend{{display:flex;flex-wrap:wrap;gap:4px 16px;font-size:13px;color:var(--muted);margin:0 0 6px}}
.legend span{{display:inline-flex;align-items:center;gap:6px;min-width:0;overflow-wrap:anywhere}}
.legend svg{{width:22px;height:10px;flex:none}}
.scroll{{overflow-x:auto}}
table{{border-collapse:collapse;width:100%;font-size:13.5px}}
caption{{text-align:left;color:var(--muted);padding-bottom:6px}}
th,td{{text-align:left;vertical-align:top;padding:5px 14px 5px 0;border-bottom:1px solid var(--line);
overflow-wrap:anywhere}}
th{{color:var(--muted);font-weight:500;white-space:nowrap}}tbody tr:last-child td{{border-bottom:0}}
.right{{text-align:right;white-space:nowrap}}td.differs,.differs{{font-weight:600}}
ul{{margin:0;padding-left:1.2em}}.said{{margin:0 0 5px}}svg text.bad{{fill:var(--bad)}}
td ul{{padding-left:1em}}li{{margin:2px 0}}
code,pre,.mono{{font:12.5px/1.5 ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace}}
code{{overflow-wrap:anywhere}}
pre{{margin:0;padding:12px 14px;background:var(--soft);border-radius:6px;overflow-x:auto;white-space:pre-wrap;
overflow-wrap:anywhere}}
pre .plus{{color:var(--good)}}pre .minus{{color:var(--bad)}}
details{{margin-top:10px}}summary{{cursor:pointer;color:var(--muted);font-size:13.5px}}
summary:hover{{color:var(--ink)}}
details>:not(summary){{margin-top:8px}}
:focus-visible{{outline:2px solid var(--c2);outline-offset:2px}}
.verdict{{font-size:17px;font-weight:600;margin:0 0 14px}}.whole{{white-space:nowrap}}
footer{{color:var(--muted);font-size:13px;margin-top:24px}}
@media print{{:root{{{_LIGHT};--page:#fff}}
body{{font-size:11pt}}main{{max-width:none;padding:0}}section,.facts,figure,tr{{break-inside:avoid}}
section.long{{break-inside:auto}}section{{border:0;border-top:1px solid var(--line);border-radius:0;padding:14px 0}}
details::details-content{{content-visibility:visible;block-size:auto}}summary{{list-style:none}}
.column{{display:none}}}}
@media (forced-colors:active){{svg{{forced-color-adjust:none}}}}
@media (prefers-reduced-motion:reduce){{*{{scroll-behavior:auto}}}}
"""


def bounded(parts: Sequence[str]) -> str:
    """The parts of a page one after the other; where all would be too large, without the largest, and it says so."""
    kept = list(parts)
    sizes = [len(part.encode("utf-8", "replace")) for part in kept]
    while sum(sizes) > LARGEST_BYTES:
        largest = max(range(len(sizes)), key=sizes.__getitem__)
        title = kept[largest].partition("<h2>")[2].partition("</h2>")[0]
        kept[largest] = (
            f'<section><h2>{title}</h2><p class="faint">Left out: the page would be too large.</p></section>'
        )
        sizes[largest] = len(kept[largest])
    return "".join(kept)


def page(title: str, body: str) -> str:
    """A whole document; ``body`` is escaped already."""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f'<meta name="referrer" content="no-referrer"><title>{safe(title)}</title><style>{STYLE}</style></head>'
        f"<body><main>{body}</main></body></html>\n"
    )
