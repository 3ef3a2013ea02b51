import { LabIcon } from '@jupyterlab/ui-components';

/** A hexagonal pod of nodes; three of them carry the work. */
export const hyperpodIcon = new LabIcon({
  name: 'jupyter_hyperpod:pod',
  svgstr: `<svg xmlns="http://www.w3.org/2000/svg" width="16" viewBox="0 0 24 24">
  <g class="jp-icon3 jp-icon-selectable" stroke="#616161" stroke-width="1.6" style="fill: none" stroke-linecap="round">
    <path d="M12 4.2 18.75 8.1v7.8L12 19.8l-6.75-3.9V8.1z"/>
    <path d="M12 12v7.4M12 12 5.6 8.3M12 12l6.4-3.7"/>
  </g>
  <g class="jp-icon3 jp-icon-selectable" fill="#616161">
    <circle cx="12" cy="12" r="2.6"/>
    <circle cx="12" cy="19.8" r="2.2"/>
    <circle cx="5.25" cy="8.1" r="2.2"/>
    <circle cx="18.75" cy="8.1" r="2.2"/>
  </g>
</svg>`
});

/** A bolt: something is broken on purpose. */
export const breakIcon = new LabIcon({
  name: 'jupyter_hyperpod:break',
  svgstr: `<svg xmlns="http://www.w3.org/2000/svg" width="16" viewBox="0 0 24 24">
  <path class="jp-icon3 jp-icon-selectable" fill="#616161" d="M13.5 2.5 5 13.700h5.600L9.500 21.500 19 9.800h-6.200z"/>
</svg>`
});

/** More or fewer. */
export const scaleIcon = new LabIcon({
  name: 'jupyter_hyperpod:scale',
  svgstr: `<svg xmlns="http://www.w3.org/2000/svg" width="16" viewBox="0 0 24 24">
  <path class="jp-icon3 jp-icon-selectable" fill="#616161" d="M12 3 6.5 8.5l1.4 1.4L12 5.8l4.1 4.1 1.4-1.4zm0 18 5.5-5.5-1.4-1.4-4.1 4.1-4.1-4.1-1.4 1.4z"/>
</svg>`
});

/** A course that falls, and one that falls less. */
export const plannerIcon = new LabIcon({
  name: 'jupyter_hyperpod:planner',
  svgstr: `<svg xmlns="http://www.w3.org/2000/svg" width="16" viewBox="0 0 24 24">
  <g class="jp-icon3 jp-icon-selectable" stroke="#616161" stroke-width="1.8" style="fill: none" stroke-linecap="round" stroke-linejoin="round">
    <path d="M4 4v16h16"/>
    <path d="M7.5 7.5c5 .4 8.5 1.2 12 3.500M7.500 7.500c3 1.500 4.500 4.500 6 9"/>
  </g>
</svg>`
});

/** Two shelves that a network joins. */
export const mountsIcon = new LabIcon({
  name: 'jupyter_hyperpod:mounts',
  svgstr: `<svg xmlns="http://www.w3.org/2000/svg" width="16" viewBox="0 0 24 24">
  <g class="jp-icon3 jp-icon-selectable" stroke="#616161" stroke-width="1.6" style="fill: none" stroke-linecap="round" stroke-linejoin="round">
    <path d="M4.500 4.500h15v5h-15zM4.500 9.500h15v5h-15zM12 14.500v4.500M5 19h14"/>
  </g>
  <g class="jp-icon3 jp-icon-selectable" fill="#616161">
    <circle cx="7.800" cy="7" r="1.200"/>
    <circle cx="7.800" cy="12" r="1.200"/>
    <circle cx="12" cy="19" r="2"/>
  </g>
</svg>`
});

/** Rows of a table, two of them ticked. */
export const runsIcon = new LabIcon({
  name: 'jupyter_hyperpod:runs',
  svgstr: `<svg xmlns="http://www.w3.org/2000/svg" width="16" viewBox="0 0 24 24">
  <g class="jp-icon3 jp-icon-selectable" stroke="#616161" stroke-width="1.6" style="fill: none" stroke-linecap="round" stroke-linejoin="round">
    <path d="M10.500 6.500h9.500M10.500 12h9.500M10.500 17.500h9.500"/>
    <path d="M3.700 6.500l1.200 1.200 2.200-2.400M3.700 12l1.200 1.200 2.200-2.400"/>
  </g>
  <circle class="jp-icon3 jp-icon-selectable" cx="5.300" cy="17.500" r="1.300" fill="#616161"/>
</svg>`
});

/** Up to a larger place. */
export const promoteIcon = new LabIcon({
  name: 'jupyter_hyperpod:promote',
  svgstr: `<svg xmlns="http://www.w3.org/2000/svg" width="16" viewBox="0 0 24 24">
  <g class="jp-icon3 jp-icon-selectable" stroke="#616161" stroke-width="1.8" style="fill: none" stroke-linecap="round" stroke-linejoin="round">
    <path d="M4.500 19.500h15M12 15.500v-11M7.500 9 12 4.500 16.500 9"/>
  </g>
</svg>`
});

/** A clock. */
export const schedulesIcon = new LabIcon({
  name: 'jupyter_hyperpod:schedules',
  svgstr: `<svg xmlns="http://www.w3.org/2000/svg" width="16" viewBox="0 0 24 24">
  <g class="jp-icon3 jp-icon-selectable" stroke="#616161" stroke-width="1.7" style="fill: none" stroke-linecap="round" stroke-linejoin="round">
    <circle cx="12" cy="12" r="8"/>
    <path d="M12 7.500V12l3.200 2.200"/>
  </g>
</svg>`
});
