"""Keeps the catalogues of the JupyterLab extension: its texts, their translations, and what JupyterLab reads of them.

`make translations` brings everything up to date; `python -m translations --check` says what is not.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

from babel.messages.catalog import Catalog, Message
from babel.messages.pofile import read_po, write_po

from translations.sentences import sentences, stale

HERE = Path(__file__).resolve().parent
TREE = HERE.parent
DOMAIN = "jupyter_hyperpod"
# All that ours has; every one is complete.
LANGUAGES = ("de_DE", "ja_JP")
MEND = "make translations"

HEADER = r"""# {title}
msgid ""
msgstr ""
"Project-Id-Version: jupyter_hyperpod\n"
"Language: {language}\n"
"MIME-Version: 1.0\n"
"Content-Type: text/plain; charset=utf-8\n"
"Content-Transfer-Encoding: 8bit\n"
"Plural-Forms: {plural_forms}\n"

"""


class Untranslatable(Exception):
    """A text of the sources that could not be translated on the screen; says where and what to write instead."""


@dataclass(frozen=True)
class Places:
    """Where catalogues are read and written."""

    template: Path
    translated: Path
    shipped: Path
    # Where the browser finds the sentences of the cluster; None: without them.
    sentences: Path | None = None

    def of(self, language: str) -> Path:
        """The translations that a person writes."""
        return self.translated / f"{language}.po"

    def read_by_jupyterlab(self, language: str) -> Path:
        return self.shipped / language / "LC_MESSAGES" / f"{DOMAIN}.json"


OURS = Places(HERE / f"{DOMAIN}.pot", HERE, TREE / DOMAIN / "locale", TREE / "src" / "said" / "sentences.ts")
SENTENCES = """/** What the cluster says, from its Python sources; `make translations` writes this file. */
export const SENTENCES: readonly string[] = {told};
"""


def texts_in(sources: Path) -> Catalog:
    """Return the texts in a folder of TypeScript, in their order there. Raises Untranslatable."""
    command = ["node", str(HERE / "extract.mjs"), str(sources)]
    done = subprocess.run(command, cwd=TREE, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120)
    if done.returncode:
        raise Untranslatable(done.stderr.strip())
    template = Catalog(domain=DOMAIN)
    for found in json.loads(done.stdout):
        plural = found["plural"]
        template.add(
            found["text"] if plural is None else (found["text"], plural),
            # no numbers of lines: they would change with every edit
            locations=[(file, 0) for file in found["files"]],
            context=found["context"],
        )
    return template


def translations(language: str, places: Places = OURS) -> Catalog:
    path = places.of(language)
    if not path.exists():
        return Catalog(locale=language, domain=DOMAIN)
    with path.open("rb") as file:
        return read_po(file, locale=language, domain=DOMAIN)


def written(catalog: Catalog) -> str:
    """A catalogue as the text of its file, the same for the same catalogue."""
    for message in catalog:
        message.flags -= {"python-format", "python-brace-format"}  # guessed from a percent sign
    named = catalog.locale.get_display_name("en") if catalog.locale else None
    body = BytesIO()
    write_po(body, catalog, width=0, omit_header=True, include_lineno=False)
    header = HEADER.format(
        title=f"The texts of the JupyterLab extension{f' in {named}' if named else ''}.",
        language=str(catalog.locale or ""),
        plural_forms=catalog.plural_forms if catalog.locale else "nplurals=INTEGER; plural=EXPRESSION;",
    )
    return header + body.getvalue().decode().rstrip("\n") + "\n"


def compiled(catalog: Catalog) -> str:
    """A catalogue in the form that JupyterLab reads."""
    language = str(catalog.locale)
    heading = {"domain": DOMAIN, "language": language.replace("_", "-"), "plural_forms": catalog.plural_forms}
    entries: dict[str, object] = {"": heading}
    for message in catalog:
        if not message.id or not message.string or message.fuzzy:
            continue
        forms = list(message.string) if message.pluralizable else [message.string]
        if message.pluralizable and len(forms) == 1:
            forms *= 2  # JupyterLab takes a single form for a text without a plural, and would not find this one
        entries[f"{message.context}\x04{_text(message)}" if message.context else _text(message)] = forms
    return json.dumps(entries, ensure_ascii=False, indent=1) + "\n"


def faults(template: Catalog, catalog: Catalog) -> Iterator[str]:
    """Say what is missing or wrong in a language."""
    file = f"translations/{catalog.locale}.po"
    for wanted in template:
        if not wanted.id:
            continue
        found = catalog.get(_text(wanted), wanted.context)
        if found is None or found.id != wanted.id:
            yield f'{file} has no entry for "{_text(wanted)}"'
            continue
        forms = [*found.string] if isinstance(found.string, (tuple, list)) else [found.string or ""]
        if found.fuzzy:
            yield f'{file}: "{_text(wanted)}" is marked fuzzy: correct its translation, and remove the mark'
        elif not all(forms) or len(forms) != (catalog.num_plurals if wanted.pluralizable else 1):
            yield f'{file}: "{_text(wanted)}" has no translation, or one of its forms is missing'
        else:
            yield from (f"{file}: {fault}" for form in forms for fault in _unlike(wanted, form))
    for message in catalog:
        if message.id and template.get(_text(message), message.context) is None:
            yield f'{file} has an entry for "{_text(message)}", which is not in the sources any more'


def _unlike(wanted: Message, form: str) -> Iterator[str]:
    """Say where a translation has other values, markup or spaces at its ends than the text."""
    text = _text(wanted)
    texts = [*wanted.id] if wanted.pluralizable else [text]
    for what, pattern in (("values", r"%%|%\d+"), ("words in backquotes", r"`[^`]*`"), ("asterisks", r"\*\*")):
        expected = {tuple(sorted(re.findall(pattern, one))) for one in texts}
        # a form for one thing may leave out the number
        expected |= {tuple(value for value in some if value != "%1") for some in expected if wanted.pluralizable}
        if tuple(sorted(re.findall(pattern, form))) not in expected:
            yield f'"{form}" has other {what} than "{text}"'
    if form.strip() != form and text.strip() == text:
        yield f'"{form}" begins or ends with a space, and "{text}" does not'


def _text(message: Message) -> str:
    return str(message.id[0] if isinstance(message.id, (tuple, list)) else message.id)


def current(sources: Path, places: Places = OURS) -> tuple[dict[Path, str], list[str]]:
    """Return what every file has to hold, and what a person has to write or correct. Raises Untranslatable."""
    template = texts_in(sources)
    files: dict[Path, str] = {}
    wrong: list[str] = []
    if places.sentences is not None:
        told = sentences(TREE / DOMAIN)
        for text, origins in told.items():
            template.add(text, locations=[(origin, 0) for origin in origins])
        files[places.sentences] = SENTENCES.format(told=json.dumps([*told], indent=2))
        gone = 'translations/sentences.py names "{}", which no module says any more: remove it there'
        wrong += [gone.format(text) for text in stale(TREE / DOMAIN)]
    files[places.template] = written(template)
    for language in LANGUAGES:
        catalog = translations(language, places)
        catalog.update(template)
        catalog.obsolete.clear()
        files[places.of(language)] = written(catalog)
        files[places.read_by_jupyterlab(language)] = compiled(catalog)
        wrong += faults(template, catalog)
    return files, wrong


def check(sources: Path, places: Places = OURS) -> list[str]:
    """Say what is not up to date or not complete, and what mends it; change nothing."""
    files, wrong = current(sources, places)
    stale = [path for path, text in files.items() if not path.exists() or path.read_text(encoding="utf-8") != text]
    names = ", ".join(str(path.relative_to(TREE) if path.is_relative_to(TREE) else path) for path in stale)
    return [*([f"out of date: {names}; run `{MEND}`"] if stale else []), *wrong]


def update(sources: Path, places: Places = OURS) -> list[str]:
    """Write every file anew; say what a person has still to write."""
    files, wrong = current(sources, places)
    for path, text in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return wrong


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m translations", description=__doc__)
    parser.add_argument("--check", action="store_true", help="say what is not up to date, and change nothing")
    arguments = parser.parse_args()
    sources = TREE / "src"
    try:
        wrong = check(sources) if arguments.check else update(sources)
    except Untranslatable as error:
        wrong = str(error).splitlines()
    if wrong:
        sys.exit("\n".join([*wrong, f"Then run `{MEND}` again." if not arguments.check else ""]).rstrip())
