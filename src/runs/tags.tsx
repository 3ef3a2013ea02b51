/** Tags as a person types them: words, checked by the rules of the server before anything is sent. */

import { Dialog } from '@jupyterlab/apputils';
import type { TranslationBundle } from '@jupyterlab/translation';
import * as React from 'react';

import type { IRun } from '../api';
import { IShared, useShared } from '../components/context';
import { FormBody, FormDialog } from '../components/formDialog';
import { namedJob } from '../format';
import { TextField } from '../run/fields';

/** The rules of `control/runs/labels.py` and `core/kept.py`. */
const TAG = /^[\p{L}\p{N}][\p{L}\p{N}_.:/+-]{0,39}$/u;
const TAGS_KEPT = 20;

/** The words of a text, each once. */
export function tagsOf(text: string): string[] {
  return [...new Set(text.split(/[\s,]+/).filter(Boolean))];
}

/** Why the server would refuse these tags for these runs; empty where it would not. */
export function tagProblem(
  tags: readonly string[],
  runs: readonly IRun[],
  trans: TranslationBundle
): string {
  const wrong = tags.find(tag => !TAG.test(tag));
  if (wrong !== undefined) {
    return trans.__(
      '"%1" cannot be a tag: use at most 40 letters, digits and . _ : / + -, beginning with a letter or digit.',
      wrong
    );
  }
  const full = runs.find(
    run => new Set([...run.tags, ...tags]).size > TAGS_KEPT
  );
  return full && tags.length > 0
    ? trans.__('%1 would have more than %2 tags.', namedJob(full), TAGS_KEPT)
    : '';
}

interface IQuestion {
  runs: readonly IRun[];
  /** Tags that are there already. */
  known: readonly string[];
}

function TagForm(props: {
  question: IQuestion;
  onChange: (tags: string[]) => void;
}): JSX.Element {
  const { question, onChange } = props;
  const { trans } = useShared();
  const [text, setText] = React.useState('');
  const tags = tagsOf(text);
  React.useEffect(() => {
    onChange(tags);
  });
  return (
    <TextField
      label={trans.__('Tags')}
      value={text}
      choices={question.known}
      help={trans.__('Spaces and commas separate tags.')}
      problem={tagProblem(tags, question.runs, trans)}
      onChange={setText}
    />
  );
}

/** Ask for tags for some runs; null where the person closed the dialog. */
export async function askForTags(
  shared: IShared,
  question: IQuestion
): Promise<string[] | null> {
  const { trans } = shared;
  const { length } = question.runs;
  const body = new FormBody<IQuestion, string[]>(shared, TagForm, question);
  const dialog = new FormDialog(
    {
      title: trans._n('Tag %1 run', 'Tag %1 runs', length),
      buttons: [
        Dialog.cancelButton(),
        Dialog.okButton({ label: trans._p('verb', 'Tag') })
      ],
      focusNodeSelector: 'input'
    },
    body
  );
  const { button, value } = await dialog.launch();
  return button.accept ? value : null;
}
