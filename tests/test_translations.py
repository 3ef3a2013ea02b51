"""Every text of the JupyterLab extension is in the catalogues, and in each language."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from jupyter_hyperpod.policy import membership, recovery, scaling, serving
from translations import catalogues, sentences
from translations.catalogues import Catalog, Places, Untranslatable

SOURCES = catalogues.TREE / "src"


@pytest.fixture
def places(tmp_path: Path) -> Places:
    return Places(tmp_path / "texts.pot", tmp_path, tmp_path / "locale")


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    folder = tmp_path / "src"
    folder.mkdir()
    (folder / "page.tsx").write_text(
        "export const view = (trans, name) => <p title={trans.__('Stop %1…', name)}>{trans._n('%1 job', '%1 jobs', 2)}"
        "{trans._p('axis', 'All')}</p>;\n"
    )
    return folder


def translate(places: Places, language: str, **texts: str | tuple[str, ...]) -> None:
    catalog = catalogues.translations(language, places)
    for message in catalog:
        if message.id:
            text = message.id if isinstance(message.id, str) else message.id[0]
            message.string = texts[text.split()[0].strip("%")]
            message.flags.discard("fuzzy")
    places.of(language).write_text(catalogues.written(catalog))


def test_the_catalogues_are_complete_and_up_to_date() -> None:
    wrong = catalogues.check(SOURCES)
    assert not wrong, "\n".join([*wrong, f"Run `{catalogues.MEND}`, then write what it asks for."])


def test_a_new_text_is_asked_for_with_the_command_that_mends_it(places: Places, sources: Path) -> None:
    missing = catalogues.update(sources, places)
    assert len(missing) == 2 * 3 and all("has no translation" in line for line in missing)
    translate(places, "de_DE", Stop="%1 stoppen…", **{"1": ("%1 Job", "%1 Jobs"), "All": "Alles"})
    translate(places, "ja_JP", Stop="%1 を停止…", **{"1": ("%1 個のジョブ",), "All": "すべて"})
    assert catalogues.update(sources, places) == [] == catalogues.check(sources, places)
    shipped = json.loads(places.read_by_jupyterlab("ja_JP").read_text())
    assert shipped["axis\x04All"] == ["すべて"] and shipped["%1 job"] == ["%1 個のジョブ"] * 2

    (sources / "late.ts").write_text("export const late = trans => trans.__('Open');\n")
    stale, *missing = catalogues.check(sources, places)
    assert stale.startswith("out of date: ") and stale.endswith("run `make translations`")
    assert [line for line in missing if '"Open" has no translation' in line] == missing and len(missing) == 2


def test_texts_that_could_not_be_translated_are_refused_with_their_place(sources: Path) -> None:
    lines = {
        "trans.__('Delete %1?').replace('%1', name);": '%1 would be shown as "undefined"',
        "trans.__(`Stop ${name}?`);": "write it as one literal, with %1 where a value goes",
        "trans._n(...many, 2);": "write them out, one argument each",
        "trans.__('Open', name);": '"Open" has no %1, but a value for it follows',
        "trans.__('%1 job', 1);": "stands elsewhere with another plural, or without one",
    }
    (sources / "wrong.ts").write_text("\n".join(lines))
    with pytest.raises(Untranslatable) as caught:
        catalogues.texts_in(sources)
    said = str(caught.value).splitlines()
    assert len(said) == len(lines)
    for number, (line, sentence) in enumerate(zip(said, lines.values(), strict=True), 1):
        assert line.startswith(f"src/wrong.ts:{number}: ") and sentence in line


@pytest.mark.parametrize(
    ("text", "translated", "fault"),
    [
        ("%1 of %2", "%2 von %1", ""),
        ("%1 of %2", "%1 von %1", "has other values"),
        ("Run `%1`", "`%1` ausführen", ""),
        ("Run `make`", "make ausführen", "has other words in backquotes"),
        ("a **button**", "ein Knopf", "has other asterisks"),
        ("Open", "Öffnen ", "begins or ends with a space"),
        ("Open", "", "has no translation"),
        (("%1 job", "%1 jobs"), ("ein Job", "%1 Jobs"), ""),
        (("%2 of %1 node", "%2 of %1 nodes"), ("%2 von %1 Knoten", "%1 Knoten"), "has other values"),
        (("%1 job", "%1 jobs"), ("%1 Job", ""), "one of its forms is missing"),
    ],
)
def test_a_translation_has_the_values_and_forms_of_its_text(
    text: str | tuple[str, str], translated: str | tuple[str, str], fault: str
) -> None:
    template, catalog = Catalog(), Catalog(locale="de_DE")
    template.add(text)
    catalog.add(text, translated)
    said = list(catalogues.faults(template, catalog))
    assert len(said) == bool(fault) and all(fault in line for line in said)


def test_what_is_not_in_the_sources_any_more_is_named() -> None:
    catalog = Catalog(locale="de_DE")
    catalog.add("Gone", "Fort")
    assert list(catalogues.faults(Catalog(), catalog)) == [
        'translations/de_DE.po has an entry for "Gone", which is not in the sources any more'
    ]


def test_a_sentence_is_taken_with_a_place_for_each_value_that_is_not_known_before() -> None:
    source = '''
LOST = "network partition"

def why(node, nodes, gone, state):
    """No sentence."""
    most = ", the most there may be" if gone else ""
    print(f"{plural(len(nodes), 'node')} of {node} {'are' if gone else 'is'} gone{most}")
    reason = open(node)
    return f"{node} is gone: {reason}" if gone else f"{node!r}{state} is adjacent", "a_key", f"costs {gone:.0f} % of it"

def held(by):
    return f"waits because it is {_count(by)}"

def _count(number):
    return f"held by {number}"
'''
    found = list(dict.fromkeys(sentences.in_source(source)))
    assert found == [
        "network partition",
        *(
            f"{count} gone{most}"
            for count in ("1 node of %1 are", "1 node of %1 is", "%1 nodes of %2 are", "%1 nodes of %2 is")
            for most in (", the most there may be", "")
        ),
        "%1 is gone: %2",
        "waits because it is held by %1",
        "held by %1",
    ]


def test_what_decisions_say_is_among_the_sentences() -> None:
    texts = sentences.sentences(catalogues.TREE / catalogues.DOMAIN)
    known = [re.compile("(.+?)".join(map(re.escape, re.split(r"%\d", text)))) for text in texts]
    beat = membership.MemberHeartbeat("node-1.a", 9.0, 9.0, membership.COMPUTE, unconfirmed_s=1.0)
    claim = scaling.Claim("big-1", 0, 0.0, 3, 3, queue="q")
    said = (
        membership.start(3, 4, 2, 9.0).reason,
        membership.next_size(1, 0, 4, 2).reason,
        membership.lost([beat], 1.0).reason,
        recovery.at_once(1, 10**9, 1.0).reason,
        serving.decide([serving.LoadReading(9.5, 7)], 1, serving.Limits(0, 4, 2.0, 60.0), 10.0).reason,
        scaling.impossible(claim, 4, 1, {}),
    )
    assert all(said) and [text for text in said if not any(one.fullmatch(text) for one in known)] == []
