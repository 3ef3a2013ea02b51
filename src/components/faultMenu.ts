/** The menus of faults: those of a lane, which its node and its member can get, and those of one target. */

import { MenuSvg } from '@jupyterlab/ui-components';
import { CommandRegistry } from '@lumino/commands';

import type { FaultTarget } from '../api';
import { Fault, FAULTS, faultsOf } from '../model/events';
import type { IJobView } from '../model/views';
import { said } from '../said/said';
import type { IShared } from './context';

/** What can be broken on one lane now. A replica of a deployment has no steps that could go wrong. */
export function choices(
  job: IJobView,
  node: string
): { target: FaultTarget; faults: Fault[] }[] {
  const at = job.members.findIndex(member => member.node === node);
  const spare = job.spares.some(one => one.node === node);
  const found: { target: FaultTarget; faults: Fault[] }[] = [];
  if (at >= 0) {
    const faults = faultsOf('rank').filter(
      fault => !job.deployment || fault === 'kill' || fault === 'hang'
    );
    found.push({ target: { rank: job.members[at].rank ?? at }, faults });
  }
  if (at >= 0 || spare) {
    found.push({ target: { node }, faults: faultsOf('node') });
  }
  return found;
}

/** Faults of one target, which the menu names. */
export interface IOffer {
  target: FaultTarget;
  name: string;
  faults: readonly Fault[];
}

/** Open the menu of a lane at a place of the page; `button` has the focus again when it closes. */
export function openLaneMenu(
  shared: IShared,
  job: IJobView,
  node: string,
  button: HTMLElement,
  place: { x: number; y: number }
): void {
  const { trans } = shared;
  const offers = choices(job, node).map(({ target, faults }) => ({
    target,
    faults,
    name: 'rank' in target ? trans.__('rank %1', target.rank) : node
  }));
  openFaultMenu(shared, job.id, node, offers, button, place);
}

/** Open a menu of faults; `title` names what breaks, and `button` has the focus again when it closes. */
export function openFaultMenu(
  { actions, trans }: IShared,
  job: string,
  title: string,
  offers: readonly IOffer[],
  button: HTMLElement,
  place: { x: number; y: number }
): void {
  const commands = new CommandRegistry();
  const menu = new MenuSvg({ commands });
  menu.title.label = trans.__('Break %1', title);
  // Without a separator: Lumino's can have the focus and has no role.
  for (const { target, name, faults } of offers) {
    for (const fault of faults) {
      const command = `${fault} ${name}`;
      commands.addCommand(command, {
        label: `${name} · ${fault}: ${said(FAULTS[fault].sentence, trans)}`,
        describedBy: { args: { type: 'object', properties: {} } },
        execute: () => actions.injectFault(job, fault, target)
      });
      menu.addItem({ command });
    }
  }
  menu.aboutToClose.connect(() => {
    button.focus({ preventScroll: true });
    // It goes on with the command that was chosen.
    setTimeout(() => menu.dispose());
  });
  menu.open(place.x, place.y);
  menu.activeIndex = 0;
}
